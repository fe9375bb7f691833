"""How fast a machine could be at best: the matrix products that some code asks for, and nothing else."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import cycle
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from scone_kernels._panels import from_panels
from scone_kernels.inference.ops.decoder_step import DecoderLayer
from scone_kernels.inference.ops.encoder import EncoderLayer

__all__ = ["Products", "gflop", "memory_gigabytes"]

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


@dataclass(frozen=True)
class Products:
    """The products with a weight that some code asked for: how often, one such call, and the weight.

    >>> layer = torch.nn.Linear(1000, 1000, bias=False)  # 2 million operations a row, 4 million bytes
    >>> one, many = (Products.of(lambda: layer(torch.ones(rows, 1000))) for rows in (1, 1000))
    >>> many.gflop, round(one.at_best(100, 10), 6), round(many.at_best(gflops=100, gigabytes=10), 6)
    (2.0, 0.0004, 0.02)
    >>> one.alone() > 0
    True
    """

    found: list[tuple[int, Callable[[], Any], Tensor]]

    @staticmethod
    def of(run: Callable[[], Any]) -> Products:
        """Run it once and take note."""
        with _Watch() as watch:
            run()
        return Products(list(watch.found.values()))

    def with_weights_of(self, model: torch.nn.Module) -> Products:
        """Those whose weight is a parameter or a buffer of the model."""
        own = {tensor.data_ptr() for tensor in (*model.parameters(), *model.buffers())}
        return Products([found for found in self.found if found[2].data_ptr() in own])

    @property
    def gflop(self) -> float:
        """Billions of operations."""
        return sum(count * gflop(call) for count, call, _ in self.found)

    @torch.no_grad()
    def alone(self) -> float:
        """Seconds that they take by themselves, each by the faster of our kernels and torch's library.

        Rounds pass over all weights in the order of their first use, so that a weight is as far from the caches as it was in
        the run.
        """
        calls = [call for _, call, _ in self.found]
        by = [_medians(way) for way in (calls, [_by_the_library(call) for call in calls])]
        return sum(count * min(seconds) for (count, _, _), *seconds in zip(self.found, *by))

    def at_best(self, gflops: float, gigabytes: float) -> float:
        """Seconds by the machine's two limits, whichever is longer for each product: operations, or reading the weight."""
        return sum(
            count * max(gflop(call) / gflops, weight.nbytes / 1e9 / gigabytes) for count, call, weight in self.found
        )


def _medians(calls: Sequence[Callable[[], Any]]) -> list[float]:
    """Seconds of each call, which all take turns."""
    seconds: list[list[float]] = [[] for _ in calls]
    for _ in range(1 + ROUNDS):
        for call, own in zip(calls, seconds):
            start = time.perf_counter()
            call()
            own.append(time.perf_counter() - start)
    return [statistics.median(own[1:]) for own in seconds]


def _by_the_library(call: Callable[[], Any]) -> Callable[[], Any]:
    """The same product by torch's own linear layer, where ours is one."""
    if isinstance(call, partial) and call.func is torch.ops.scone_kernels.linear_half.default:
        x, panels, bias, width = call.args
        return partial(torch.ops.aten.linear.default, x, from_panels(panels, width), bias)
    return call


def memory_gigabytes(size: int = 1 << 29) -> float:
    """Gigabytes a second that all threads together read, by the median of sums over `size` bytes."""
    values = torch.ones(size // 4)
    seconds = []
    for _ in range(3 * ROUNDS):
        start = time.perf_counter()
        values.sum()
        seconds.append(time.perf_counter() - start)
    return size / statistics.median(seconds) / 1e9


class _Watch(TorchDispatchMode):
    """Notes products as they pass: how often each weight meets each number of rows, and the first such call."""

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[Any, tuple[int, Callable[[], Any], Tensor]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        place = _WEIGHT.get(func.overloadpacket)
        if func.overloadpacket in _PASSES:
            for rows, weight in _PASSES[func.overloadpacket](args, len):
                x = torch.ones(rows, weight.shape[1])
                if weight.dim() == 3:
                    width = weight.shape[0] * weight.shape[2]
                    self._note(torch.ops.scone_kernels.linear_half.default, 1, x, weight, None, width)
                else:
                    self._note(torch.ops.aten.linear.default, 1, x, weight, None)
        elif place is not None:
            self._note(func, place, *args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))

    def _note(self, func: Any, place: int, *args: Any, **kwargs: Any) -> None:
        shapes = (tuple(value.shape) for value in args if isinstance(value, Tensor))
        key = func, args[place].data_ptr(), *shapes
        count, call, weight = self.found.get(key, (0, partial(func, *args, **kwargs), args[place]))
        self.found[key] = count + 1, call, weight


def _linear(x: Shape, weight: Shape, *_: Any, out_shape: Any = None, **__: Any) -> int:
    return 2 * x[0] * prod(weight)


def _of_decoder(args: Sequence[Any], count: Callable[[Any], int]) -> Iterator[tuple[int, Any]]:
    """(rows, weight) of the products in a call of `decoder_step`; `count` tells the rows of a tensor, or of its shape."""
    for name, weight in zip(cycle(DecoderLayer._fields), args[1]):
        if not name.endswith(("norm", "bias")):
            yield count(args[0]), weight


def _of_encoder(args: Sequence[Any], count: Callable[[Any], int]) -> Iterator[tuple[int, Any]]:
    """The same of `encoder`: behind its keys and values the last layer has the rows that are asked for."""
    x, _, asked, weights = args[:4]
    last = len(weights) - len(EncoderLayer._fields)
    for i, (name, weight) in enumerate(zip(cycle(EncoderLayer._fields), weights)):
        if not name.endswith(("gain", "bias")):
            yield count(asked if i >= last and name not in ("key", "value") else x), weight


_PASSES = {torch.ops.scone_kernels.decoder_step: _of_decoder, torch.ops.scone_kernels.encoder: _of_encoder}


def _pass(products: Callable[..., Iterator[tuple[int, Any]]]) -> Callable[..., int]:
    def flops(*args: Any, out_shape: Any = None, **_: Any) -> int:
        return sum(_linear((rows, 0), weight) for rows, weight in products(args, lambda shape: shape[0]))

    return flops


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
    torch.ops.scone_kernels.linear_half: _linear,
    **{op: _pass(products) for op, products in _PASSES.items()},
    torch.ops.scone_kernels.gibbs_sample: _linear,
    torch.ops.scone_kernels.expected_embedding: _expected_embedding,
    torch.ops.scone_kernels.expected_dot: _expected_dot,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: _attention,
}
_WEIGHT = {  # the products that are timed → which argument is the weight
    torch.ops.aten.mm: 1,
    torch.ops.aten.addmm: 2,
    torch.ops.aten.linear: 1,
    torch.ops.scone_kernels.linear_half: 1,
    torch.ops.scone_kernels.gibbs_sample: 1,
    torch.ops.scone_kernels.expected_embedding: 1,
    torch.ops.scone_kernels.expected_dot: 1,
}
