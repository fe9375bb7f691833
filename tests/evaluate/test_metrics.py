"""Metrics on cases worked out by hand."""

import numpy as np
import pytest

from scone.evaluate import metrics

NAN = float("nan")
PHI = np.array([[0.9, 0.8, 0.4], [0.2, 0.1, 0.3], [NAN, 0.9, 1.0]])


def test_average_leaves_missing_out():
    assert metrics.average(PHI) == pytest.approx((0.9 + 0.8 + 0.4 + 0.2 + 0.1 + 0.3 + 0.9 + 1.0) / 8)
    assert metrics.missing(PHI) == 1
    assert np.isnan(metrics.average(np.full((2, 2), NAN)))


def test_worst_score_counts_missing_as_zero():
    assert metrics.worst_score(PHI) == pytest.approx((0.4 + 0.1 + 0.0) / 3)


def test_best_score():
    assert metrics.best_score(PHI) == pytest.approx((0.9 + 0.3 + 1.0) / 3)
    assert metrics.best_score(np.full((1, 3), NAN)) == 0.0


@pytest.mark.parametrize(
    ("share", "expected"),
    [(None, 2 / 3), (0.5, 2 / 3), (0.9, 0.0), (2 / 3, 2 / 3)],
)
def test_constraint_probability(share, expected):
    # satisfied at 0.8: 2 of 3, 0 of 3, 2 of 3 (the missing one is no success)
    assert metrics.constraint_probability(PHI, 0.8, share=share) == pytest.approx(expected)


def test_nine_of_ten_are_ninety_percent():
    nine = np.array([[0.9] * 9 + [0.1]])
    eight = np.array([[0.9] * 8 + [0.1, NAN]])
    assert metrics.constraint_probability(nine, 0.8, share=0.9) == 1.0
    assert metrics.constraint_probability(eight, 0.8, share=0.9) == 0.0


def test_all_missing_is_never_a_success():
    nothing = np.full((4, 10), NAN)
    assert metrics.constraint_probability(nothing, 0.0) == 0.0
    assert metrics.worst_score(nothing) == 0.0


def test_corpus_perplexity_weighs_tokens():
    nll = np.array([[np.log(2) * 3, np.log(8) * 1], [NAN, 0.0]])
    tokens = np.array([[3, 1], [5, 0]])
    assert metrics.corpus_perplexity(nll, tokens) == pytest.approx(np.exp((3 * np.log(2) + np.log(8)) / 4))


def test_distinct_and_repetition():
    # bigrams: the film, film the, the film | the end -> 4, of which 3 differ
    assert metrics.distinct_n(["The film, the film!", "the end"], 2) == pytest.approx(3 / 4)
    assert np.isnan(metrics.distinct_n(["word"], 2))
    # trigrams of a b c a b c a: abc bca cab abc bca -> 3 different of 5
    assert metrics.repetition("a b c a b c a") == pytest.approx(1 - 3 / 5)
    assert metrics.repetition("too short") == 0.0


def test_bootstrap_of_equal_prompts_has_no_width():
    phi = np.full((20, 4), 0.7)
    interval = metrics.bootstrap(lambda rows: metrics.average(phi[rows]), 20)
    assert interval == pytest.approx((0.7, 0.7, 0.7))


def test_bootstrap_matches_the_normal_interval():
    values = np.random.default_rng(1).normal(size=400)
    interval = metrics.bootstrap(lambda rows: float(values[rows].mean()), 400, draws=4000)
    half = 1.96 * values.std() / np.sqrt(400)
    assert interval.value == pytest.approx(values.mean())
    assert interval.low == pytest.approx(values.mean() - half, abs=0.01)
    assert interval.high == pytest.approx(values.mean() + half, abs=0.01)
