"""Whether asynchronous Gibbs reaches the right distribution, where it can be computed: the Potts chain."""

import math

import pytest
import torch
from potts import Potts, bound, pairs, total_variation

from scone.lookahead.pool import GibbsPool, GibbsRun, draw_from_head

ROWS, SWEEPS = 4000, 12
CHANCE = 1e-6  # that noise alone breaks one of the comparisons


@pytest.fixture(scope="module")
def potts() -> Potts:
    return Potts(torch.randn(6, 3, generator=torch.Generator().manual_seed(7)) * 0.5, coupling=0.3)


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # tensors here are too small to share
    yield
    torch.set_num_threads(before)


def pool_for(potts: Potts, **options) -> GibbsPool:
    positions, states = potts.shape
    return GibbsPool(potts.logits, draw_from_head(torch.eye(states)), iterations=SWEEPS * positions, **options)


def beginning(potts: Potts) -> torch.Tensor:
    return torch.zeros(ROWS, potts.shape[0], dtype=torch.int64)


def margin(exact: torch.Tensor) -> torch.Tensor:
    """(T - 1,): how far the frequencies of ROWS independent chains can be from their distribution, in total variation.

    The mean distance is at most half the sum of the standard errors, and it is exceeded by d with a probability of at
    most exp(-2 ROWS d^2) (McDiarmid: one row moves the distance by at most 1 / ROWS).
    """
    mean = (exact * (1 - exact) / ROWS).sqrt().sum((1, 2)) / 2
    return mean + math.sqrt(-math.log(CHANCE) / (2 * ROWS))


def distance(potts: Potts, run: GibbsRun) -> torch.Tensor:
    """(T - 1,): total variation between the run's last states and the exact distribution, pair by pair."""
    return total_variation(pairs(run.tokens, potts.shape[1], torch.full((ROWS,), 1 / ROWS).double()), potts.exact())


def limit(potts: Potts, run: GibbsRun) -> torch.Tensor:
    """(T - 1,): the bound on that distance from the run's own schedule."""
    versions = torch.zeros_like(run.tokens)
    for update in run.schedule:
        versions.scatter_reduce_(1, update.starts, update.wrote[..., 0], "amax")
    return bound(potts.influence(), run.schedule, versions)


@pytest.mark.parametrize("schedule", ["systematic", "uniform"])
def test_one_worker_reaches_the_exact_distribution(potts, schedule):
    run = pool_for(potts, schedule=schedule).run(beginning(potts), seed=torch.arange(ROWS), record=True)
    assert limit(potts, run).max() < 0.005  # what is left of the beginning: without staleness there is nothing else
    assert (distance(potts, run) <= margin(potts.exact()) + limit(potts, run)).all()
    assert run.stats.staleness.tolist() == [run.stats.updates] and run.stats.overwritten == 0


@pytest.mark.parametrize("schedule", ["systematic", "uniform"])
@pytest.mark.parametrize("workers", [1, 2, 4, 8])
def test_hogwild_stays_within_the_bound_of_its_own_staleness(potts, workers, schedule, capsys):
    pool = pool_for(potts, workers=workers, schedule=schedule)
    run = pool.run(beginning(potts), seed=torch.arange(ROWS), record=True)
    found, allowed, noise = distance(potts, run), limit(potts, run), margin(potts.exact())
    with capsys.disabled():
        print(
            f"\n{schedule:<10} workers {workers}: total variation {found.max():.4f} (noise up to {noise.max():.4f}), "
            f"bound {allowed.max():.4f}, staleness {run.stats.mean_staleness:.2f}, overwritten {run.stats.overwritten}",
            end="",
        )
    assert (found <= allowed + noise).all()


def test_staleness_does_bias_and_the_bound_knows_it(potts):
    """A snapshot that is kept for a whole sweep makes neighbours independent: far off, and the bound says how far."""
    strong = Potts(potts.field, coupling=1.2)
    begin, seed = beginning(strong), torch.arange(ROWS)
    stale = pool_for(strong, sync_every=strong.shape[0]).run(begin, seed=seed, record=True)
    fresh = pool_for(strong).run(begin, seed=seed)
    noise = margin(strong.exact())
    assert (distance(strong, fresh) <= noise).all()
    assert (distance(strong, stale) > noise).any()
    assert (distance(strong, stale) <= limit(strong, stale) + noise).all()
    assert stale.stats.mean_staleness == pytest.approx((strong.shape[0] - 1) / 2)
