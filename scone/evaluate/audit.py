"""Is q right? Estimates of `next_token` against the mean φ of real rollouts.

An estimator is any function from a step's `Rollouts` to q: (k,) in the order of its candidates, or (replicates, k)
where it is random and was asked several times. NaN stands for a candidate that it did not look at. One that knows what
it cost gives an `Answered`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from scone.errors import InputError
from scone.evaluate.agreement import Bin, calibration, disattenuate, lift, reliability, within_step_correlation
from scone.evaluate.metrics import Interval, bootstrap
from scone.evaluate.rollouts import Rollouts

__all__ = ["Answered", "Audit", "Estimator", "Row", "audit"]


class Answered(NamedTuple):
    """q of a step's candidates, and what one estimate of it took."""

    q: np.ndarray  # (replicates, k)
    seconds: float
    lm_rows: float = float("nan")  # rows that the LM read for the lookahead
    verifier_rows: float = float("nan")


Estimator = Callable[[Rollouts], "np.ndarray | Answered"]

TARGET_ROLLOUTS = 64  # the rest of what is stored is kept apart for the `rollouts:n` rows


@dataclass(frozen=True)
class Row:
    """What the audit says about one estimator."""

    name: str
    correlation: float  # rank correlation within a step, averaged over steps
    corrected: Interval  # the same against noiseless targets; the interval is over prompts
    difference: Interval  # corrected, less that of the first row, step by step
    by_place: dict[str, float]  # corrected, at the start, in the middle and near the end of a text
    error: float  # mean |q - mean φ of the rollouts|
    lift: float  # by how much one token reweighed by q raises the expected φ
    covered: float  # share of the candidates that have a q
    seconds: float  # per step
    lm_rows: float  # per step
    verifier_rows: float
    curve: list[Bin] = field(default_factory=list)


@dataclass(frozen=True)
class Audit:
    """The rows, and how far the rollouts themselves can be trusted."""

    rows: list[Row]
    steps: int
    rollouts: int
    reliability: float
    reliability_by_place: dict[str, float]
    best_lift: float  # of a q that is as good as half of the rollouts


def audit(
    stored: Sequence[Rollouts], phis: Sequence[np.ndarray], estimators: Mapping[str, Estimator], *,
    target_rollouts: int = TARGET_ROLLOUTS, say: Callable[[str], None] = lambda line: None,
) -> Audit:  # fmt: skip
    """Ask every estimator for every step, and compare.

    phis: per step (k, R), φ of every rollout, as `score_rollouts` gives them; the first `target_rollouts` are the truth.
    """
    if not stored:
        raise InputError("stored must have at least one step, got none")
    fewest = min(phi.shape[1] for phi in phis)
    if fewest < target_rollouts:
        raise InputError(f"stored must have at least {target_rollouts} rollouts a candidate, got {fewest}")
    truths = [phi[:, :target_rollouts] for phi in phis]
    places = [rollouts.step.place for rollouts in stored]
    by_place = {
        place: reliability([truth for truth, here in zip(truths, places) if here == place])
        for place in dict.fromkeys(places)
    }
    overall = reliability(truths)
    rows = []
    first: np.ndarray | None = None
    for name, estimator in estimators.items():
        answers = [_ask(name, estimator, rollouts) for rollouts in stored]
        row, per_step = _row(name, answers, stored, truths, overall, by_place, first)
        first = per_step if first is None else first
        rows.append(row)
        say(_line(row))
    return Audit(rows, len(stored), target_rollouts, overall, by_place, _lift_of_halves(stored, truths))


def _ask(name: str, estimator: Estimator, rollouts: Rollouts) -> Answered:
    began = time.perf_counter()
    found = estimator(rollouts)
    if not isinstance(found, Answered):
        q = np.atleast_2d(np.asarray(found, dtype=np.float64))
        found = Answered(q, (time.perf_counter() - began) / len(q))  # one estimate, not all replicates
    if found.q.shape[1] != len(rollouts.step.candidates):
        raise InputError(f"estimator {name} must give {len(rollouts.step.candidates)} values, got {found.q.shape[1]}")
    return found


def _row(
    name: str, answers: Sequence[Answered], stored: Sequence[Rollouts], truths: Sequence[np.ndarray], trust: float,
    trust_by_place: Mapping[str, float], first: np.ndarray | None,
) -> tuple[Row, np.ndarray]:  # fmt: skip
    """The row of an estimator, and its rank correlation at each step (steps,); `first` is that of the first row."""
    estimates = [answer.q for answer in answers]
    targets = [truth.mean(1) for truth in truths]
    asked = [~np.isnan(q).any(0) for q in estimates]  # (k,) each
    seen = [q[:, here] for q, here in zip(estimates, asked)]
    seen_targets = [target[here] for target, here in zip(targets, asked)]
    per_step = within_step_correlation(seen, seen_targets)
    gains = [
        lift(q, rollouts.log_p[here], target)
        for q, here, rollouts, target in zip(seen, asked, stored, seen_targets)
        if here.any()
    ]
    flat_q = np.concatenate([q.ravel() for q in seen])
    flat_target = np.concatenate([np.tile(target, q.shape[0]) for q, target in zip(seen, seen_targets)])

    place_values: dict[str, float] = {}
    for place, place_trust in trust_by_place.items():
        here_values = np.array([r for r, rollouts in zip(per_step, stored) if rollouts.step.place == place])
        usable = np.isfinite(here_values).any()
        place_values[place] = disattenuate(float(np.nanmean(here_values)), place_trust) if usable else float("nan")
    row = Row(
        name=name,
        correlation=float(np.nanmean(per_step)),
        corrected=_over_prompts(per_step, stored, trust),
        difference=_over_prompts(per_step - (per_step if first is None else first), stored, trust),
        by_place=place_values,
        error=float(np.abs(flat_q - flat_target).mean()),
        lift=float(np.mean(gains)),
        covered=float(np.mean(np.concatenate(asked))),
        seconds=float(np.mean([answer.seconds for answer in answers])),
        lm_rows=float(np.mean([answer.lm_rows for answer in answers])),
        verifier_rows=float(np.mean([answer.verifier_rows for answer in answers])),
        curve=calibration(flat_q, flat_target),
    )
    return row, per_step


def _over_prompts(per_step: np.ndarray, stored: Sequence[Rollouts], trust: float) -> Interval:
    """The corrected mean of a number for each step, with an interval over the prompts that the steps are of."""
    prompts = np.array([rollouts.step.prompt for rollouts in stored])
    members = [np.flatnonzero(prompts == one) for one in dict.fromkeys(prompts.tolist())]

    def corrected(drawn: np.ndarray) -> float:
        chosen = per_step[np.concatenate([members[i] for i in drawn])]
        return disattenuate(float(np.nanmean(chosen)), trust) if np.isfinite(chosen).any() else float("nan")

    return bootstrap(corrected, len(members))


def _lift_of_halves(stored: Sequence[Rollouts], truths: Sequence[np.ndarray]) -> float:
    """Reweigh by one half of the rollouts, judge by the other, both ways: no estimate can hope for much more."""
    gains = []
    for rollouts, truth in zip(stored, truths):
        one, other = truth[:, ::2].mean(1), truth[:, 1::2].mean(1)
        gains += [lift(one, rollouts.log_p, other), lift(other, rollouts.log_p, one)]
    return float(np.mean(gains))


def _line(row: Row) -> str:
    return (
        f"{row.name}: corrected {row.corrected.value:.2f} [{row.corrected.low:.2f}, {row.corrected.high:.2f}], "
        f"error {row.error:.3f}, lift {row.lift:+.3f}, {row.seconds:.2f}s a step"
    )
