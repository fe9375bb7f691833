"""The definition of taylor_estimate, in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor

from ... import _checks


def estimate(
    score: Tensor,
    grad: Tensor,
    expected: Tensor,
    anchor: Tensor,
    segment: Tensor,
    form: str,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """`score + sum_t grad_t . (expected_t - anchor_t)` per sequence; "mean": `(sum_t grad_t) . mean_t(...)`; (S,)."""
    _checks.segment_range(segment, score.shape[0])
    score, grad, step = score.to(dtype), grad.to(dtype), expected.to(dtype) - anchor.to(dtype)
    if form == "position":
        return score.index_add(0, segment, (grad * step).sum(-1))
    sums = torch.zeros(score.shape[0], grad.shape[1], dtype=dtype, device=score.device)
    rows = torch.bincount(segment, minlength=score.shape[0]).clamp(min=1)
    return score + (sums.index_add(0, segment, grad) * sums.index_add(0, segment, step)).sum(-1) / rows
