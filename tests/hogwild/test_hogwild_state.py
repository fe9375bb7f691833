"""HogwildState: what a read and a write mean, on each backend, from one thread and from many."""

import gc
import sys
import threading

import pytest
import torch

import scone_kernels
from scone_kernels import HogwildState, Snapshot

BACKENDS = [
    pytest.param(
        "cpu", marks=pytest.mark.skipif(not scone_kernels.status().cpu.live, reason="needs the C++ extension")
    ),
    "reference",
]
pytestmark = pytest.mark.parametrize("backend", BACKENDS)


def ints(*values):
    return torch.tensor(values)


@pytest.mark.parametrize("shape", [(1, 1), (2, 6), (3, 127), (0, 4), (5, 0)])
def test_read_returns_the_tokens_at_version_zero(backend, shape):
    tokens = torch.randint(0, 2**32, shape)
    with HogwildState(tokens, backend=backend) as state:
        assert state.shape == shape and state.backend == backend
        seen = state.read()
    assert torch.equal(seen.tokens, tokens) and torch.equal(seen.versions, torch.zeros_like(tokens))


def test_write_replaces_blocks_and_counts_versions(backend):
    state = HogwildState(torch.arange(12).view(2, 6), backend=backend)
    stale = state.write(ints(1, 0, 1), ints(4, 0, 3), ints([91, 92], [93, 94], [95, 96]), state.read())
    tokens, versions = state.read()
    assert tokens.tolist() == [[93, 94, 2, 3, 4, 5], [6, 7, 8, 95, 96, 92]]
    assert versions.tolist() == [[1, 1, 0, 0, 0, 0], [0, 0, 0, 1, 2, 1]]
    # The third block comes after the first of the same call and replaces part of it.
    assert stale.tolist() == [[0] * 6, [0] * 6, [0, 0, 0, 0, 1, 1]]


def test_staleness_is_counted_at_every_position_of_the_row(backend):
    state = HogwildState(torch.zeros(2, 5, dtype=torch.int64), backend=backend)
    seen = state.read()
    for _ in range(3):
        state.write(ints(1), ints(1), ints([8, 8]), state.read())
    assert state.write(ints(1), ints(2), ints([9]), seen).tolist() == [[0, 3, 3, 0, 0]]
    assert state.write(ints(0), ints(2), ints([9]), seen).tolist() == [[0] * 5]
    assert state.write(ints(1), ints(0), ints([9]), state.read()).tolist() == [[0] * 5]


def test_views_are_read_as_what_they_show(backend):
    state = HogwildState(torch.arange(20).view(4, 5).t(), backend=backend)  # (5, 4)
    rows, starts = torch.arange(10)[::5], torch.tensor([[1, 9], [2, 9]])[:, 0]
    blocks = torch.tensor([[50, 60], [51, 61]]).t()[:, :1]
    state.write(rows[:1], starts[:1], blocks[:1], Snapshot(*(part.t().contiguous().t() for part in state.read())))
    assert state.read().tokens[0].tolist() == [0, 50, 10, 15]


def test_the_largest_token_and_wrapping_versions(backend):
    state = HogwildState(torch.full((1, 2), 2**32 - 1), backend=backend)
    state._words |= -1 << 32  # the last version before it wraps
    seen = state.read()
    assert seen.versions.tolist() == [[2**32 - 1] * 2]
    assert state.write(ints(0), ints(0), ints([2**32 - 1]), seen).tolist() == [[0, 0]]
    assert state.write(ints(0), ints(0), ints([5]), seen).tolist() == [[1, 0]]
    assert state.read().tokens.tolist() == [[5, 2**32 - 1]] and state.read().versions.tolist() == [[1, 2**32 - 1]]


def test_a_part_shares_the_memory_of_its_state(backend):
    state = HogwildState(torch.zeros(6, 3, dtype=torch.int64), backend=backend)
    part = state[2:4]
    part.write(ints(1), ints(0), ints([7]), part.read())
    assert state.read().tokens[3].tolist() == [7, 0, 0] and part.shape == (2, 3)
    assert part.read().tokens.tolist() == [[0] * 3, [7, 0, 0]]
    state.close()
    with pytest.raises(RuntimeError, match="closed"):
        part.read()
    with pytest.raises(TypeError, match="slice"):
        state[::2]


BAD = {
    "rows dtype": (TypeError, "rows must be int64", {"rows": torch.tensor([0], dtype=torch.int32)}),
    "starts dtype": (TypeError, "starts must be int64", {"starts": torch.tensor([0.0])}),
    "tokens dtype": (TypeError, "tokens must be int64", {"tokens": torch.tensor([[1.0]])}),
    "rows a list": (TypeError, "rows must be a tensor, got list", {"rows": [0]}),
    "rows shape": (ValueError, "rows must have", {"rows": ints([0])}),
    "starts shape": (ValueError, "starts must have shape", {"starts": ints(0, 1)}),
    "tokens shape": (ValueError, "tokens must have", {"tokens": ints([1], [2])}),
    "row too high": (ValueError, "within 2 rows of 6 positions, got row 2", {"rows": ints(2)}),
    "row negative": (ValueError, "got row -1", {"rows": ints(-1)}),
    "start negative": (ValueError, "start -1", {"starts": ints(-1)}),
    "block past the end": (ValueError, "start 5 and 2 tokens", {"starts": ints(5), "tokens": ints([1, 2])}),
    "huge start": (ValueError, "start 9223372036854775807", {"starts": ints(2**63 - 1)}),
    "token negative": (ValueError, r"must be in \[0, 2\*\*32\), got .*-1", {"tokens": ints([-1])}),
    "token too large": (ValueError, r"must be in \[0, 2\*\*32\), got .*4294967296", {"tokens": ints([2**32])}),
    "other device": (
        ValueError,
        "tokens must be on cpu.*got meta",
        {"tokens": torch.zeros(1, 1, device="meta").long()},
    ),
    "other snapshot": (
        ValueError,
        "snapshot.versions must have",
        {"snapshot": Snapshot(torch.zeros(1, 6).long(), torch.zeros(1, 6).long())},
    ),
    "no snapshot": (TypeError, "snapshot must be a Snapshot", {"snapshot": torch.zeros(2, 6).long()}),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_raises_and_leaves_the_state_unchanged(backend, case):
    kind, message, change = BAD[case]
    state = HogwildState(torch.arange(12).view(2, 6), backend=backend)
    before = state.read()
    arguments = {"rows": ints(0), "starts": ints(0), "tokens": ints([1]), "snapshot": before} | change
    with pytest.raises(kind, match=message):
        state.write(**arguments)
    assert torch.equal(state._words, torch.arange(12).view(2, 6))


def test_a_bad_block_among_good_ones_writes_none(backend):
    state = HogwildState(torch.zeros(2, 3, dtype=torch.int64), backend=backend)
    with pytest.raises(ValueError):
        state.write(ints(0, 1, 2), ints(0, 0, 0), ints([1], [1], [1]), state.read())
    assert not state.read().tokens.any()


@pytest.mark.parametrize(
    ("tokens", "kind", "message"),
    [
        (torch.zeros(2, 3), TypeError, "tokens must be int64"),
        (torch.zeros(3).long(), ValueError, "tokens must have shape"),
        (torch.tensor([[-1]]), ValueError, r"tokens must be in \[0, 2\*\*32\)"),
        (torch.tensor([[2**32]]), ValueError, r"tokens must be in \[0, 2\*\*32\)"),
        (torch.zeros(1, 1, device="meta").long(), ValueError, "tokens must hold values, got a tensor on meta"),
        ([[1]], TypeError, "tokens must be a tensor"),
    ],
)
def test_a_state_needs_32_bit_tokens(backend, tokens, kind, message):
    with pytest.raises(kind, match=message):
        HogwildState(tokens, backend=backend)


def test_use_after_close_raises(backend):
    state = HogwildState(torch.zeros(1, 2, dtype=torch.int64), backend=backend)
    seen = state.read()
    state.close()
    with pytest.raises(RuntimeError, match="closed"):
        state.read()
    with pytest.raises(RuntimeError, match="closed"):
        state.write(ints(0), ints(0), ints([1]), seen)
    assert "closed" in repr(state) and not state._words.any()


def test_a_backend_that_cannot_run_raises(backend):
    with pytest.raises(ValueError, match="backend must be"):
        HogwildState(torch.zeros(1, 1).long(), backend="gpu")
    with pytest.raises(ValueError, match="cannot hold tokens on cpu"):
        HogwildState(torch.zeros(1, 1).long(), backend="cuda")


def in_threads(work, count):
    """work(0), work(1), ... at the same time, with as many switches between them as Python makes."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        workers = [threading.Thread(target=work, args=(me,)) for me in range(count)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    finally:
        sys.setswitchinterval(interval)


def test_no_write_of_any_thread_is_lost(backend):
    """Versions count the writes, and a snapshot's version plus its staleness says which of them a writer made."""
    threads, writes, positions = 8, 300, 5
    state = HogwildState(torch.zeros(1, positions, dtype=torch.int64), backend=backend)
    versions: list[list[tuple[int, int]]] = [[] for _ in range(threads)]

    def work(me):
        for i in range(writes):
            seen = state.read()
            start = (i + me) % positions
            stale = state.write(ints(0), ints(start), ints([me + 1]), seen)
            versions[me].append((start, int(seen.versions[0, start] + stale[0, start]) + 1))

    in_threads(work, threads)
    final = state.read()
    assert int(final.versions.sum()) == threads * writes
    everything = [version for mine in versions for version in mine]
    assert len(set(everything)) == threads * writes  # no version was given out twice
    for position in range(positions):
        last = (position, int(final.versions[0, position]))
        assert last in versions[int(final.tokens[0, position]) - 1]  # the token is that of the version's writer


def test_no_write_of_many_words_is_lost(backend):
    """States that are large enough for threads to write at the same time: the compiled backend releases the GIL."""
    threads, writes, positions = 4, 60, 4096
    state = HogwildState(torch.zeros(1, positions, dtype=torch.int64), backend=backend)
    gate = threading.Barrier(threads)
    made: list[list[torch.Tensor]] = [[] for _ in range(threads)]

    def work(me):
        block = torch.full((1, positions), me + 1)
        seen = state.read()
        gate.wait()
        for _ in range(writes):
            made[me].append(state.write(ints(0), ints(0), block, seen)[0] + seen.versions[0] + 1)

    in_threads(work, threads)
    final = state.read()
    assert (final.versions == threads * writes).all()
    versions = torch.stack([torch.stack(mine) for mine in made])  # (threads, writes, positions)
    everything = versions.flatten(0, 1).sort(0).values
    assert torch.equal(everything, torch.arange(1, threads * writes + 1)[:, None].expand_as(everything))
    last = versions.amax(1).argmax(0) + 1  # the thread that made the last version of each position
    assert torch.equal(final.tokens[0], last)


@pytest.mark.parametrize("call", ["read", "write"])
@pytest.mark.parametrize(("rows", "positions", "released"), [(1024, 4096, True), (8, 64, False)])
def test_the_gil_is_released_for_large_states_only(backend, call, rows, positions, released):
    """With a thread switch only every 1000 s, the watcher gets a turn within a call only if the call gives it up."""
    if backend == "reference":
        pytest.skip("needs the cpu backend: the reference leaves the GIL to torch's own operations")
    state = HogwildState(torch.zeros(rows, positions, dtype=torch.int64), backend=backend)
    seen, blocks = state.read(), (torch.arange(rows), torch.zeros(rows).long(), torch.ones(rows, 2).long())
    began, noticed, interval = threading.Event(), [], sys.getswitchinterval()
    kept = []  # torch lets the GIL go where a tensor dies: none shall die within a call
    working = done = False

    def watch():
        began.set()
        while not (noticed or done):
            if working:
                noticed.append(True)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    began.wait()
    try:
        gc.disable()
        sys.setswitchinterval(1000)
        for _ in range(50):
            working = True
            kept.append(state.read() if call == "read" else state.write(*blocks, seen))
            working = False
            if noticed:
                break
    finally:
        done = True
        sys.setswitchinterval(interval)
        gc.enable()
    watcher.join()
    assert bool(noticed) == released


def test_a_snapshot_may_be_a_view(backend):
    """Versions that lie apart in memory give the staleness that they give side by side."""
    rows, starts = torch.tensor([0, 1, 2]), torch.tensor([0, 2, 1])
    found = []
    for apart in (False, True):
        with HogwildState(torch.zeros(3, 6, dtype=torch.int64), backend=backend) as state:
            for number in range(1, 4):
                state.write(rows[:number], starts[:number], torch.full((number, 2), number), state.read())
            seen = state.read()
            if apart:
                seen = seen._replace(versions=torch.stack([seen.versions, seen.versions + 5], -1)[..., 0])
                assert not seen.versions.is_contiguous()
            state.write(rows, starts, torch.full((3, 2), 9), state.read())
            found.append(state.write(rows, starts, torch.full((3, 2), 8), seen))
    assert torch.equal(*found) and int(found[0].max()) == 1
