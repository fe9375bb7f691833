"""Estimators of q that the audit compares: the decoder's, the verifier on the bare prefix, and plain rollouts."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from scone.errors import InputError
from scone.evaluate.audit import Answered, Estimator
from scone.evaluate.progress import Progress
from scone.evaluate.records import Record, Records, key_of
from scone.evaluate.rollouts import Prefix, Rollouts, Score
from scone.evaluate.walk import carries, next_token_after
from scone.lm import CausalLM

__all__ = ["OPTION_ROWS", "myopic", "next_token", "plain_rollouts", "remembered"]

# The rows of the audit's table, in the notation of `scone.settings`: beside each mixture stands its lookahead alone.
_PATHS = [
    f"tokens={tokens},count={count},judged={judged}"
    for tokens in (3, 6)
    for count in (2, 4)
    for judged in ("expected", "drawn")
]
_CHAINS = "lookahead=gibbs,start=carried,tokens=6"
_TAYLOR = f"{_CHAINS},estimate=taylor"
OPTION_ROWS = (
    "default",
    "paper",
    "fast",
    "lookahead=nothing",
    *(f"lookahead=expectation,tokens={tokens}" for tokens in (2, 3, 4, 6)),  # 1: the default
    *(f"lookahead=expectation+nothing,tokens={tokens}" for tokens in (1, 2, 3, 4, 6)),
    *(f"lookahead=paths,{options}" for options in _PATHS),
    *(f"lookahead=paths+nothing,{options}" for options in _PATHS),
    "lookahead=masked,tokens=3",
    "lookahead=masked,tokens=6",
    "lookahead=masked+nothing,tokens=6",
    f"{_CHAINS},estimate=atsample",
    f"{_CHAINS},estimate=atsample,chains=4",
    f"{_CHAINS},estimate=atsample,schedule=uniform",
    f"{_CHAINS},estimate=atmean",
    f"{_TAYLOR},estimate_scale=0.25",
    f"{_TAYLOR},estimate_scale=1",
    f"{_TAYLOR},estimate_form=mean",
    f"{_TAYLOR},estimate_linearise=prob",
    f"{_TAYLOR},estimate_marginals=masked",
    f"{_TAYLOR},estimate_marginals=unmasked",
)


def next_token(
    engine_for: Callable[[Prefix], Any],
    *,
    seeds: Sequence[int] = (0,),
    walk: Callable[..., Any] | None = next_token_after,
    carries: Callable[..., bool | None] = carries,
) -> Estimator:
    """q of the decoder, once for each seed.

    An engine whose lookahead leaves something from one step to the next is walked through the prefix by `walk`; with
    `walk=None`, and for every other engine, `engine.next_token` is asked about the prefix as a prompt. Whether it does
    is seen at the first step that judges anything.
    """
    known: bool | None = None  # of all engines of this estimator: their options are the same

    def estimate(rollouts: Rollouts) -> Answered:
        nonlocal known
        step = rollouts.step
        engine = engine_for(step)
        written = _written(engine, step) if walk is not None and known is not False else ()
        prompt, length = step.prefix_ids[: len(step.prefix_ids) - len(written)], len(written) + step.remaining
        if written and known is None:
            known = carries(engine, prompt, max_new_tokens=length, seed=seeds[0])
        rows, costs = [], []
        began = time.perf_counter()
        for seed in seeds:
            if walk is not None and written and known is not False:
                found = walk(engine, prompt, written, max_new_tokens=step.remaining, seed=seed)
            else:
                found = engine.next_token(step.prefix, max_new_tokens=step.remaining, seed=seed)
            q = dict(zip(np.asarray(found.tokens).tolist(), np.asarray(found.q, dtype=np.float64).tolist()))
            rows.append([q.get(token, float("nan")) for token in step.candidates])
            costs.append((found.cost.lm_rows, found.cost.verifier_rows))
        lm_rows, verifier_rows = np.mean(costs, 0).tolist()
        return Answered(np.array(rows), (time.perf_counter() - began) / len(rows), lm_rows, verifier_rows)

    return estimate


def _written(engine: Any, step: Prefix) -> tuple[int, ...]:
    """The tokens after the prompt; none where writing on has changed the prompt's own tokens."""
    prompt = tuple(engine.parts.lm.encode(step.prompt))
    return step.prefix_ids[len(prompt) :] if step.prefix_ids[: len(prompt)] == prompt else ()


def myopic(score: Score, lm: CausalLM) -> Estimator:
    """φ of prefix and candidate, nothing after it."""

    def estimate(rollouts: Rollouts) -> np.ndarray:
        step = rollouts.step
        return np.asarray(score(step, [lm.decode([*step.prefix_ids, candidate]) for candidate in step.candidates]))

    return estimate


def plain_rollouts(n: int, stored: Sequence[Rollouts], phis: Sequence[np.ndarray], *, kept_apart: int) -> Estimator:
    """The mean φ of `n` rollouts a candidate, from those after the first `kept_apart`, which are the truth."""
    spare = {rollouts.path: phi[:, kept_apart:] for rollouts, phi in zip(stored, phis)}
    fewest = min(phi.shape[1] for phi in spare.values())
    if fewest < n:
        raise InputError(f"rollouts:{n} needs {kept_apart + n} stored rollouts a candidate, got {kept_apart + fewest}")

    def estimate(rollouts: Rollouts) -> np.ndarray:
        phi = spare[rollouts.path]
        replicates = phi.shape[1] // n
        return phi[:, : replicates * n].reshape(len(phi), replicates, n).mean(2).T  # (replicates, k)

    return estimate


def remembered(estimator: Estimator, facts: Record, answers: Records, progress: Progress) -> Estimator:
    """The same estimator, which asks itself nothing twice: what it said is kept by `facts` and step, also after a kill."""

    def estimate(rollouts: Rollouts) -> Answered:
        key = key_of({**facts, "step": rollouts.path.stem})
        kept = answers.get(key)
        if kept is None:
            began = time.perf_counter()
            found = estimator(rollouts)
            if not isinstance(found, Answered):
                q = np.atleast_2d(found)
                found = Answered(q, (time.perf_counter() - began) / len(q))
            kept = {"key": key, **found._asdict(), "q": found.q.tolist()}
            answers.append(kept)
            progress.advance(str(facts["row"]))
        else:
            progress.skip()
        return Answered(np.array(kept["q"]), kept["seconds"], kept["lm_rows"], kept["verifier_rows"])

    return estimate
