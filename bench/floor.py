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

__all__ = ["gflop", "memory_gigabytes", "seconds_at_best", "seconds_of_products"]

ROUNDS = 5
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
    """What the products of `run` with a weight take alone: each is timed once a round, in the order of their first use.

    Rounds pass over all weights, so that a weight is as far from the caches as it is in `run`.

    >>> layer = torch.nn.Linear(100, 50)
    >>> seconds_of_products(lambda: layer(torch.ones(1000, 100))) > 0
    True
    """
    with _Products() as products:
        run()
    seconds: dict[Any, list[float]] = {key: [] for key in products.found}
    with torch.no_grad():
        for _ in range(1 + ROUNDS):
            for key, (_, call) in products.found.items():
                start = time.perf_counter()
                call()
                seconds[key].append(time.perf_counter() - start)
    return sum(count * statistics.median(seconds[key][1:]) for key, (count, _) in products.found.items())


def seconds_at_best(run: Callable[[], Any], gflops: float, gigabytes: float) -> float:
    """What the products of `run` take on a machine with perfect software, by its two limits.

    Each product takes as long as its operations at `gflops` or as reading its weight at `gigabytes` a second, whichever
    is longer.

    >>> layer = torch.nn.Linear(1000, 1000, bias=False)  # 2 million operations a row, 4 million bytes
    >>> one, many = (lambda: layer(torch.ones(1, 1000))), (lambda: layer(torch.ones(1000, 1000)))
    >>> round(seconds_at_best(one, gflops=100, gigabytes=10), 6), round(seconds_at_best(many, 100, 10), 6)
    (0.0004, 0.02)
    """
    with _Products() as products:
        run()
    return sum(
        count * max(gflop(call) / gflops, call.args[_WEIGHT[call.func.overloadpacket]].nbytes / 1e9 / gigabytes)
        for count, call in products.found.values()
    )


def memory_gigabytes(size: int = 1 << 29) -> float:
    """Gigabytes a second that a sum over `size` bytes reads, best of five."""
    values = torch.ones(size // 4)
    seconds = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        values.sum()
        seconds.append(time.perf_counter() - start)
    return size / min(seconds) / 1e9


class _Products(TorchDispatchMode):
    """Notes products as they pass: how often each weight meets each number of rows, and the first such call."""

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[Any, tuple[int, partial[Any]]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        place = _WEIGHT.get(func.overloadpacket)
        if place is not None:
            shapes = (tuple(value.shape) for value in args if isinstance(value, Tensor))
            key = func, args[place].data_ptr(), *shapes
            count, call = self.found.get(key, (0, partial(func, *args, **(kwargs or {}))))
            self.found[key] = count + 1, call
        return func(*args, **(kwargs or {}))


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
_WEIGHT = {  # the products that are timed → which argument is the weight
    torch.ops.aten.mm: 1,
    torch.ops.aten.addmm: 2,
    torch.ops.aten.linear: 1,
    torch.ops.scone_kernels.linear: 1,
    torch.ops.scone_kernels.gibbs_sample: 1,
    torch.ops.scone_kernels.expected_embedding: 1,
    torch.ops.scone_kernels.expected_dot: 1,
}
