"""The small files of trained weights: quantised deltas for the masked LM, low-rank adapters for the verifiers.

Both are stored against MiniLM's own weights and are added to them at load, so that what comes out is a plain
transformers model. `recipes` writes them.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

from scone.errors import ModelError

Tensors = dict[str, torch.Tensor]


def dequantise(small: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """The float32 matrix (R, C) of int8 and one scale per row.

    >>> dequantise(torch.tensor([[127, -63]], dtype=torch.int8), torch.tensor([0.5], dtype=torch.float16)).tolist()
    [[63.5, -31.5]]
    """
    return small.float() * scale.float()[:, None]


def unpack(packed: Mapping[str, torch.Tensor], base: Mapping[str, torch.Tensor]) -> Tensors:
    """The trained tensors in float32: int8 deltas are added to their namesakes in `base`."""
    trained: Tensors = {}
    for name, value in packed.items():
        layer, _, kind = name.rpartition(".")
        if kind not in ("int8", "scale"):
            trained[name] = value.float()
            continue
        if not {f"{layer}.int8", f"{layer}.scale"} <= set(packed):
            raise ModelError(f"weights must have both int8 and scale of a matrix, got {name!r} alone")
        if kind == "int8":
            delta = dequantise(value, packed[f"{layer}.scale"])
            trained[layer] = base[layer].float() + delta if layer in base else delta
    return trained


@torch.no_grad()
def merge(model: nn.Module, tensors: Mapping[str, torch.Tensor]) -> None:
    """Add stored adapters to a plain model's layers, in place, and copy every other tensor over its namesake.

    >>> merge(nn.Linear(2, 2), {"weights": torch.zeros(2, 2)})
    Traceback (most recent call last):
    scone.errors.ModelError: weights must be of layers that Linear has, got 'weights'
    """
    state = dict(model.state_dict(keep_vars=True))
    for name, value in tensors.items():
        layer, _, factor = name.rpartition(".")
        low_rank = factor in ("down", "up")
        target = f"{layer}.weight" if low_rank else name
        if target not in state or (low_rank and not {f"{layer}.down", f"{layer}.up"} <= set(tensors)):
            raise ModelError(f"weights must be of layers that {type(model).__name__} has, got {name!r}")
        if factor == "down":
            state[target].add_(tensors[f"{layer}.up"].float() @ value.float())
        elif not low_rank:
            state[name].copy_(value)
