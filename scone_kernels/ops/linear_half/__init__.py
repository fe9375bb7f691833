"""linear_half: a linear layer whose weight is kept in 16 bits and multiplied in float32, and a way to give it to a model.

Most models are published in bfloat16 or float16 and computed with in float32 on a CPU. Their weights are then numbers of 16
bits in 32: kept in 16, nothing is lost, and a step that waits for memory reads half.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from scone_kernels import _backend, _checks
from scone_kernels._checks import PANEL
from scone_kernels._registry import Op


def to_panels(weight: Tensor) -> Tensor | None:
    """A weight (M, K) in panels of 16 bits, (⌈M / 48⌉, K, 48), or None where that would change a value.

    >>> to_panels(torch.tensor([[1.5, -0.25]])).shape, to_panels(torch.tensor([[0.1]])) is None
    (torch.Size([1, 2, 48]), True)
    """
    _checks.single("weight", weight, (None, None), weight.device)
    for dtype in (torch.bfloat16, torch.float16):
        half = weight.detach().to(dtype)
        if torch.equal(half.float(), weight):
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


def reference(x: Tensor, panels: Tensor, bias: Tensor | None, width: int) -> Tensor:
    """The definition."""
    return nn.functional.linear(x.float(), from_panels(panels, width), None if bias is None else bias.float())


_op = Op(
    "linear_half(Tensor x, Tensor panels, Tensor? bias, int width) -> Tensor",
    reference=reference,
    launch=None,  # on a GPU the library's own product is the best
    fake=lambda x, panels, bias, width: x.new_empty((x.shape[0], width), dtype=torch.float32),
)


def linear_half(
    x: Tensor, panels: Tensor, bias: Tensor | None = None, *, width: int, backend: str | None = None
) -> Tensor:
    """Equals `linear(x, from_panels(panels, width), bias)`, and reads half as many bytes.

    x: (N, K)   panels: (⌈width / 48⌉, K, 48) bfloat16 or float16, from `to_panels`   bias: (width,)
    returns (N, width) float32

    >>> panels = to_panels(torch.tensor([[3.0, 4.0]]))
    >>> linear_half(torch.tensor([[1.0, 2.0]]), panels, torch.tensor([0.5]), width=1).tolist()
    [[11.5]]
    """
    device = x.device if isinstance(x, Tensor) else torch.device("cpu")
    _checks.floats("x", x, (None, None), device)
    _checks.panels("panels", panels, (width, x.shape[1]), device)
    if bias is not None:
        _checks.floats("bias", bias, (width,), device)
    return _op(backend, x, panels, bias, width)


class HalfLinear(nn.Linear):
    """`nn.Linear` whose weight lies in panels of 16 bits; `weight` makes a float32 copy of it."""

    bits: Tensor

    def __init__(self, panels: Tensor, width: int, bias: nn.Parameter | None) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features, self.stored = panels.shape[1], width, panels.dtype
        self.register_buffer(
            "bits", panels.view(torch.int16)
        )  # integers stay as they are when a model changes its dtype
        self.register_parameter("bias", bias)

    @property
    def panels(self) -> Tensor:
        """(⌈M / 48⌉, K, 48) in 16 bits"""
        return self.bits.view(self.stored)

    @property
    def weight(self) -> Tensor:  # type: ignore[override]
        """(M, K) float32, a copy"""
        return from_panels(self.panels, self.out_features)

    def forward(self, x: Tensor) -> Tensor:
        """x: (..., K) → (..., M)"""
        plain = x.dtype == torch.float32 and x.device.type == "cpu" and not torch.is_grad_enabled()
        if not plain or torch.is_autocast_enabled("cpu"):
            return nn.functional.linear(x, self.weight.to(x.dtype), self.bias)
        rows = torch.ops.scone_kernels.linear_half(
            x.reshape(-1, x.shape[-1]), self.panels, self.bias, self.out_features
        )
        return rows.view(*x.shape[:-1], self.out_features)


def keep_halves(model: nn.Module) -> int:
    """Keep the weights of a model's linear layers in 16 bits, in place, where not one value changes; how many were.

    For models in float32 on a CPU that were published in bfloat16 or float16: the results are those of float32,
    they take half the memory, and a step waits half as long for it. A weight that is also an embedding table is kept as it
    is for that and in 16 bits for the product. Weights that are not numbers of 16 bits, and layers of other kinds, stay.
    Weights can no longer be trained. Without vector kernels nothing is done.

    >>> model = nn.Sequential(nn.Linear(64, 8), nn.ReLU())
    >>> _ = model.bfloat16().float()
    >>> with torch.no_grad():
    ...     before = model(torch.ones(2, 64))
    ...     kept = keep_halves(model)
    ...     kept in (0, 1) and bool(torch.allclose(model(torch.ones(2, 64)), before, atol=1e-6))
    True
    """
    if not _backend.status().cpu.live or torch.ops.scone_kernels.cpu_build() == "baseline":
        return 0
    kept = 0
    for module in list(model.modules()):
        for name, layer in list(module.named_children()):
            if type(layer) is not nn.Linear or layer.weight.dtype != torch.float32 or layer.weight.device.type != "cpu":
                continue
            if layer._forward_hooks or layer._forward_pre_hooks or (panels := to_panels(layer.weight)) is None:
                continue
            setattr(module, name, HalfLinear(panels, layer.out_features, layer.bias).train(layer.training))
            kept += 1
    return kept
