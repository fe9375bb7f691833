"""linear_half: a product with a weight that is kept in 16 bits and multiplied in float32.

Most models are published in bfloat16 or float16 and computed with in float32 on a CPU. Their weights are then numbers of 16
bits in 32: kept in 16, nothing is lost, and a step that waits for memory reads half.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ... import _checks
from ..._panels import from_panels
from ..._registry import Op


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
    _checks.count("width", width)
    _checks.panels("panels", panels, (width, x.shape[1]), device)
    if bias is not None:
        _checks.floats("bias", bias, (width,), device)
    return _op(backend, x, panels, bias, width)
