"""How trained weights are made small: quantised deltas for the masked LM, low-rank adapters for the verifiers.

`scone.embedded.adapters` reads what is written here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import nn

from scone.embedded.adapters import Tensors


def quantise(delta: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """int8 with one scale per row.

    delta: (R, C) → (R, C) int8, (R,) float16 (rounded up, so that the largest entry still fits)

    >>> small, scale = quantise(torch.tensor([[1.0, -0.5], [0.0, 0.0]]))
    >>> small.tolist()
    [[127, -63], [0, 0]]
    """
    scale = (delta.abs().amax(dim=1) / 127).clamp(min=1e-7)
    stored = scale.half()
    stored = torch.where(stored.float() < scale, stored.nextafter(torch.full_like(stored, torch.inf)), stored)
    return (delta / stored.float()[:, None]).round().clamp(-127, 127).to(torch.int8), stored


def pack(trained: Mapping[str, torch.Tensor], base: Mapping[str, torch.Tensor]) -> Tensors:
    """What must be stored to get `trained` back from `base`: int8 deltas of matrices, float16 values of vectors."""
    packed: Tensors = {}
    for name, value in trained.items():
        if value.ndim == 2:
            start = base[name] if name in base else torch.zeros_like(value)
            packed[f"{name}.int8"], packed[f"{name}.scale"] = quantise(value - start)
        else:
            packed[name] = value.half()
    return packed


class LowRank(nn.Module):
    """A linear layer, frozen, plus a trained product of two thin matrices.

    Equals `nn.functional.linear(x, weight + up @ down, bias)`.
    """

    def __init__(self, frozen: nn.Linear, rank: int) -> None:
        super().__init__()
        self.frozen = frozen.requires_grad_(False)
        self.down = nn.Parameter(torch.randn(rank, frozen.in_features) / frozen.in_features**0.5)
        self.up = nn.Parameter(torch.zeros(frozen.out_features, rank))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: (..., in) → (..., out)"""
        # two thin products rather than one with the sum: backward then never forms the full weight's gradient
        return self.frozen(x) + nn.functional.linear(nn.functional.linear(x, self.down), self.up)


def _encoder_linears(model: nn.Module) -> Iterator[tuple[nn.Module, str, str]]:
    """(parent, attribute, full name) of every linear layer inside the encoder's blocks."""
    for name, module in list(model.named_modules()):
        parent, _, attribute = name.rpartition(".")
        if ".encoder.layer." in f".{name}" and isinstance(module, nn.Linear):
            yield model.get_submodule(parent), attribute, name


def add_adapters(model: nn.Module, rank: int) -> None:
    """Give every linear layer of the encoder a low-rank adapter, in place; the layer itself is frozen."""
    for parent, attribute, _ in _encoder_linears(model):
        setattr(parent, attribute, LowRank(getattr(parent, attribute), rank))


def adapter_tensors(model: nn.Module) -> Tensors:
    """The adapters' factors by the name of the layer that they change, in float16."""
    found: Tensors = {}
    for name, module in model.named_modules():
        if isinstance(module, LowRank):
            found[f"{name}.down"] = module.down.detach().half().contiguous()
            found[f"{name}.up"] = module.up.detach().half().contiguous()
    return found
