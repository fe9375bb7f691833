"""The definition of expected_dot, in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor

from ... import _checks, _head


def from_logits(
    logits: Tensor,
    table: Tensor,
    grad: Tensor,
    segment: Tensor | None,
    keep: Tensor | None,
    temperature: float,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """`(softmax(logits / temperature, -1) * (grad[segment] @ table.T)).sum(-1)` over the kept tokens, (N,)."""
    projected = grad.to(dtype) @ table.to(dtype).T  # (S, V), or (N, V) without segments
    if segment is not None:
        _checks.segment_range(segment, grad.shape[0])
        projected = projected[segment]
    return (torch.softmax(_head.tempered(logits, keep, temperature, dtype), -1) * projected).sum(-1)


def fused(
    hidden: Tensor,
    weight: Tensor,
    table: Tensor,
    grad: Tensor,
    segment: Tensor | None,
    bias: Tensor | None,
    keep: Tensor | None,
    temperature: float,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """The same with `logits = hidden @ weight.T + bias`."""
    return from_logits(_head.logits(hidden, weight, bias, dtype), table, grad, segment, keep, temperature, dtype)
