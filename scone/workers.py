"""Block Gibbs sampling by workers that share their chains without waiting for each other (Hogwild).

Each worker loops: choose a block, read the shared state, compute its conditionals, draw, write. Everything but the
interleaving of reads and writes is fixed in advance by (seed, update number), so a run that recorded who read and wrote
what can be replayed bit for bit, and one worker is the synchronous reference.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from scone.errors import ConfigError, InputError
from scone.seeds import mix
from scone_kernels import HogwildState, Snapshot, gibbs_sample

__all__ = ["Draw", "GibbsPool", "GibbsRun", "GibbsStats", "Update", "draw_from_head"]

Conditionals = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(tokens (n, T), rows (n,), positions (n, m)) -> head inputs (n * m, H), position by position within each row."""


class Draw(Protocol):
    """Tokens (N,) from head inputs (N, H), as a pure function of them and of each row's seed (N,) and counter (N,)."""

    def __call__(self, hidden: Tensor, *, seed: Tensor, counter: Tensor) -> Tensor: ...


def draw_from_head(
    weight: Tensor, bias: Tensor | None = None, keep: Tensor | None = None, *, temperature: float = 1.0
) -> Draw:
    """Draw with `gibbs_sample` from the head `softmax((hidden @ weight.T + bias) / temperature)`, tokens of `keep` only."""

    def draw(hidden: Tensor, *, seed: Tensor, counter: Tensor) -> Tensor:
        options = {"bias": bias, "keep": keep, "temperature": temperature}
        return gibbs_sample(hidden, weight, seed=seed, counter=counter, **options).tokens

    return draw


class Update(NamedTuple):
    """One turn of a worker, as recorded: what it read and what it wrote.

    It read `rows` (a range of the state's rows) at the versions `read` (n, T) and then wrote the blocks that begin at
    `starts` (n, k). `staleness` (n, k, T) says how far each position had moved on since, so that the versions it wrote
    are `read + staleness + 1` at the blocks' positions.
    """

    worker: int
    number: int
    rows: tuple[int, int]
    starts: Tensor
    read: Tensor
    staleness: Tensor


@dataclass(frozen=True)
class GibbsStats:
    """What a run did, counted from the versions in the shared state."""

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
    """The chains' last state (R, T), what happened, and the recorded schedule (None unless asked for)."""

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
        state = HogwildState(tokens)
        turns: list[list[Update]] = [[] for _ in range(self.workers)]
        with torch.no_grad(), state:
            if self.workers == 1:
                for number in range(plan.turns):
                    turns[0].append(_turn(self, plan, state, number, worker=0))
            else:
                _run_workers(self, plan, state, turns)
            final = state.read().tokens
        done = [update for worker in turns for update in worker]
        return GibbsRun(final, _stats(plan, done), tuple(_by_versions(done)) if record else None)

    def replay(
        self,
        tokens: Tensor,
        schedule: tuple[Update, ...],
        *,
        seed: Tensor | int,
        span: tuple[Tensor, Tensor] | None = None,
        first: int = 0,
    ) -> GibbsRun:
        """Repeat a recorded run, with the same arguments as the run itself, in one thread: the same tokens bit for bit."""
        plan = _plan(self, tokens, seed, span, first)
        history = _History(tokens, schedule, self.block)
        with torch.no_grad():
            for update in schedule:
                seen = Snapshot(history.at(update), update.read)
                history.add(update, _draw_blocks(self, plan, seen, update.number))
        return GibbsRun(history.last(), _stats(plan, list(schedule)), schedule)
