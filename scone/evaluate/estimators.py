"""Estimators of q that the audit compares: the decoder's, the verifier on the bare prefix, and plain rollouts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from scone.errors import InputError
from scone.evaluate.audit import Estimator
from scone.evaluate.replay import next_token_after
from scone.evaluate.rollouts import Rollouts, Score, Step
from scone.lm import CausalLM

__all__ = ["OPTION_ROWS", "myopic", "next_token", "plain_rollouts"]

# The rows of the audit's table: each option of the decoder against its default. The options of lookaheads are shown
# without the verifier's view of the text so far, those of the masked LM's chains where these are at work, and those of
# the Taylor term with the full term.
_ALONE = "blend=0"
_CHAINS = f"{_ALONE},init=warm,lookahead=6,expand=sample"
OPTION_ROWS = (
    "default",
    "paper",
    "fast",
    "blend=0.25",
    "blend=0.75",
    "lookahead=1",
    "lookahead=2",
    "lookahead=4",
    "lookahead=6",
    *(f"{_ALONE},lookahead={length}" for length in (1, 2, 3, 4, 6, 10)),
    f"{_ALONE},expand=sample",
    f"{_ALONE},expand=sample,coupled=False",
    f"{_ALONE},expand=sample,chains=4",
    f"{_ALONE},init=mask,lookahead=6",
    f"{_ALONE},init=warm,lookahead=6",
    _CHAINS,
    f"{_CHAINS},chains=4",
    f"{_CHAINS},schedule=uniform",
    f"{_CHAINS},taylor_scale=0.25",
    f"{_CHAINS},taylor_scale=1",
    f"{_CHAINS},taylor_scale=1,taylor=mean",
    f"{_CHAINS},taylor_scale=1,linearise=prob",
    f"{_CHAINS},taylor_scale=1,marginals=masked",
    f"{_CHAINS},taylor_scale=1,marginals=unmasked",
)


def next_token(
    engine_for: Callable[[Step], Any],
    *,
    seeds: Sequence[int] = (0,),
    walk: Callable[..., Any] | None = next_token_after,
) -> Estimator:
    """q of the decoder, once for each seed.

    An engine that carries its lookahead from step to step (`init="warm"`) is walked through the prefix by `walk`;
    with `walk=None`, and for every other engine, `engine.next_token` is asked about the prefix as a prompt.
    """

    def estimate(rollouts: Rollouts) -> np.ndarray:
        step = rollouts.step
        engine = engine_for(step)
        written = _written(engine, step) if walk is not None and engine.config.init == "warm" else ()
        rows = []
        for seed in seeds:
            if walk is not None and written:
                prompt = step.prefix_ids[: -len(written)]
                found = walk(engine, prompt, written, max_new_tokens=step.remaining, seed=seed)
            else:
                found = engine.next_token(step.prefix, max_new_tokens=step.remaining, seed=seed)
            q = dict(zip(np.asarray(found.tokens).tolist(), np.asarray(found.q, dtype=np.float64).tolist()))
            rows.append([q.get(token, float("nan")) for token in step.candidates])
        return np.array(rows)

    return estimate


def _written(engine: Any, step: Step) -> tuple[int, ...]:
    """The tokens after the prompt; none where writing on has changed the prompt's own tokens."""
    prompt = tuple(engine.causal_lm.encode(step.prompt))
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
