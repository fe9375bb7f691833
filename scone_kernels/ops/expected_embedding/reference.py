"""The definition of expected_embedding, in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor

from ... import _head


def from_logits(
    logits: Tensor, table: Tensor, keep: Tensor | None, temperature: float, dtype: torch.dtype = torch.float32
) -> Tensor:
    """`softmax(logits / temperature, -1) @ table` over the kept tokens, (N, D)."""
    return torch.softmax(_head.tempered(logits, keep, temperature, dtype), -1) @ table.to(dtype)


def fused(
    hidden: Tensor,
    weight: Tensor,
    table: Tensor,
    bias: Tensor | None,
    keep: Tensor | None,
    temperature: float,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """The same with `logits = hidden @ weight.T + bias`."""
    return from_logits(_head.logits(hidden, weight, bias, dtype), table, keep, temperature, dtype)
