"""Lookaheads: plausible futures of a text, kept as chains of masked-LM tokens and refreshed by Gibbs updates."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from scone.conditionals import Conditionals
from scone.config import SconeConfig
from scone.seeds import block_start, mix, update_counter

__all__ = ["Lookahead", "Sample", "begin", "gibbs", "hogwild", "look_ahead", "marginals", "shift"]

_ROWS = 256  # rows in one forward where every position is masked by itself


@dataclass(frozen=True)
class Lookahead:
    """R rows of masked-LM tokens: special tokens, fixed text, future, special tokens, padding.

    >>> row, offset = torch.tensor([[101, 7, 8, 9, 102]]), torch.tensor([[-1, -1, 0, 1, -1]])
    >>> Lookahead(row, row > 0, offset, torch.tensor([0]), texts=("seven",)).futures()
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

    def rows(self, index: Tensor) -> Lookahead:
        """Some of the rows."""
        texts = tuple(self.texts[i] for i in index.tolist())
        return Lookahead(self.ids[index], self.mask[index], self.offset[index], self.seed[index], texts)

    def with_ids(self, ids: Tensor) -> Lookahead:
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
    mlm: Conditionals,
    texts: Sequence[str],
    fixed: Sequence[Sequence[int]],
    futures: Sequence[Sequence[int]],
    seed: Tensor,
    *,
    context_window: int | None = None,
) -> Lookahead:
    """Rows from fixed tokens and a first guess of the future; the fixed part is cut on the left to what fits.

    >>> from scone.embedded import load_masked_lm
    >>> mlm = Conditionals(*load_masked_lm())
    >>> begin(mlm, ["so far"], [mlm.encode("so far")], [[7, 8, 9]], torch.tensor([0])).futures()
    [[7, 8, 9]]
    """
    rows, offsets, kept_texts = [], [], []
    for text, before, future in zip(texts, fixed, futures):
        room = max(0, mlm.max_length - len(mlm.opening) - len(mlm.closing) - len(future))
        room = room if context_window is None else min(room, context_window)
        kept = list(before)[max(0, len(before) - room) :]
        kept_texts.append(text if len(kept) == len(before) else _tail(mlm, text, len(kept)))
        rows.append([*mlm.opening, *kept, *future, *mlm.closing])
        lead, trail = len(mlm.opening) + len(kept), len(mlm.closing)
        offsets.append([-1] * lead + list(range(len(future))) + [-1] * trail)
    width = max(map(len, rows))
    device = mlm.device
    ids = torch.tensor([row + [mlm.pad_id] * (width - len(row)) for row in rows], device=device)
    offset = torch.tensor([row + [-1] * (width - len(row)) for row in offsets], device=device)
    mask = torch.tensor([[True] * len(row) + [False] * (width - len(row)) for row in rows], device=device)
    return Lookahead(ids, mask, offset, seed.to(device), tuple(kept_texts))


def shift(future: Sequence[int] | None, length: int, mask_id: int) -> list[int]:
    """The future seen one token later: its first token gone, and [MASK] for what comes newly into sight.

    >>> shift([5, 6, 7], 3, mask_id=0), shift([5, 6, 7], 1, mask_id=0), shift(None, 2, mask_id=0)
    ([6, 7, 0], [6], [0, 0])
    """
    known = list(future or ())[1 : length + 1]
    return known + [mask_id] * (length - len(known))


def look_ahead(mlm: Conditionals, start: Lookahead, config: SconeConfig, *, step: int) -> list[Sample]:
    """Run the chains from `start` and return the states that are kept, each with its conditionals.

    Rows that start from nothing but [MASK] first get `config.warmup` updates of their own.

    >>> from scone.embedded import load_masked_lm
    >>> mlm = Conditionals(*load_masked_lm())
    >>> text = "The weather today is"
    >>> start = begin(mlm, [text], [mlm.encode(text)], [[mlm.mask_id] * 5], torch.tensor([0]))
    >>> (sample,) = look_ahead(mlm, start, SconeConfig(), step=0)
    >>> int((sample.ids == mlm.mask_id).sum()), len(sample.row)
    (0, 5)
    """
    future = start.offset >= 0
    cold = (((start.ids == mlm.mask_id) | ~future).all(1) & future.any(1)).nonzero()[:, 0]
    state = start
    if config.warmup and len(cold):
        warmed = gibbs(mlm, state.rows(cold), config, step=step, first=config.iterations, iterations=config.warmup)[-1]
        state = state.with_ids(state.ids.index_copy(0, cold, warmed.ids))
    alone = config.iterations == 0 or (config.workers == 1 and config.sync_every == 1)
    run = gibbs if alone else hogwild
    samples = run(mlm, state, config, step=step, thin=config.thin)
    if config.taylor_scale == 0 or config.marginals == "sweep":
        return samples
    return [marginals(mlm, state.with_ids(sample.ids), masked=config.marginals == "masked") for sample in samples]


def gibbs(
    mlm: Conditionals,
    state: Lookahead,
    config: SconeConfig,
    *,
    step: int,
    first: int = 0,
    iterations: int | None = None,
    thin: int | None = None,
) -> list[Sample]:
    """Block updates: mask a block, run the encoder, draw the block's tokens; keep a state every `thin` updates.

    A state that is kept holds no [MASK]: those that are left are drawn with the block. The conditionals of a sample are
    those of each position's last draw. `first` numbers the updates, so that no two share their noise.

    >>> from scone.embedded import load_masked_lm
    >>> mlm, text = Conditionals(*load_masked_lm()), "The weather today is"
    >>> start = begin(mlm, [text], [mlm.encode(text)], [[mlm.mask_id] * 5], torch.tensor([0]))
    >>> samples = gibbs(mlm, start, SconeConfig(block=2, iterations=4), step=0, thin=2)
    >>> [int((sample.ids == mlm.mask_id).sum()) for sample in samples]
    [0, 0]
    """
    ids, memory, samples = state.ids, _Memory(state), []
    count = config.iterations if iterations is None else iterations
    if count == 0:
        left = (ids == mlm.mask_id) & (state.offset >= 0)
        return [memory.sample(_redraw(mlm, state, ids, left, config, step=step, number=first, memory=memory))]
    for i in range(count):
        keep_state = i + 1 == count or (thin is not None and (i + 1) % thin == 0)
        update = block_at(state, config, i, step=step, number=first + i)
        if keep_state:
            update = update | ((ids == mlm.mask_id) & (state.offset >= 0))
        ids = _redraw(mlm, state, ids, update, config, step=step, number=first + i, memory=memory)
        if keep_state:
            samples.append(memory.sample(ids))
    return samples


def hogwild(
    mlm: Conditionals, state: Lookahead, config: SconeConfig, *, step: int, thin: int | None = None
) -> list[Sample]:
    """The same by `config.workers` that share the chains without waiting for each other, or with stale conditionals.

    Blocks are no longer than the shortest future; where a row has none, `gibbs` does the work.

    >>> from scone.embedded import load_masked_lm
    >>> mlm, text = Conditionals(*load_masked_lm()), "The weather today is"
    >>> start = begin(mlm, [text], [mlm.encode(text)], [[mlm.mask_id] * 5], torch.tensor([0]))
    >>> (sample,) = hogwild(mlm, start, SconeConfig(block=2, iterations=3, workers=2), step=0)
    >>> int((sample.ids == mlm.mask_id).sum())
    0
    """
    from scone.workers import GibbsPool

    block = min(config.block, int(state.length.amin()))
    if block == 0:
        return gibbs(mlm, state, config, step=step, thin=thin)
    memory, samples, ids = _Memory(state), [], state.ids
    begin = (state.offset == 0).int().argmax(1)

    def conditionals(tokens: Tensor, rows: Tensor, positions: Tensor) -> Tensor:
        """(n, T) tokens, (n,) rows, (n, m) positions -> head inputs (n * m, H)."""
        own = torch.arange(len(rows), device=rows.device).repeat_interleave(positions.shape[1])
        masked = tokens.scatter(1, positions, mlm.mask_id)
        hidden = mlm.hidden(masked, state.mask[rows], own, positions.flatten())
        memory.store(rows[own], positions.flatten(), hidden)
        return hidden

    def draw(hidden: Tensor, *, seed: Tensor, counter: Tensor) -> Tensor:
        return mlm.draw(hidden, seed=seed, counter=counter, temperature=config.mlm_temperature)

    done = 0
    while done < config.iterations:
        count = min(thin or config.iterations, config.iterations - done)
        pool = GibbsPool(
            conditionals, draw, workers=config.workers, iterations=count, block=block,
            schedule=config.schedule, sync_every=config.sync_every,
        )  # fmt: skip
        ids = pool.run(ids, seed=mix(state.seed, step), span=(begin, state.length), first=done).tokens
        done += count
        left = (ids == mlm.mask_id) & (state.offset >= 0)
        ids = _redraw(mlm, state, ids, left, config, step=step, number=config.iterations + done, memory=memory)
        samples.append(memory.sample(ids))
    return samples


class _Memory:
    """Head inputs of each position's last draw; workers may store at once."""

    def __init__(self, state: Lookahead) -> None:
        self._lock = threading.Lock()
        self.seen = torch.zeros_like(state.mask)  # (R, T)
        self.hidden: Tensor | None = None  # (R, T, H)

    def store(self, row: Tensor, col: Tensor, hidden: Tensor) -> None:
        with self._lock:
            if self.hidden is None:
                self.hidden = hidden.new_zeros(*self.seen.shape, hidden.shape[-1])
            self.hidden[row, col] = hidden
            self.seen[row, col] = True

    def sample(self, ids: Tensor) -> Sample:
        row, col = self.seen.nonzero(as_tuple=True)
        known = self.hidden[row, col] if self.hidden is not None else torch.zeros(0, 1, device=ids.device)
        return Sample(ids, row, col, known)


def _redraw(
    mlm: Conditionals,
    state: Lookahead,
    ids: Tensor,
    update: Tensor,
    config: SconeConfig,
    *,
    step: int,
    number: int,
    memory: _Memory,
) -> Tensor:
    """The tokens (R, T) with those at `update` (R, T) drawn anew, given the others."""
    row, col = update.nonzero(as_tuple=True)
    if not len(row):
        return ids
    hidden = mlm.hidden(ids.masked_fill(update, mlm.mask_id), state.mask, row, col)
    memory.store(row, col, hidden)
    counter = update_counter(step, number, state.offset[row, col])
    drawn = mlm.draw(hidden, seed=state.seed[row], counter=counter, temperature=config.mlm_temperature)
    return ids.index_put((row, col), drawn)


def block_at(state: Lookahead, config: SconeConfig, i: int, *, step: int, number: int) -> Tensor:
    """(R, T) bool: the positions that update i redraws, a run of `config.block` tokens in each row's future."""
    length = state.length  # (R,)
    size = length.clamp(max=config.block)
    if config.schedule == "systematic":
        first = (i * config.block) % length.clamp(min=1)
    else:
        first = block_start(state.seed, step, number, (length - size + 1).clamp(min=1))
    return (state.offset >= first[:, None]) & (state.offset < (first + size)[:, None])


def marginals(mlm: Conditionals, state: Lookahead, *, masked: bool) -> Sample:
    """Conditionals at every future position: each masked by itself (N forwards of one row), or none masked (one pass).

    >>> from scone.embedded import load_masked_lm
    >>> mlm, text = Conditionals(*load_masked_lm()), "The weather today is"
    >>> start = begin(mlm, [text], [mlm.encode(text)], [mlm.encode("very nice")], torch.tensor([0]))
    >>> marginals(mlm, start, masked=True).hidden.shape
    torch.Size([2, 384])
    """
    row, col = (state.offset >= 0).nonzero(as_tuple=True)
    if not masked or not len(row):
        return Sample(state.ids, row, col, mlm.hidden(state.ids, state.mask, row, col))
    parts = []
    for start in range(0, len(row), _ROWS):
        r, c = row[start : start + _ROWS], col[start : start + _ROWS]
        own = torch.arange(len(r), device=r.device)
        ids = state.ids[r].index_put((own, c), torch.tensor(mlm.mask_id, device=r.device))
        parts.append(mlm.hidden(ids, state.mask[r], own, c))
    return Sample(state.ids, row, col, torch.cat(parts))


def _tail(mlm: Conditionals, text: str, tokens: int) -> str:
    """The end of a text that its last `tokens` tokens cover."""
    if not tokens:
        return ""
    if not mlm.tokenizer.is_fast:
        return text
    places = mlm.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
    return text[places[-tokens][0] :]
