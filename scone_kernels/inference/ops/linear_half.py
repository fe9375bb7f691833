"""linear_half: a product with a weight that is kept in 16 bits and multiplied in float32.

Most models are published in bfloat16 or float16 and computed with in float32 on a CPU. Their weights are then numbers of 16
bits in 32: kept in 16, nothing is lost, and a step that waits for memory reads half.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ... import _checks
from ..._checks import PANEL
from ..._registry import Op


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
    """Equals `torch.nn.functional.linear(x, from_panels(panels, width), bias)`, and reads half as many bytes.

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
