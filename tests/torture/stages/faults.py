"""Models that fail at a random call, in a random way, under a random lookahead."""

from __future__ import annotations

import warnings

import torch

from scone.errors import ForwardError, NumericalError
from tests.torture.engines import LOOKAHEADS, PROMPTS, faulty
from tests.torture.tally import Tally, stage

FAULTS = {
    "raises": (faulty.raises(KeyError("wires")), ForwardError),
    "NaN": (faulty.spoils(float("nan")), NumericalError),
    "infinity": (faulty.spoils(float("inf")), NumericalError),
    "no memory": (faulty.raises(torch.OutOfMemoryError("none left")), ForwardError),
}


@stage(minutes=8)
def models_that_fail(tally: Tally) -> None:
    """The error is ours, what was written is a beginning of what would have been, and the engine goes on as before."""
    warnings.simplefilter("ignore")
    models = faulty.Faulty()
    while tally.going():
        lookahead, particles = tally.random.choice(LOOKAHEADS), tally.random.choice([1, 1, 2])
        name, fault = tally.random.choice(list(faulty.NAMES)), tally.random.choice(list(FAULTS))
        seed, engine = tally.random.randrange(1 << 30), models.engine(lookahead, particles=particles)
        prompts = tally.random.sample(PROMPTS, 3)
        whole = engine.generate(prompts, max_new_tokens=6, seed=seed)
        calls = models.calls(name, lambda: engine.generate(prompts, max_new_tokens=6, seed=seed))  # noqa: B023
        if not calls:
            continue
        at, (what, kind) = tally.random.randrange(calls), FAULTS[fault]
        label = f"{name} {fault} at call {at} of {calls}, {lookahead}, {particles} particles, seed {seed}"
        with tally.trial("faults injected", label):
            try:
                with models.failing(name, what, after=at):
                    engine.generate(prompts, max_new_tokens=6, seed=seed)
                raise AssertionError("nothing was raised")
            except kind as error:
                assert faulty.NAMES[name] in str(error) and error.partial is not None
                if particles == 1:
                    for ids, all_ids in zip(error.partial.token_ids, whole.token_ids):
                        assert ids == all_ids[: len(ids)]
            assert engine.generate(prompts, max_new_tokens=6, seed=seed).token_ids == whole.token_ids


@stage(minutes=5)
def memory_that_runs_out(tally: Tally) -> None:
    """With room for few rows at once the texts are the same."""
    warnings.simplefilter("ignore")
    models = faulty.Faulty()
    while tally.going():
        lookahead, name = tally.random.choice(LOOKAHEADS), tally.random.choice(list(faulty.NAMES))
        seed, rows, after = tally.random.randrange(1 << 30), tally.random.choice([2, 3, 5]), tally.random.randrange(9)
        engine = models.engine(lookahead)
        whole = engine.generate(PROMPTS, max_new_tokens=5, seed=seed)
        label = f"{name} has room for {rows} rows after call {after}, {lookahead}, seed {seed}"
        short = models.failing(name, faulty.has_room_for(rows, []), after=after)
        with tally.trial("faults injected", label), short:
            assert engine.generate(PROMPTS, max_new_tokens=5, seed=seed).token_ids == whole.token_ids
