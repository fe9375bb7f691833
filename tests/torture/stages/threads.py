"""Many at once: what a thread gets is what it would have got alone."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial

from scone.decode import Scone
from tests.torture.engines import LOOKAHEADS, PROMPTS, tiny_engine
from tests.torture.tally import Tally, stage

AT_ONCE = 32


@stage(minutes=4)
def threads(tally: Tally) -> None:
    """32 calls of `generate` at once, of every lookahead, against each call alone."""
    engines = [tiny_engine(lookahead) for lookahead in LOOKAHEADS]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        while tally.going():
            engine, seed = tally.random.choice(engines), tally.random.randrange(1 << 40)
            name = type(engine.lookahead).__name__
            write = partial(_write, engine)
            calls = [(tally.random.choice(PROMPTS), seed + i) for i in range(AT_ONCE)]
            with tally.trial("inputs tried", f"{AT_ONCE} threads, {name}, seed {seed}"):
                together = list(pool.map(write, calls))
                tally.add("generations soaked", AT_ONCE)
                for i in tally.random.sample(range(AT_ONCE), 4):
                    assert together[i] == write(calls[i]), f"call {i}: {calls[i]}"


def _write(engine: Scone, call: tuple[str, int]) -> list[list[int]]:
    prompt, seed = call
    return engine.generate(prompt, max_new_tokens=6, seed=seed).token_ids
