"""Weights that are kept in 16 bits, as the CPU kernels read them: panels of rows that lie along the vector lanes."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from . import _checks
from ._checks import PANEL

__all__ = ["from_panels", "to_panels"]


def to_panels(weight: Tensor) -> Tensor | None:
    """A weight (M, K) in panels of 16 bits, (⌈M / 48⌉, K, 48), or None where that would change a value of float32.

    >>> to_panels(torch.tensor([[1.5, -0.25]])).shape, to_panels(torch.tensor([[0.1]])) is None
    (torch.Size([1, 2, 48]), True)
    """
    _checks.floats("weight", weight, (None, None), weight.device if isinstance(weight, Tensor) else torch.device("cpu"))
    if weight.is_meta:
        raise ValueError("weight must have values to look at, got one on the device meta")
    halves = (torch.bfloat16, torch.float16)
    for dtype in (weight.dtype,) if weight.dtype in halves else halves:
        half = weight.detach().to(dtype)
        if dtype is weight.dtype or torch.equal(half.float(), weight):
            rows, columns = weight.shape
            padded = nn.functional.pad(half, (0, 0, 0, -rows % PANEL))
            return padded.view(-(-rows // PANEL), PANEL, columns).transpose(1, 2).contiguous()
    return None


def from_panels(panels: Tensor, width: int) -> Tensor:
    """The weight (width, K) in float32.

    >>> weight = torch.tensor([[1.5, -0.25]])
    >>> torch.equal(from_panels(to_panels(weight), 1), weight)
    True
    """
    return panels.transpose(1, 2).flatten(0, 1)[:width].float()
