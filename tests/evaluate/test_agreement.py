"""Rank correlation, reliability and lift, against scipy and on cases whose answer is known."""

import numpy as np
import pytest
from scipy import stats

from scone.evaluate import agreement

RNG = np.random.default_rng(0)


@pytest.mark.parametrize("ties", [False, True])
def test_rank_correlation_matches_scipy(ties):
    for _ in range(20):
        x, y = RNG.normal(size=10), RNG.normal(size=10)
        if ties:
            x, y = np.round(x), np.round(y)
        assert agreement.rank_correlation(x, y) == pytest.approx(stats.spearmanr(x, y).statistic)


def test_constants():
    assert agreement.rank_correlation(np.ones(4), np.arange(4)) == 0.0
    assert np.isnan(agreement.rank_correlation(np.arange(4), np.ones(4)))


def test_replicates_are_averaged():
    target = np.array([0.1, 0.2, 0.3])
    both = np.stack([target, -target])
    assert agreement.within_step_correlation([both], [target]) == pytest.approx([0.0])


def test_reliability_is_one_without_noise_and_nil_with_nothing_else():
    signal = np.linspace(0.1, 0.9, 10)[:, None]
    assert agreement.reliability([np.repeat(signal, 8, axis=1)]) == pytest.approx(1.0)
    noise = [RNG.normal(size=(10, 64)) for _ in range(60)]
    assert abs(agreement.reliability(noise)) < 0.15


def test_disattenuated_correlation_is_that_with_the_noiseless_target():
    """Noisy targets lower the measured correlation; the correction brings back the true one."""
    phis, estimates, truths = [], [], []
    for _ in range(300):
        truth = RNG.uniform(0.2, 0.8, 10)
        phis.append(RNG.binomial(1, truth[:, None], (10, 16)).astype(float))
        estimates.append(truth + RNG.normal(0, 0.15, 10))
        truths.append(truth)
    true = agreement.within_step_correlation(estimates, truths).mean()
    measured = np.nanmean(agreement.within_step_correlation(estimates, [phi.mean(1) for phi in phis]))
    corrected = agreement.disattenuate(measured, agreement.reliability(phis, splits=10))
    assert measured < true - 0.05
    assert corrected == pytest.approx(true, abs=0.03)


def test_lift_by_hand():
    # p = (1/4, 3/4), φ = (0.8, 0.4): plain 0.5; weights 0.25·0.5 and 0.75·0.25 -> (0.1 + 0.075) / 0.3125 = 0.56
    log_p = np.log([0.25, 0.75])
    assert agreement.lift(np.array([0.5, 0.25]), log_p, np.array([0.8, 0.4])) == pytest.approx(0.06)
    assert agreement.lift(np.array([0.3, 0.3]), log_p, np.array([0.8, 0.4])) == pytest.approx(0.0)


def test_calibration_bins():
    bins = agreement.calibration(np.array([0.05, 0.15, 0.11, 1.0]), np.array([0.0, 0.2, 0.4, 0.9]))
    assert [(round(b.estimate, 3), round(b.target, 3), b.size) for b in bins] == [
        (0.05, 0.0, 1),
        (0.13, 0.3, 2),
        (1.0, 0.9, 1),
    ]
