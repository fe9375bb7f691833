"""Block Gibbs sampling by workers that share their chains without waiting for each other (Hogwild).

Each worker loops: choose a block, read the shared state, compute its conditionals, draw, write. Everything but the
interleaving of reads and writes is fixed in advance by (seed, update number), so a run that recorded who read and wrote
what can be replayed bit for bit, and one worker is the synchronous reference.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from scone.errors import ConfigError, InputError
from scone.lookahead.schedule import History, Update, in_order
from scone.seeds import mix
from scone_kernels import HogwildState, gibbs_sample

__all__ = ["Draw", "GibbsPool", "GibbsRun", "GibbsStats", "Update", "draw_from_head"]

Conditionals = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(tokens (n, T), rows (n,), positions (n, m)) -> head inputs (n * m, H), position by position within each row."""


class Draw(Protocol):
    """Tokens (N,) from head inputs (N, H), as a pure function of them and of each row's seed (N,) and counter (N,).

    >>> def most_probable(hidden, *, seed, counter):
    ...     return hidden.argmax(-1)
    >>> pool = GibbsPool(lambda tokens, rows, positions: torch.eye(4)[tokens.gather(1, positions).flatten()], most_probable)
    >>> pool.run(torch.tensor([[3, 1]]), seed=0).tokens  # nothing changes
    tensor([[3, 1]])
    """

    def __call__(self, hidden: Tensor, *, seed: Tensor, counter: Tensor) -> Tensor: ...


def draw_from_head(
    weight: Tensor,
    bias: Tensor | None = None,
    keep: Tensor | None = None,
    *,
    temperature: float = 1.0,
    backend: str | None = None,
) -> Draw:
    """Draw with `gibbs_sample` from the head `softmax((hidden @ weight.T + bias) / temperature)`, tokens of `keep` only.

    >>> draw = draw_from_head(torch.zeros(3, 1), keep=torch.tensor([False, True, False]))
    >>> draw(torch.ones(2, 1), seed=torch.tensor([4, 5]), counter=torch.tensor([0, 0]))
    tensor([1, 1])
    """

    def draw(hidden: Tensor, *, seed: Tensor, counter: Tensor) -> Tensor:
        return gibbs_sample(
            hidden,
            weight,
            bias=bias,
            keep=keep,
            temperature=temperature,
            seed=seed,
            counter=counter,
            backend=backend,
        ).tokens

    return draw


@dataclass(frozen=True)
class GibbsStats:
    """What a run did, counted from the versions in the shared state.

    >>> GibbsStats(updates=2, never_reached=0, staleness=torch.tensor([1, 1]), overwritten=0).mean_staleness
    0.5
    """

    updates: int  # blocks written
    never_reached: int  # positions that no block covered
    staleness: Tensor  # (K,): staleness[s] blocks were drawn from a snapshot of their row that was s versions behind
    overwritten: int  # tokens that were replaced by a worker that had not seen them

    @property
    def mean_staleness(self) -> float:
        """Versions that a snapshot was behind, on average over blocks."""
        behind = torch.arange(len(self.staleness)) * self.staleness
        return float(behind.sum()) / max(1, self.updates)


@dataclass(frozen=True)
class GibbsRun:
    """The chains' last state (R, T), what happened, and the recorded schedule (None unless asked for).

    >>> uniform = draw_from_head(torch.zeros(5, 1))
    >>> pool = GibbsPool(lambda tokens, rows, positions: torch.zeros(positions.numel(), 1), uniform, workers=2, iterations=6)
    >>> start = torch.zeros(2, 3, dtype=torch.int64)
    >>> run = pool.run(start, seed=0, record=True)
    >>> torch.equal(pool.replay(start, run.schedule, seed=0).tokens, run.tokens)
    True
    """

    tokens: Tensor
    stats: GibbsStats
    schedule: tuple[Update, ...] | None


@dataclass(frozen=True)
class GibbsPool:
    """Workers that update blocks of shared chains.

    `iterations` blocks are drawn in each row, `batch` rows at a time (all by default). A worker reads the state and
    computes conditionals once for every `sync_every` blocks of a row: 1 is the most faithful, more is faster.
    "systematic" walks through each row block by block, "uniform" draws the start from (seed, number).
    Each worker has `threads` threads within torch's operations: by default an equal share of the caller's.

    >>> pool = GibbsPool(lambda tokens, rows, positions: torch.zeros(positions.numel(), 1),
    ...                  draw_from_head(torch.zeros(5, 1)), workers=2, iterations=4, block=2)
    >>> run = pool.run(torch.zeros(3, 8, dtype=torch.int64), seed=0)
    >>> run.tokens.shape, run.stats.updates, run.stats.never_reached
    (torch.Size([3, 8]), 12, 0)
    """

    conditionals: Conditionals
    draw: Draw
    workers: int = 1
    iterations: int = 1
    block: int = 1
    schedule: str = "systematic"
    sync_every: int = 1
    batch: int | None = None
    threads: int | None = None

    def __post_init__(self) -> None:
        for name in ("workers", "iterations", "block", "sync_every", "batch", "threads"):
            value = getattr(self, name)
            if value is None and name in ("batch", "threads"):
                continue
            if not isinstance(value, int) or isinstance(value, bool) or value < (0 if name == "iterations" else 1):
                least = "0 or more" if name == "iterations" else "1 or more"
                raise ConfigError(f"{name} must be an integer, {least}, got {value!r}")
        if self.schedule not in ("systematic", "uniform"):
            raise ConfigError(f"schedule must be 'systematic' or 'uniform', got {self.schedule!r}")

    def run(
        self,
        tokens: Tensor,
        *,
        seed: Tensor | int,
        span: tuple[Tensor, Tensor] | None = None,
        first: int = 0,
        record: bool = False,
    ) -> GibbsRun:
        """Update chains that start at `tokens` (R, T) and return where they end.

        seed: one for all rows or (R,); rows with the same seed share their noise.
        span: (begin (R,), length (R,)), the positions that may change; all by default.
        first: the number of the first update; a run that continues another counts on, so that no noise is used twice.
        """
        plan = _plan(self, tokens, seed, span, first)
        tally = _Tally(record)
        with torch.no_grad(), HogwildState(tokens) as state:
            if self.workers == 1:
                for number in range(plan.turns):
                    tally.add(_turn(self, plan, state, number, worker=0))
            else:
                _run_workers(self, plan, state, tally)
            final = state.read().tokens
        return GibbsRun(final, tally.stats(plan), in_order(state.shape, tally.updates) if record else None)

    def replay(
        self,
        tokens: Tensor,
        schedule: Sequence[Update],
        *,
        seed: Tensor | int,
        span: tuple[Tensor, Tensor] | None = None,
        first: int = 0,
    ) -> GibbsRun:
        """Repeat a recorded run in one thread, with the arguments of the run itself: the same tokens bit for bit."""
        plan = _plan(self, tokens, seed, span, first)
        if sorted(update.number for update in schedule) != list(range(plan.turns)):
            raise InputError(f"schedule must hold the {plan.turns} updates of this run, got {len(schedule)} others")
        history, tally = History(tokens, schedule), _Tally(record=True)
        with torch.no_grad():
            for update in schedule:
                history.add(update, _draw_blocks(self, plan, history.seen_by(update), update.number))
                tally.add(update)
        return GibbsRun(history.last(), tally.stats(plan), tuple(schedule))


@dataclass(frozen=True)
class _Plan:
    """All of a run that does not depend on timing. Turn `number` updates rows `rows(number)`, in blocks `blocks(number)`."""

    seed: Tensor  # (R,)
    begin: Tensor  # (R,)
    length: Tensor  # (R,)
    starts: Tensor  # (R, iterations)
    shape: tuple[int, int]
    batch: int
    block: int
    sync_every: int
    first: int

    @property
    def groups(self) -> int:
        return -(-self.shape[0] // self.batch)

    @property
    def turns(self) -> int:
        return self.groups * -(-self.starts.shape[1] // self.sync_every)

    def rows(self, number: int) -> slice:
        low = number % self.groups * self.batch
        return slice(low, min(low + self.batch, self.shape[0]))

    def blocks(self, number: int) -> slice:
        low = number // self.groups * self.sync_every
        return slice(low, min(low + self.sync_every, self.starts.shape[1]))

    def never_reached(self) -> int:
        """Positions that may change and that no block covers."""
        place = torch.arange(self.shape[1], device=self.begin.device)
        wanted = (place >= self.begin[:, None]) & (place < (self.begin + self.length)[:, None])  # (R, T)
        covered = self.starts[..., None] + torch.arange(self.block, device=place.device)  # (R, iterations, block)
        return int(wanted.scatter(1, covered.flatten(1), False).sum())


def _plan(pool: GibbsPool, tokens: Tensor, seed: Tensor | int, span: tuple[Tensor, Tensor] | None, first: int) -> _Plan:
    if not isinstance(tokens, Tensor) or tokens.dim() != 2:
        given = tuple(tokens.shape) if isinstance(tokens, Tensor) else type(tokens).__name__
        raise InputError(f"tokens must be a tensor (rows, positions), got {given}")
    rows, positions = tokens.shape
    seed = torch.as_tensor(seed, dtype=torch.int64, device=tokens.device)
    if seed.shape not in ((), (rows,)):
        raise InputError(f"seed must be an int or have shape ({rows},), got {tuple(seed.shape)}")
    seed = seed.expand(rows)
    if span is None:
        span = (torch.zeros_like(seed), torch.full_like(seed, positions))
    begin, length = span
    for name, part in (("begin", begin), ("length", length)):
        if part.shape != (rows,) or part.dtype != torch.int64 or part.device != tokens.device:
            raise InputError(
                f"{name} of span must be int64 ({rows},) on {tokens.device}, "
                f"got {part.dtype} {tuple(part.shape)} on {part.device}"
            )
    size = length.clamp(max=pool.block)  # (R,) of a block: a span shorter than one is a block itself
    inside = (begin >= 0) & (length >= 1) & (begin + length + pool.block - size <= positions)
    if rows and not bool(inside.all()):
        raise InputError(
            f"span must hold a position at least and lie, blocks of {pool.block} included, within {positions} positions, "
            f"got begin {begin.tolist()}, length {length.tolist()}"
        )
    number = first + torch.arange(pool.iterations, device=tokens.device)  # (iterations,)
    if pool.schedule == "systematic":
        blocks = (length + pool.block - 1) // pool.block
        starts = torch.minimum(number % blocks[:, None] * pool.block, (length - size)[:, None])
    else:
        starts = mix(seed[:, None], number) % (length - size + 1)[:, None]
    return _Plan(
        seed, begin, length, begin[:, None] + starts, (rows, positions), pool.batch or max(1, rows), pool.block,
        pool.sync_every, first,
    )  # fmt: skip


def _turn(pool: GibbsPool, plan: _Plan, state: HogwildState, number: int, worker: int) -> Update:
    """One worker's turn: read, conditionals, draw, write."""
    rows = plan.rows(number)
    part = state[rows]
    seen = part.read()
    tokens = _draw_blocks(pool, plan, seen.tokens, number)  # (n, k, block)
    starts = plan.starts[rows, plan.blocks(number)]  # (n, k)
    own = torch.arange(len(starts), device=starts.device)
    stale = [part.write(own, start, block, seen) for start, block in zip(starts.unbind(1), tokens.unbind(1))]
    return Update(worker, number, (rows.start, rows.stop), starts, pool.block, seen.versions, torch.stack(stale, 1))


def _draw_blocks(pool: GibbsPool, plan: _Plan, seen: Tensor, number: int) -> Tensor:
    """Tokens (n, k, block) for the blocks of a turn, from the tokens (n, T) that it saw."""
    rows, blocks = plan.rows(number), plan.blocks(number)
    device = seen.device
    written = plan.starts[rows, blocks, None] + torch.arange(pool.block, device=device)  # (n, k, block)
    # Where a block reaches beyond a short span its last token is drawn once more, and what stands there stays.
    positions = torch.minimum(written, (plan.begin + plan.length - 1)[rows, None, None])
    iteration = plan.first + torch.arange(blocks.start, blocks.stop, device=device)
    counter = (iteration[:, None] << 16) + positions - plan.begin[rows, None, None]
    seed = plan.seed[rows, None, None].expand_as(positions)
    index = torch.arange(rows.start, rows.stop, device=device)
    hidden = pool.conditionals(seen, index, positions.flatten(1))
    if hidden.dim() != 2 or hidden.shape[0] != positions.numel():
        raise InputError(f"conditionals must return ({positions.numel()}, H) head inputs, got {tuple(hidden.shape)}")
    drawn = pool.draw(hidden, seed=seed.flatten(), counter=counter.flatten()).view(positions.shape)
    if torch.equal(positions, written):
        return drawn
    kept = seen.gather(1, written.flatten(1)).view(written.shape)
    return torch.where(positions == written, drawn, kept)


class _Tally:
    """What the workers did. Lists only grow, one append at a time, so workers need no lock to share it."""

    def __init__(self, record: bool) -> None:
        self.record = record
        self.updates: list[Update] = []
        self.behind: list[Tensor] = []  # (n * k,) each: versions that the snapshot of a row was behind
        self.unseen: list[Tensor] = []

    def add(self, update: Update) -> None:
        self.behind.append(update.staleness.sum(2).flatten())
        self.unseen.append(update.unseen.sum())
        if self.record:
            self.updates.append(update)

    def stats(self, plan: _Plan) -> GibbsStats:
        behind = torch.cat(self.behind).cpu() if self.behind else torch.zeros(0, dtype=torch.int64)
        overwritten = sum(int(count) for count in self.unseen)
        return GibbsStats(len(behind), plan.never_reached(), torch.bincount(behind, minlength=1), overwritten)


def _run_workers(pool: GibbsPool, plan: _Plan, state: HogwildState, tally: _Tally) -> None:
    """Let the workers take turns until none is left; the first that fails, or Ctrl-C, stops all of them."""
    stop, numbers, failures = threading.Event(), itertools.count(), list[BaseException]()
    threads = torch.get_num_threads()
    share = pool.threads or max(1, threads // pool.workers)
    own_stream = _streams(state.device)

    def work(worker: int) -> None:
        try:
            torch.set_num_threads(share)  # of this thread
            with torch.no_grad(), own_stream():
                while not stop.is_set() and (number := next(numbers)) < plan.turns:
                    tally.add(_turn(pool, plan, state, number, worker))
        except BaseException as failure:
            failures.append(failure)
            stop.set()

    workers = [threading.Thread(target=work, args=(i,), name=f"gibbs-{i}") for i in range(pool.workers)]
    try:
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    finally:
        stop.set()
        for worker in workers:
            _wait_for(worker)
        torch.set_num_threads(threads)  # threads that others start later take the number that was set last
    if failures:
        raise failures[0]


def _wait_for(worker: threading.Thread) -> None:
    """Join a thread, even one whose start was interrupted, which join() refuses until it has begun."""
    while worker in threading.enumerate():
        with contextlib.suppress(RuntimeError):
            worker.join()


def _streams(device: torch.device) -> Callable[[], contextlib.AbstractContextManager[None]]:
    """On a GPU each worker has a stream, which starts after the caller's and which the caller's then waits for."""
    if device.type != "cuda":
        return contextlib.nullcontext
    caller = torch.cuda.current_stream(device)

    @contextlib.contextmanager
    def stream() -> Iterator[None]:
        own = torch.cuda.Stream(device)
        own.wait_stream(caller)
        with torch.cuda.stream(own):
            yield
        caller.wait_stream(own)

    return stream
