"""Chains of a masked LM: rows of its tokens of which the end, the future, may change, and their Gibbs updates."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from scone.lm import MaskedLM
from scone.lookahead.pool import GibbsPool
from scone.seeds import UPDATES, update_counter

__all__ = ["Chains", "Memory", "Sample", "begin", "draw_masks", "marginals", "run_chains", "shift"]

_ROWS = 256  # rows in one forward where every position is masked by itself


@dataclass(frozen=True)
class Chains:
    """R rows of masked-LM tokens: special tokens, fixed text, future, special tokens, padding.

    >>> row, offset = torch.tensor([[101, 7, 8, 9, 102]]), torch.tensor([[-1, -1, 0, 1, -1]])
    >>> Chains(row, row > 0, offset, torch.tensor([0]), texts=("seven",)).futures()
    [[8, 9]]
    """

    ids: Tensor  # (R, T) int64
    mask: Tensor  # (R, T) bool, False at padding
    offset: Tensor  # (R, T) int64: 0, 1, … over the future, -1 elsewhere
    seed: Tensor  # (R,) int64: rows with the same seed draw with the same noise
    texts: tuple[str, ...]  # the fixed text of each row

    @property
    def length(self) -> Tensor:
        """(R,) tokens of future in each row."""
        return self.offset.amax(1) + 1

    def rows(self, index: Tensor) -> Chains:
        """Some of the rows."""
        texts = tuple(self.texts[i] for i in index.tolist())
        return Chains(self.ids[index], self.mask[index], self.offset[index], self.seed[index], texts)

    def with_ids(self, ids: Tensor) -> Chains:
        """The same rows with other tokens in their futures."""
        return replace(self, ids=ids)

    def futures(self) -> list[list[int]]:
        """The future of each row as tokens."""
        return [row[keep].tolist() for row, keep in zip(self.ids.cpu(), (self.offset >= 0).cpu())]


@dataclass(frozen=True)
class Sample:
    """One state of the chains, and conditionals p(y_i | the rest) at N of its future positions (row, col).

    >>> first = torch.tensor([0])
    >>> Sample(torch.tensor([[101, 7, 102]]), row=first, col=first + 1, hidden=torch.zeros(1, 384)).hidden.shape
    torch.Size([1, 384])
    """

    ids: Tensor  # (R, T)
    row: Tensor  # (N,)
    col: Tensor  # (N,)
    hidden: Tensor  # (N, H) head inputs


def begin(
    mlm: MaskedLM,
    texts: Sequence[str],
    fixed: Sequence[Sequence[int]],
    futures: Sequence[Sequence[int]],
    seed: Tensor,
) -> Chains:
    """Rows from fixed tokens and a first guess of the future; the fixed part is cut on the left to what fits.

    >>> from scone.embedded import load_masked_lm
    >>> mlm = MaskedLM(*load_masked_lm())
    >>> begin(mlm, ["so far"], [mlm.encode("so far")], [[7, 8, 9]], torch.tensor([0])).futures()
    [[7, 8, 9]]
    """
    rows, offsets, kept_texts = [], [], []
    for text, before, future in zip(texts, fixed, futures):
        room = max(0, mlm.max_length - len(mlm.opening) - len(mlm.closing) - len(future))
        kept = list(before)[max(0, len(before) - room) :]
        kept_texts.append(text if len(kept) == len(before) else mlm.tail(text, len(kept)))
        rows.append([*mlm.opening, *kept, *future, *mlm.closing])
        lead, trail = len(mlm.opening) + len(kept), len(mlm.closing)
        offsets.append([-1] * lead + list(range(len(future))) + [-1] * trail)
    width = max(map(len, rows))
    device = mlm.device
    ids = torch.tensor([row + [mlm.pad_id] * (width - len(row)) for row in rows], device=device)
    offset = torch.tensor([row + [-1] * (width - len(row)) for row in offsets], device=device)
    mask = torch.tensor([[True] * len(row) + [False] * (width - len(row)) for row in rows], device=device)
    return Chains(ids, mask, offset, seed.to(device), tuple(kept_texts))


def shift(future: Sequence[int] | None, length: int, mask_id: int) -> list[int]:
    """The future seen one token later: its first token gone, and [MASK] for what comes newly into sight.

    >>> shift([5, 6, 7], 3, mask_id=0), shift([5, 6, 7], 1, mask_id=0), shift(None, 2, mask_id=0)
    ([6, 7, 0], [6], [0, 0])
    """
    known = list(future or ())[1 : length + 1]
    return known + [mask_id] * (length - len(known))


class Memory:
    """Head inputs of each position's last draw; workers may store at once.

    >>> row = torch.tensor([[101, 7, 8]])
    >>> memory = Memory(Chains(row, row > 0, row * 0 - 1, torch.tensor([0]), ("",)))
    >>> memory.store(torch.tensor([0]), torch.tensor([2]), torch.ones(1, 4))
    >>> memory.sample(row).col
    tensor([2])
    """

    def __init__(self, chains: Chains) -> None:
        self._lock = threading.Lock()
        self.rows_read = 0  # of the masked LM
        self.seen = torch.zeros_like(chains.mask)  # (R, T)
        self.hidden: Tensor | None = None  # (R, T, H)

    def store(self, row: Tensor, col: Tensor, hidden: Tensor, *, rows_read: int = 0) -> None:
        """Enter head inputs (N, H) of positions (row, col), for which so many rows were read."""
        with self._lock:
            self.rows_read += rows_read
            if self.hidden is None:
                self.hidden = hidden.new_zeros(*self.seen.shape, hidden.shape[-1])
            self.hidden[row, col] = hidden
            self.seen[row, col] = True

    def sample(self, ids: Tensor) -> Sample:
        """A state with all conditionals that are known."""
        row, col = self.seen.nonzero(as_tuple=True)
        known = self.hidden[row, col] if self.hidden is not None else torch.zeros(0, 1, device=ids.device)
        return Sample(ids, row, col, known)


def run_chains(
    mlm: MaskedLM,
    chains: Chains,
    memory: Memory,
    *,
    block: int,
    iterations: int,
    schedule: str,
    workers: int,
    sync_every: int,
    temperature: float,
    step: int,
    first: int = 0,
) -> Tensor:
    """The tokens (R, T) after `iterations` block updates of every chain: mask a block, run the encoder, draw it.

    `first` numbers the updates of a step, so that no two share their noise. A future shorter than a block is one.

    >>> from scone.embedded import load_masked_lm
    >>> mlm, text = MaskedLM(*load_masked_lm()), "The weather today is"
    >>> start = begin(mlm, [text], [mlm.encode(text)], [[mlm.mask_id] * 4], torch.tensor([0]))
    >>> ids = run_chains(mlm, start, Memory(start), block=2, iterations=2, schedule="systematic", workers=1,
    ...                  sync_every=1, temperature=1.0, step=0)
    >>> int((ids == mlm.mask_id).sum())
    0
    """
    some = (chains.length > 0).nonzero()[:, 0]  # rows whose future has tokens
    if not len(some):
        return chains.ids
    mask, width = chains.mask[some], chains.ids.shape[1]
    begins = (chains.offset[some] == 0).int().argmax(1)

    def conditionals(tokens: Tensor, rows: Tensor, positions: Tensor) -> Tensor:
        """(n, T) tokens, (n,) rows, (n, m) positions -> head inputs (n * m, H)."""
        own = torch.arange(len(rows), device=rows.device).repeat_interleave(positions.shape[1])
        masked = tokens[:, :width].scatter(1, positions, mlm.mask_id)
        hidden = mlm.hidden(masked, mask[rows], own, positions.flatten())
        memory.store(some[rows[own]], positions.flatten(), hidden, rows_read=len(rows))
        return hidden

    def draw(hidden: Tensor, *, seed: Tensor, counter: Tensor) -> Tensor:
        return mlm.draw(hidden, seed=seed, counter=counter, temperature=temperature)

    pool = GibbsPool(
        conditionals,
        draw,
        workers=workers,
        iterations=iterations,
        block=block,
        schedule=schedule,
        sync_every=sync_every,
    )
    # A block may reach beyond a short future, up to block - 1 columns to the right of the row.
    tokens = torch.nn.functional.pad(chains.ids[some], (0, block - 1), value=mlm.pad_id)
    span = (begins, chains.length[some])
    run = pool.run(tokens, seed=chains.seed[some], span=span, first=step * UPDATES + first)
    return chains.ids.index_copy(0, some, run.tokens[:, :width])


def draw_masks(
    mlm: MaskedLM, chains: Chains, ids: Tensor, memory: Memory, *, temperature: float, step: int, number: int
) -> Tensor:
    """The tokens (R, T) with every [MASK] of a future drawn, given the others.

    >>> from scone.embedded import load_masked_lm
    >>> mlm, text = MaskedLM(*load_masked_lm()), "The weather today is"
    >>> start = begin(mlm, [text], [mlm.encode(text)], [[mlm.mask_id] * 5], torch.tensor([0]))
    >>> ids = draw_masks(mlm, start, start.ids, Memory(start), temperature=1.0, step=0, number=0)
    >>> int((ids == mlm.mask_id).sum())
    0
    """
    row, col = ((ids == mlm.mask_id) & (chains.offset >= 0)).nonzero(as_tuple=True)
    if not len(row):
        return ids
    hidden = mlm.hidden(ids, chains.mask, row, col)
    memory.store(row, col, hidden, rows_read=len(ids))
    counter = update_counter(step, number, chains.offset[row, col])
    drawn = mlm.draw(hidden, seed=chains.seed[row], counter=counter, temperature=temperature)
    return ids.index_put((row, col), drawn)


def marginals(mlm: MaskedLM, chains: Chains, *, masked: bool) -> Sample:
    """Conditionals at every future position: each masked by itself (N forwards of one row), or none masked (one pass).

    >>> from scone.embedded import load_masked_lm
    >>> mlm, text = MaskedLM(*load_masked_lm()), "The weather today is"
    >>> start = begin(mlm, [text], [mlm.encode(text)], [mlm.encode("very nice")], torch.tensor([0]))
    >>> marginals(mlm, start, masked=True).hidden.shape
    torch.Size([2, 384])
    """
    row, col = (chains.offset >= 0).nonzero(as_tuple=True)
    if not masked or not len(row):
        return Sample(chains.ids, row, col, mlm.hidden(chains.ids, chains.mask, row, col))
    parts = []
    for start in range(0, len(row), _ROWS):
        r, c = row[start : start + _ROWS], col[start : start + _ROWS]
        own = torch.arange(len(r), device=r.device)
        ids = chains.ids[r].index_put((own, c), torch.tensor(mlm.mask_id, device=r.device))
        parts.append(mlm.hidden(ids, chains.mask[r], own, c))
    return Sample(chains.ids, row, col, torch.cat(parts))
