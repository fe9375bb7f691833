"""linear: torch's own linear layer, faster on the CPU where it has few rows, and a way to give it to a whole model."""

from __future__ import annotations

import copy
from typing import TypeVar

import torch
from torch import Tensor, nn

from scone_kernels import _checks, _extension
from scone_kernels._registry import Op

Model = TypeVar("Model", bound=nn.Module)

_op = Op(
    "linear(Tensor x, Tensor weight, Tensor? bias) -> Tensor",
    reference=lambda x, weight, bias: nn.functional.linear(x.float(), weight.float(), None if bias is None else bias.float()),
    launch=None,  # on a GPU the library's own product is the best
    fake=lambda x, weight, bias: x.new_empty((x.shape[0], weight.shape[0]), dtype=torch.float32),
)  # fmt: skip


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, *, backend: str | None = None) -> Tensor:
    """Equals `torch.nn.functional.linear(x, weight, bias)` in float32, faster for few rows on the CPU.

    x: (N, K)   weight: (M, K)   bias: (M,)   returns (N, M) float32

    A language model that writes a few texts multiplies a few rows with every weight it has. That is bound by reading
    the weights once, which a general GEMM does not reach.

    >>> import torch
    >>> linear(torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0, 4.0]]), torch.tensor([0.5])).tolist()
    [[11.5]]
    """
    device = x.device if isinstance(x, Tensor) else torch.device("cpu")
    _checks.floats("x", x, (None, None), device)
    _checks.floats("weight", weight, (None, x.shape[1]), device)
    if bias is not None:
        _checks.floats("bias", bias, (weight.shape[0],), device)
    return _op(backend, x, weight, bias)


class FewRowsLinear(nn.Linear):
    """`nn.Linear` that takes `linear` where no gradient is asked for."""

    def forward(self, x: Tensor) -> Tensor:
        """x: (..., K) → (..., M)"""
        plain = x.dtype == self.weight.dtype == torch.float32 and x.device.type == "cpu" and not torch.is_grad_enabled()
        if not plain or torch.is_autocast_enabled("cpu"):
            return super().forward(x)
        rows = torch.ops.scone_kernels.linear(x.reshape(-1, x.shape[-1]), self.weight, self.bias)
        return rows.view(*x.shape[:-1], rows.shape[1])


def for_few_rows(model: Model) -> Model:
    """A twin of a model whose linear layers take `linear`; the model itself stays as it is.

    The twin shares parameters, buffers and hooks with the model: nothing is copied, and new values, new hooks and
    `model.to(...)` show in both. Layers that are added to or taken from the model later do not. Without the C++
    extension the model itself is returned.

    >>> import torch
    >>> model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU())
    >>> twin = for_few_rows(model)
    >>> twin[0].weight is model[0].weight
    True
    >>> with torch.no_grad():
    ...     bool(torch.allclose(twin(torch.ones(2, 4)), model(torch.ones(2, 4)), atol=1e-6))
    True
    """
    return model if _extension.why_missing is not None else _twin(model, {})


def _twin(module: Model, known: dict[nn.Module, nn.Module]) -> Model:
    if module not in known:
        known[module] = other = copy.copy(module)  # of the same dictionaries: parameters, buffers, hooks
        other._modules = {name: child and _twin(child, known) for name, child in module._modules.items()}
        if type(other) is nn.Linear:
            other.__class__ = FewRowsLinear  # type: ignore[assignment]
    return known[module]  # type: ignore[return-value]
