"""Recorded schedules of shared Gibbs chains: who read and wrote what, an order that respects it, and the replay."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from scone.errors import InputError

__all__ = ["History", "Update", "in_order"]


class Update(NamedTuple):
    """One turn of a worker: it read rows `rows[0]` to `rows[1] - 1` of the state, then wrote k blocks in each.

    `read` (n, T) are the versions that it read. `starts` (n, k) are the blocks' first positions, of `block` tokens each.
    `staleness` (n, k, T) says how far each position had moved on when each block was written.

    >>> none = torch.zeros(1, 1, 2, dtype=torch.int64)
    >>> update = Update(0, 0, rows=(0, 1), starts=torch.tensor([[1]]), block=1, read=none[0], staleness=none)
    >>> update.positions.tolist(), update.wrote.tolist()  # version 1 of position 1
    ([[[1]]], [[[1]]])
    """

    worker: int
    number: int
    rows: tuple[int, int]
    starts: Tensor
    block: int
    read: Tensor
    staleness: Tensor

    @property
    def positions(self) -> Tensor:
        """(n, k, block): where it wrote."""
        return self.starts[..., None] + torch.arange(self.block, device=self.starts.device)

    @property
    def unseen(self) -> Tensor:
        """(n, k, block): how many writes it replaced there without having seen them."""
        return self.staleness.gather(2, self.positions)

    @property
    def wrote(self) -> Tensor:
        """(n, k, block): the versions that it wrote."""
        read = self.read[:, None].expand_as(self.staleness)
        return read.gather(2, self.positions) + self.unseen + 1


class History:
    """A value for each version of each position, (V, R, T). Version 0 is the beginning; -1 marks what is not known.

    >>> none = torch.zeros(1, 1, 2, dtype=torch.int64)
    >>> update = Update(0, 0, rows=(0, 1), starts=torch.tensor([[1]]), block=1, read=none[0], staleness=none)
    >>> history = History(torch.tensor([[5, 6]]), [update])
    >>> history.add(update, torch.tensor([[[9]]]))
    >>> history.seen_by(update), history.last()
    (tensor([[5, 6]]), tensor([[5, 9]]))
    """

    def __init__(self, beginning: Tensor, schedule: Sequence[Update]) -> None:
        latest = max((int(update.wrote.max()) for update in schedule if update.wrote.numel()), default=0)
        self.values = beginning.new_full((latest + 1, *beginning.shape), -1)
        self.values[0] = beginning
        self.latest = torch.zeros_like(beginning)  # (R, T) the newest version that is known

    def seen_by(self, update: Update) -> Tensor:
        """(n, T): the values that it read."""
        return self.values[:, slice(*update.rows)].gather(0, update.read[None])[0]

    def replaced_by(self, update: Update) -> Tensor:
        """(n, k, block): the values that it wrote over."""
        n = update.starts.shape[0]
        rows = torch.arange(*update.rows, device=update.read.device).view(n, 1, 1)
        return self.values[update.wrote - 1, rows, update.positions]

    def add(self, update: Update, values: Tensor) -> None:
        """Enter what it wrote: (n, k, block)."""
        n = update.starts.shape[0]
        rows = torch.arange(*update.rows, device=values.device)[:, None].expand(n, values[0].numel())
        positions, versions = update.positions.reshape(n, -1), update.wrote.reshape(n, -1)
        self.values[versions, rows, positions] = values.reshape(n, -1)
        part = self.latest[slice(*update.rows)]
        part.scatter_reduce_(1, positions, versions, "amax")

    def last(self) -> Tensor:
        """(R, T): the newest values."""
        return self.values.gather(0, self.latest[None])[0]


def in_order(shape: tuple[int, int], updates: Sequence[Update]) -> tuple[Update, ...]:
    """The updates of a state (R, T) in an order in which each comes after all those whose tokens it read.

    It also comes after those whose tokens it replaced, except where two workers raced and each replaced some of the
    other's.

    >>> none = torch.zeros(1, 1, 2, dtype=torch.int64)
    >>> update = Update(0, 0, rows=(0, 1), starts=torch.tensor([[1]]), block=1, read=none[0], staleness=none)
    >>> after = update._replace(number=1, read=torch.tensor([[0, 1]]))  # it read what the first wrote
    >>> [one.number for one in in_order((1, 2), [after, update])]
    [0, 1]
    """
    device = updates[0].read.device if updates else torch.device("cpu")
    writers = History(torch.full(shape, -1, device=device), updates)
    for i, update in enumerate(updates):
        writers.add(update, torch.full_like(update.positions, i))
    read_from = [_known(writers.seen_by(update)) for update in updates]
    replaced = [_known(writers.replaced_by(update)) - {i} for i, update in enumerate(updates)]
    order: list[int] = []
    done: set[int] = set()
    waiting = dict.fromkeys(range(len(updates)))
    while waiting:
        readable = [i for i in waiting if read_from[i] <= done]
        if not readable:
            raise InputError("the schedule has updates that read each other's tokens: it was not recorded by one run")
        ready = [i for i in readable if replaced[i] <= done] or readable[:1]
        order += ready
        done.update(ready)
        for i in ready:
            del waiting[i]
    return tuple(updates[i] for i in order)


def _known(values: Tensor) -> set[int]:
    return set(values.unique().tolist()) - {-1}
