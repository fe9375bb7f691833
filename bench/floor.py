"""How fast a machine could be at best: the matrix products that some code asks for, and nothing else."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

import scone_kernels  # noqa: F401 (registers the ops)

__all__ = ["gflop", "seconds_of_products"]

REPEATS = 5
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


def seconds_of_products(run: Callable[[], Any]) -> float:
    """What the products of `run` with a weight take alone: each shape is timed by itself, times how often it occurs.

    >>> layer = torch.nn.Linear(100, 50)
    >>> seconds_of_products(lambda: layer(torch.ones(1000, 100))) > 0
    True
    """
    with _Products() as products:
        run()
    with torch.no_grad():
        return sum(count * _median_seconds(call) for count, call in products.found.values())


class _Products(TorchDispatchMode):
    """Notes products as they pass: how often each shape occurs, and the first call of it."""

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[Any, tuple[int, Callable[[], Any]]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket in _TIMED:
            key = func, *(tuple(value.shape) for value in args if isinstance(value, Tensor))
            count, call = self.found.get(key, (0, partial(func, *args, **(kwargs or {}))))
            self.found[key] = count + 1, call
        return func(*args, **(kwargs or {}))


def _median_seconds(call: Callable[[], Any]) -> float:
    times = []
    for _ in range(1 + REPEATS):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times[1:])


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
_TIMED = {torch.ops.aten.mm, torch.ops.aten.addmm, torch.ops.aten.linear} | {
    op for op in _OURS if op is not torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
}
