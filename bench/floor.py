"""How fast a machine could be at best: the products that some code asks for, at the speed of one large square GEMM."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

import scone_kernels  # noqa: F401 (registers the ops)

__all__ = ["gflop"]

Shape = Sequence[int]


def gflop(run: Callable[[], Any]) -> float:
    """Billions of operations in the matrix products of `run`: linear layers, attention, and the ops of this package.

    >>> layer = torch.nn.Linear(100, 50)
    >>> gflop(lambda: layer(torch.ones(1000, 100)))
    0.01
    """
    with FlopCounterMode(display=False, custom_mapping=_OURS) as counter:
        run()
    return counter.get_total_flops() / 1e9


def _linear(x: Shape, weight: Shape, *_: Any, out_shape: Any = None, **__: Any) -> int:
    return 2 * x[0] * weight[0] * weight[1]


def _expected_embedding(hidden: Shape, weight: Shape, table: Shape, *_: Any, out_shape: Any = None, **__: Any) -> int:
    return 2 * hidden[0] * (weight[0] * weight[1] + table[0] * table[1])


def _expected_dot(
    hidden: Shape, weight: Shape, table: Shape, grad: Shape, *_: Any, out_shape: Any = None, **__: Any
) -> int:
    return 2 * hidden[0] * weight[0] * weight[1] + 2 * grad[0] * table[0] * table[1]


def _attention(query: Shape, key: Shape, value: Shape, *_: Any, out_shape: Any = None, **__: Any) -> int:
    batch, heads, length, width = query
    return 2 * batch * heads * length * key[2] * (width + value[3])


_OURS = {
    torch.ops.scone_kernels.linear: _linear,
    torch.ops.scone_kernels.gibbs_sample: _linear,
    torch.ops.scone_kernels.expected_embedding: _expected_embedding,
    torch.ops.scone_kernels.expected_dot: _expected_dot,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: _attention,
}
