"""How well estimates agree with noisy rollouts, on plain arrays.

A step has k candidates. `target` is (k,): the mean φ of each candidate's rollouts. `phi` is (k, rollouts): the single
ones. An estimate is (k,), or (replicates, k) where the estimator is random and was asked several times.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

__all__ = [
    "Bin",
    "calibration",
    "disattenuate",
    "lift",
    "rank_correlation",
    "ranks",
    "reliability",
    "spearman_brown",
    "within_step_correlation",
]


def ranks(values: np.ndarray) -> np.ndarray:
    """Ranks from 0, ties share their mean.

    >>> ranks(np.array([0.3, 0.1, 0.3])).tolist()
    [1.5, 0.0, 1.5]
    """
    below = (values[None, :] < values[:, None]).sum(axis=1)
    equal = (values[None, :] == values[:, None]).sum(axis=1)
    return below + (equal - 1) / 2


def rank_correlation(estimate: np.ndarray, target: np.ndarray) -> float:
    """Spearman's ρ. A constant estimate knows nothing: 0. A constant target cannot be ranked: NaN."""
    x, y = ranks(np.asarray(estimate, float)), ranks(np.asarray(target, float))
    if y.std() == 0:
        return float("nan")
    if x.std() == 0:
        return 0.0
    return float(np.mean((x - x.mean()) * (y - y.mean())) / (x.std() * y.std()))


def within_step_correlation(estimates: Sequence[np.ndarray], targets: Sequence[np.ndarray]) -> np.ndarray:
    """(steps,): rank correlation inside each step, averaged over the replicates of an estimate.

    Ranking inside a step is what decoding does; correlation over all steps together would mostly measure
    whether the estimator can tell prompts apart.
    """
    return np.array(
        [
            np.mean([rank_correlation(replicate, target) for replicate in np.atleast_2d(estimate)])
            for estimate, target in zip(estimates, targets)
        ]
    )


def spearman_brown(half: float) -> float:
    """Reliability of the whole, from the correlation of its halves.

    >>> spearman_brown(0.5)
    0.6666666666666666
    """
    return 2 * half / (1 + half)


def reliability(phis: Sequence[np.ndarray], *, splits: int = 20, seed: int = 0) -> float:
    """How well the mean of the rollouts ranks the candidates of a step: 1 for no noise, 0 for nothing but noise.

    The rollouts of each candidate are split into random halves; the rank correlation of the halves' means is averaged
    over splits and steps, and Spearman-Brown gives that of the full number.
    """
    generator = np.random.default_rng(seed)
    halves = []
    for phi in phis:
        for _ in range(splits):
            # Each candidate is shuffled on its own: rollouts with the same index share nothing.
            shuffled = generator.permuted(phi, axis=1)
            middle = phi.shape[1] // 2
            halves.append(rank_correlation(shuffled[:, :middle].mean(1), shuffled[:, middle : 2 * middle].mean(1)))
    return spearman_brown(float(np.nanmean(halves)))


def disattenuate(correlation: float, target_reliability: float) -> float:
    """The correlation that the estimate would have with noiseless targets. NaN where the targets are only noise."""
    return correlation / np.sqrt(target_reliability) if target_reliability > 0 else float("nan")


def lift(estimate: np.ndarray, log_p: np.ndarray, target: np.ndarray, strength: float = 1.0) -> float:
    """How much one reweighed token raises the expected φ: `E_{p q^strength}[target] - E_p[target]`.

    Two candidates with p = 1/2 and true φ 0.2 and 0.8; the right q moves the expectation from 0.5 to 0.68:

    >>> truth = np.array([0.2, 0.8])
    >>> round(lift(truth, np.log([0.5, 0.5]), truth), 2)
    0.18
    """
    gains = []
    for q in np.atleast_2d(estimate):
        weights = np.exp(log_p - log_p.max()) * np.clip(q, 1e-4, 1.0) ** strength
        plain = np.exp(log_p - log_p.max())
        gains.append((weights @ target) / weights.sum() - (plain @ target) / plain.sum())
    return float(np.mean(gains))


class Bin(NamedTuple):
    """One point of a calibration curve."""

    estimate: float  # mean q of the bin
    target: float  # mean φ of its rollouts
    size: int


def calibration(estimate: np.ndarray, target: np.ndarray, bins: int = 10) -> list[Bin]:
    """Mean rollout φ for equally wide bins of q; empty bins are left out."""
    index = np.clip((estimate * bins).astype(int), 0, bins - 1)
    return [
        Bin(float(estimate[index == b].mean()), float(target[index == b].mean()), int((index == b).sum()))
        for b in range(bins)
        if (index == b).any()
    ]
