"""Metrics of controlled generation, on plain arrays.

Everywhere `phi` is (prompts, samples): the verifier's probability of the *target*, NaN where a generation failed or is
empty. Such a missing generation is never a success: it does not satisfy the constraint, and it is the worst of its
prompt. Only the average leaves it out, and the number of missing ones is reported beside it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

__all__ = [
    "Interval",
    "average",
    "best_score",
    "bootstrap",
    "constraint_probability",
    "corpus_perplexity",
    "distinct_n",
    "missing",
    "repetition",
    "satisfied",
    "worst_score",
]


class Interval(NamedTuple):
    """A value and the ends of its 95 % confidence interval."""

    value: float
    low: float
    high: float


def average(phi: np.ndarray) -> float:
    """Mean over all generations that exist; NaN when there is none.

    >>> average(np.array([[0.5, 1.0], [np.nan, 0.0]]))
    0.5
    """
    present = phi[~np.isnan(phi)]
    return float(present.mean()) if present.size else float("nan")


def missing(phi: np.ndarray) -> int:
    """How many generations failed or are empty."""
    return int(np.isnan(phi).sum())


def worst_score(phi: np.ndarray) -> float:
    """Expected worst score: the lowest of a prompt's samples, averaged over prompts; a missing sample counts as 0.

    >>> worst_score(np.array([[0.5, 1.0], [np.nan, 0.75]]))
    0.25
    """
    return _mean(np.nan_to_num(phi, nan=0.0).min(axis=1)) if phi.size else float("nan")


def best_score(phi: np.ndarray) -> float:
    """Expected best score: the highest of a prompt's samples, averaged over prompts (the paper's toxify column)."""
    return _mean(np.nan_to_num(phi, nan=0.0).max(axis=1)) if phi.size else float("nan")


def satisfied(phi: np.ndarray, threshold: float) -> np.ndarray:
    """(prompts, samples) bool: the target is reached, `phi >= threshold`; false where missing."""
    return np.nan_to_num(phi, nan=-1.0) >= threshold


def constraint_probability(phi: np.ndarray, threshold: float, *, share: float | None = None) -> float:
    """Share of the prompts of which at least one sample, or at least `share` of the samples, satisfy the constraint.

    >>> phi = np.array([[0.9, 0.2], [0.9, 0.9], [0.1, 0.1], [0.1, np.nan]])
    >>> constraint_probability(phi, 0.8), constraint_probability(phi, 0.8, share=0.9)
    (0.5, 0.25)
    """
    if not phi.size:
        return float("nan")
    hits = satisfied(phi, threshold).sum(axis=1)
    # The small slack keeps 9 of 10 above a share of 0.9 in spite of rounding.
    wanted = 1 if share is None else share * phi.shape[1] - 1e-9
    return _mean(hits >= wanted)


def corpus_perplexity(nll: np.ndarray, tokens: np.ndarray) -> float:
    """exp(total negative log-likelihood / total tokens) over the generations that exist (NaN: missing)."""
    here = ~np.isnan(nll) & (tokens > 0)
    return float(np.exp(nll[here].sum() / tokens[here].sum())) if here.any() else float("nan")


def words(text: str) -> list[str]:
    """Lower-cased words, without punctuation: the units of `distinct_n` and `repetition`."""
    return re.findall(r"[\w']+", text.lower())


def distinct_n(texts: Sequence[str], n: int) -> float:
    """Different n-grams divided by all n-grams, over the texts together; NaN when there are none.

    >>> distinct_n(["a b a", "a b"], 2)     # a b, b a, a b
    0.6666666666666666
    """
    grams = [gram for text in texts for gram in _ngrams(words(text), n)]
    return len(set(grams)) / len(grams) if grams else float("nan")


def repetition(text: str, n: int = 3) -> float:
    """Share of a text's n-grams that already stood in it; 0 for a text too short to have two.

    >>> repetition("so good so good so good", n=2)      # 5 bigrams, 2 different
    0.6
    """
    grams = _ngrams(words(text), n)
    return 1.0 - len(set(grams)) / len(grams) if grams else 0.0


def bootstrap(
    statistic: Callable[[np.ndarray], float], prompts: int, *, draws: int = 1000, seed: int = 0, level: float = 0.95
) -> Interval:
    """Confidence interval of `statistic(indices of prompts)`, by drawing the prompts again with replacement.

    The samples of a prompt resemble each other, so prompts, not samples, are what is drawn. No draws, no interval.
    """
    if not prompts:
        return Interval(float("nan"), float("nan"), float("nan"))
    value = float(statistic(np.arange(prompts)))
    if not draws:
        return Interval(value, float("nan"), float("nan"))
    generator = np.random.default_rng(seed)
    values = [statistic(generator.integers(0, prompts, prompts)) for _ in range(draws)]
    tail = 100 * (1 - level) / 2
    finite = [value for value in values if np.isfinite(value)] or [float("nan")]
    low, high = np.percentile(finite, [tail, 100 - tail])
    return Interval(value, float(low), float(high))


def _ngrams(tokens: Sequence[str], n: int) -> list[tuple[str, ...]]:
    return [tuple(tokens[i : i + n]) for i in range(len(tokens) - n + 1)]


def _mean(values: np.ndarray) -> float:
    return float(np.mean(values))
