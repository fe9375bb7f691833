"""What an LM has read of single texts, each with a cache of its own, and how it reads on from there.

A text may grow, or change near its end, which happens where it is re-tokenised: only what differs is read again.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from scone.lm.model import CausalLM, LMState

__all__ = ["Reading", "common_prefix", "read_on"]


@dataclass(frozen=True)
class Reading:
    """A text that an LM has read: a row of a state.

    >>> from scone.embedded import load_lm
    >>> lm = CausalLM(*load_lm())
    >>> one, two = lm.encode("One"), lm.encode("One two")
    >>> Reading(lm.prefill([one, two]), 0, one).places  # behind the padding
    tensor([1])
    """

    state: LMState
    row: int
    ids: Sequence[int]  # the row's tokens, without padding

    @property
    def places(self) -> Tensor:
        """(tokens,) where in the row its tokens are."""
        return self.state.mask[self.row].nonzero()[:, 0]

    @property
    def can_be_cut(self) -> bool:
        """Whether every layer keeps every token, in its place: not where attention is to a window that is full."""
        layers = getattr(self.state.cache, "layers", [])
        width = self.state.mask.shape[1]
        tensors = [getattr(layer, name, None) for layer in layers for name in ("keys", "values")]
        return bool(layers) and all(isinstance(t, Tensor) and t.dim() == 4 and t.shape[2] == width for t in tensors)


def common_prefix(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens two texts begin with together.

    >>> common_prefix([1, 2, 3], [1, 2, 4, 5])
    2
    """
    for i, (a, b) in enumerate(zip(one, other)):
        if a != b:
            return i
    return min(len(one), len(other))


def read_on(lm: CausalLM, known: Sequence[Reading | None], texts: Sequence[Sequence[int]]) -> LMState:
    """The LM after each text, of which it may know the beginning; the states of what it knows stay as they were.

    >>> from scone.embedded import load_lm
    >>> lm = CausalLM(*load_lm())
    >>> one, two = lm.encode("One two three"), lm.encode("One two four")
    >>> first = Reading(lm.prefill([one]), 0, one)
    >>> after = read_on(lm, [first, None], [two, one])
    >>> bool(torch.allclose(after.logits, lm.prefill([two, one]).logits, atol=1e-3))
    True
    """
    starts = [
        # one token at least is read anew, for what the LM says after it
        (found, min(common_prefix(found.ids, ids), len(ids) - 1)) if found is not None and found.can_be_cut else None
        for found, ids in zip(known, texts)
    ]
    if not any(start and start[1] for start in starts):
        return lm.prefill(texts)
    cache, seen = _gathered(starts)
    rest = [list(ids[start[1] if start else 0 :]) for start, ids in zip(starts, texts)]
    width, pad = max(map(len, rest)), next(iter(lm.stop_ids), 0)
    new = torch.tensor([[pad] * (width - len(ids)) + ids for ids in rest])
    real = torch.tensor([[0] * (width - len(ids)) + [1] * len(ids) for ids in rest])
    return lm.read(new, torch.cat([seen, real.to(seen)], 1), cache, headless=True)


def _gathered(starts: Sequence[tuple[Reading, int] | None]) -> tuple[Any, Tensor]:
    """One cache of the first tokens of each reading, padded on the left, and its mask; None: nothing is known."""
    states = list({id(start[0].state): start[0].state for start in starts if start}.values())
    width = max(start[1] for start in starts if start)
    source = torch.tensor([next(i for i, s in enumerate(states) if s is start[0].state) if start else 0 for start in starts])  # fmt: skip
    row = torch.tensor([start[0].row if start else 0 for start in starts])
    column = torch.zeros(len(starts), width, dtype=torch.long)
    mask = torch.zeros(len(starts), width, dtype=states[0].mask.dtype)
    for i, start in enumerate(starts):
        if start and start[1]:
            column[i, width - start[1] :] = start[0].places[: start[1]].cpu()
            mask[i, width - start[1] :] = 1
    of_state = [(source == i).nonzero()[:, 0] for i in range(len(states))]
    order = torch.cat(of_state).argsort()
    picks = [(state, row[mine], column[mine]) for state, mine in zip(states, of_state)]
    cache = copy.copy(states[0].cache)
    cache.layers = [copy.copy(layer) for layer in cache.layers]
    for i, layer in enumerate(cache.layers):
        layer.keys = _picked([(state.cache.layers[i].keys, r, c) for state, r, c in picks], order)
        layer.values = _picked([(state.cache.layers[i].values, r, c) for state, r, c in picks], order)
        if hasattr(layer, "cumulative_length"):
            layer.cumulative_length = width
    return cache, mask.to(states[0].mask.device)


def _picked(sources: Sequence[tuple[Tensor, Tensor, Tensor]], order: Tensor) -> Tensor:
    """(B, heads, width, D) of caches (…, heads, T, D): for each source the rows, and of each row the columns."""
    parts = []
    for tensor, row, column in sources:
        row, column = row.to(tensor.device), column.to(tensor.device)
        parts.append(tensor.transpose(1, 2)[row[:, None], column].transpose(1, 2))
    return (parts[0] if len(parts) == 1 else torch.cat(parts)[order.to(parts[0].device)]).contiguous()
