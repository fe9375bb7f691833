"""The worker pool: what it computes, that a recorded run replays bit for bit, and how it ends when something goes wrong."""

import signal
import subprocess
import sys
import textwrap
import threading
import time
import traceback

import pytest
import torch
from potts import Potts

from scone.errors import ConfigError, InputError
from scone.lookahead.pool import GibbsPool, draw_from_head

STATES, POSITIONS = 11, 9


@pytest.fixture(autouse=True)
def nothing_is_left():
    """No thread, and no change of torch's number of threads: one, because tensors here are too small to share."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("gibbs")]
    assert torch.get_num_threads() == 1
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def model() -> Potts:
    return Potts(torch.randn(POSITIONS, STATES, generator=torch.Generator().manual_seed(1)), coupling=1.0)


@pytest.fixture(scope="module")
def draw():
    return draw_from_head(torch.eye(STATES))


def slowly(model: Potts):
    """The same conditionals with a pause, so that other workers write in between."""

    def conditionals(tokens, rows, positions):
        time.sleep(0.001)
        return model.logits(tokens, rows, positions)

    return conditionals


def tokens_of(rows: int) -> torch.Tensor:
    return torch.randint(0, STATES, (rows, POSITIONS), generator=torch.Generator().manual_seed(rows))


def test_one_worker_is_plain_gibbs(model, draw):
    """Against a loop that knows nothing of states, plans and turns."""
    tokens, seed, block = tokens_of(3), torch.tensor([5, 6, 5]), 2
    run = GibbsPool(model.logits, draw, iterations=7, block=block).run(tokens, seed=seed)
    expected = tokens.clone()
    for i in range(7):
        start = min(i % 5 * block, POSITIONS - block)
        positions = torch.arange(start, start + block).expand(3, block)
        hidden = model.logits(expected, torch.arange(3), positions)
        new = draw(hidden, seed=seed.repeat_interleave(block), counter=((i << 16) + positions).flatten())
        expected.scatter_(1, positions, new.view(3, block))
    assert torch.equal(run.tokens, expected)
    assert run.stats.updates == 21 and run.stats.never_reached == 0 and run.schedule is None


OPTIONS = [
    {"workers": 2},
    {"workers": 4, "block": 2, "schedule": "uniform"},
    {"workers": 8, "sync_every": 3},
    {"workers": 3, "block": 3, "schedule": "uniform", "sync_every": 2, "batch": 2},
    {"workers": 1, "batch": 2, "sync_every": 2},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_a_recorded_run_replays_bit_for_bit(model, draw, options):
    pool = GibbsPool(slowly(model), draw, iterations=40, **options)
    tokens, seed = tokens_of(5), torch.arange(5)
    run = pool.run(tokens, seed=seed, record=True)
    again = pool.replay(tokens, run.schedule, seed=seed)
    assert torch.equal(again.tokens, run.tokens)
    assert again.stats.overwritten == run.stats.overwritten
    assert torch.equal(again.stats.staleness, run.stats.staleness)
    if options["workers"] > 1 and "batch" not in options:
        assert run.stats.mean_staleness > 0  # or this test would show nothing
        alone = GibbsPool(model.logits, draw, iterations=40, **options | {"workers": 1}).run(tokens, seed=seed)
        assert alone.tokens.shape == run.tokens.shape
    assert {update.worker for update in run.schedule} <= set(range(options["workers"]))


def test_a_schedule_survives_saving(model, draw, tmp_path):
    pool = GibbsPool(slowly(model), draw, workers=3, iterations=20)
    run = pool.run(tokens_of(2), seed=3, record=True)
    torch.save([tuple(update) for update in run.schedule], tmp_path / "schedule.pt")
    saved = [type(run.schedule[0])(*parts) for parts in torch.load(tmp_path / "schedule.pt")]
    assert torch.equal(pool.replay(tokens_of(2), saved, seed=3).tokens, run.tokens)


def test_a_schedule_of_another_run_is_refused(model, draw):
    pool = GibbsPool(model.logits, draw, iterations=4)
    run = pool.run(tokens_of(2), seed=0, record=True)
    with pytest.raises(InputError, match="schedule must hold the 4 updates of this run, got 3"):
        pool.replay(tokens_of(2), run.schedule[:3], seed=0)


def test_draws_depend_on_seed_and_number_only(model, draw):
    """Not on the batch, nor on other rows: a row by itself ends where it ends among others."""
    tokens, seed = tokens_of(6), torch.tensor([1, 2, 3, 1, 2, 3])
    together = GibbsPool(model.logits, draw, iterations=30, schedule="uniform").run(tokens, seed=seed).tokens
    apart = GibbsPool(model.logits, draw, iterations=30, schedule="uniform", batch=1).run(tokens, seed=seed).tokens
    alone = GibbsPool(model.logits, draw, iterations=30, schedule="uniform").run(tokens[4:5], seed=2).tokens
    assert torch.equal(together, apart) and torch.equal(together[4:5], alone)


def test_coupled_rows_stay_together(model, draw):
    tokens = tokens_of(1).repeat(3, 1)
    run = GibbsPool(model.logits, draw, iterations=20, schedule="uniform").run(tokens, seed=torch.tensor([7, 7, 8]))
    assert torch.equal(run.tokens[0], run.tokens[1]) and not torch.equal(run.tokens[0], run.tokens[2])


def test_a_run_in_two_halves_is_the_whole_run(model, draw):
    whole = GibbsPool(model.logits, draw, iterations=20, block=2).run(tokens_of(2), seed=0).tokens
    half = GibbsPool(model.logits, draw, iterations=10, block=2)
    middle = half.run(tokens_of(2), seed=0).tokens
    assert torch.equal(half.run(middle, seed=0, first=10).tokens, whole)


@pytest.mark.parametrize("schedule", ["systematic", "uniform"])
def test_only_the_span_changes(model, draw, schedule):
    tokens = torch.full((2, POSITIONS), STATES - 1)
    begin, length = torch.tensor([2, 5]), torch.tensor([5, 3])
    flat = draw_from_head(torch.eye(STATES), keep=torch.arange(STATES) < STATES - 1)
    pool = GibbsPool(model.logits, flat, workers=2, iterations=60, block=2, schedule=schedule)
    run = pool.run(tokens, seed=torch.tensor([0, 1]), span=(begin, length))
    changed = run.tokens != STATES - 1
    place = torch.arange(POSITIONS)
    assert torch.equal(changed, (place >= begin[:, None]) & (place < (begin + length)[:, None]))
    assert run.stats.never_reached == 0


def test_positions_that_no_block_reaches_are_counted(model, draw):
    run = GibbsPool(model.logits, draw, workers=2, iterations=2, block=2).run(tokens_of(3), seed=0)
    assert run.stats.updates == 6 and run.stats.never_reached == 3 * (POSITIONS - 4)


def test_stats_agree_with_the_schedule(model, draw):
    run = GibbsPool(slowly(model), draw, workers=4, iterations=50, block=2, schedule="uniform").run(
        tokens_of(2), seed=0, record=True
    )
    behind = torch.cat([update.staleness.sum(2).flatten() for update in run.schedule])
    assert run.stats.staleness.tolist() == torch.bincount(behind).tolist()
    assert run.stats.mean_staleness == pytest.approx(behind.double().mean().item())
    written = {}
    for update in run.schedule:
        for row in range(2):
            for at, version in zip(update.positions[row].flatten().tolist(), update.wrote[row].flatten().tolist()):
                assert (row, at, version) not in written
                written[row, at, version] = update
    unseen = sum(
        (row, at, version - 1 - k) in written
        for (row, at, version), update in written.items()
        for k in range(version - 1 - int(update.read[row, at]))
    )
    assert run.stats.overwritten == unseen


def test_no_rows_and_no_iterations(model, draw):
    assert GibbsPool(model.logits, draw, workers=2, iterations=0).run(tokens_of(2), seed=0).stats.updates == 0
    nothing = torch.zeros(0, POSITIONS, dtype=torch.int64)
    assert GibbsPool(model.logits, draw, workers=2, iterations=3).run(nothing, seed=0).tokens.shape == (0, POSITIONS)


def test_an_exception_in_a_worker_stops_the_others_and_surfaces(model, draw):
    calls = []

    def breaks_at_the_fifth(tokens, rows, positions):
        calls.append(threading.current_thread())
        if len(calls) == 5:
            raise ZeroDivisionError("the fifth")
        time.sleep(0.001)
        return model.logits(tokens, rows, positions)

    with pytest.raises(ZeroDivisionError, match="the fifth") as caught:
        GibbsPool(breaks_at_the_fifth, draw, workers=4, iterations=10_000).run(tokens_of(1), seed=0)
    assert "breaks_at_the_fifth" in "".join(traceback.format_tb(caught.value.__traceback__))
    assert len(calls) < 1000


def test_ctrl_c_ends_at_once_and_leaves_no_thread():
    script = textwrap.dedent("""
        import sys, threading, time, torch
        from scone.lookahead.pool import GibbsPool, draw_from_head

        def conditionals(tokens, rows, positions):
            sys.stdout.write("working\\n")
            sys.stdout.flush()
            time.sleep(0.01)
            return torch.zeros(positions.numel(), 3)

        try:
            GibbsPool(conditionals, draw_from_head(torch.eye(3)), workers=4, iterations=10**5).run(
                torch.zeros(1, 5, dtype=torch.int64), seed=0)
        except KeyboardInterrupt:
            print("interrupted", threading.active_count(), flush=True)
    """)
    process = subprocess.Popen(
        [sys.executable, "-c", script],
        stdout=subprocess.PIPE,
        text=True,
        # A shell's background job inherits an ignored SIGINT, and Python leaves that as it is.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    try:
        assert process.stdout.readline() == "working\n"
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=60)
    finally:
        process.kill()
    assert out.splitlines()[-1] == "interrupted 1" and process.returncode == 0


@pytest.mark.parametrize(
    ("option", "value"),
    [("workers", 0), ("iterations", -1), ("block", 0), ("sync_every", 1.5), ("batch", 0), ("threads", True)],
)
def test_bad_options_are_named(model, draw, option, value):
    with pytest.raises(ConfigError, match=f"{option} must be an integer, . or more, got {value}"):
        GibbsPool(model.logits, draw, **{option: value})
    with pytest.raises(ConfigError, match="schedule must be 'systematic' or 'uniform', got 'random'"):
        GibbsPool(model.logits, draw, schedule="random")


def test_bad_arguments_of_a_run_are_named(model, draw):
    pool = GibbsPool(model.logits, draw, iterations=1, block=4)
    two = torch.tensor([2, 2])
    with pytest.raises(InputError, match=r"tokens must be a tensor \(rows, positions\), got \(3,\)"):
        pool.run(torch.zeros(3).long(), seed=0)
    with pytest.raises(InputError, match=r"must hold a position at least .* got begin"):
        pool.run(tokens_of(2), seed=0, span=(two, two * 0))
    with pytest.raises(InputError, match="blocks of 4 included, within 9 positions"):
        pool.run(tokens_of(2), seed=0, span=(two * 3, two))
    with pytest.raises(InputError, match=r"length of span must be int64 \(2,\)"):
        pool.run(tokens_of(2), seed=0, span=(two, two.float()))
    with pytest.raises(InputError, match=r"seed must be an int or have shape \(2,\), got \(3,\)"):
        pool.run(tokens_of(2), seed=torch.arange(3))
    with pytest.raises(InputError, match=r"conditionals must return \(8, H\) head inputs, got \(1, 3\)"):
        GibbsPool(lambda *_: torch.zeros(1, 3), draw, iterations=1, block=4).run(tokens_of(2), seed=0)
