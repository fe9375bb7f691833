"""What a result says when somebody asks for its gradient: the ops have none."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def refuse(name: str, result: Any, arguments: tuple[Any, ...]) -> Any:
    """`result`, whose floating-point tensors raise in `backward` if one of `arguments` requires grad.

    Without this they would be constants, and a loss that is made of them would quietly lack what they stand for.
    """
    wanting = [tensor for tensor in _tensors(arguments) if tensor.requires_grad]
    if not wanting:
        return result
    if isinstance(result, Tensor):
        return _Refusal.apply(name, result, *wanting) if result.is_floating_point() else result
    return type(result)(refuse(name, part, (wanting[0],)) for part in result)


def _tensors(value: Any) -> list[Tensor]:
    """All tensors of a value, also those in lists of it."""
    if isinstance(value, Tensor):
        return [value]
    return [tensor for part in value for tensor in _tensors(part)] if isinstance(value, list | tuple) else []


class _Refusal(torch.autograd.Function):
    """The identity, without a gradient."""

    @staticmethod
    def forward(ctx: Any, name: str, result: Tensor, *wanting: Tensor) -> Tensor:
        ctx.name = name
        return result.view_as(result)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        raise NotImplementedError(
            f"{ctx.name} has no gradient: call it under torch.no_grad() or with detached tensors, or write "
            f"the torch line that it replaces where a gradient has to flow"
        )
