"""The head in plain torch, shared by the references: from hidden states to masked, tempered logits."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def logits(hidden: Tensor, weight: Tensor, bias: Tensor | None, dtype: torch.dtype = torch.float32) -> Tensor:
    """`hidden @ weight.T + bias` in `dtype`, (N, V)."""
    out = hidden.to(dtype) @ weight.to(dtype).T
    return out if bias is None else out + bias.to(dtype)


def rows_of(weight: Tensor, vocabulary: int) -> Tensor:
    """The weight (V, H) itself, or taken out of its panels (⌈V / 48⌉, H, 48)."""
    return weight if weight.dim() == 2 else weight.transpose(1, 2).flatten(0, 1)[:vocabulary]


def tempered(logits: Tensor, keep: Tensor | None, temperature: float, dtype: torch.dtype = torch.float32) -> Tensor:
    """-inf where `keep` is false, then divided by the temperature (as a product with its inverse, as in the kernels)."""
    out = logits.to(dtype)
    if keep is not None:
        out = out.masked_fill(~keep, -math.inf)
    return out * (1.0 / temperature)


def row_of_logits(hidden: Tensor, weight: Tensor, bias: Tensor | None, keep: Tensor | None, row: int) -> Tensor:
    """The masked logits (V,) of one row, to explain an error."""
    return tempered(logits(hidden[row : row + 1], weight, bias), keep, 1.0)[0]
