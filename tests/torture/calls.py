"""Calls of the public functions of `scone_kernels`, lawful ones and hostile ones, drawn at random.

A lawful call gives what the reference gives. A hostile one, in which one argument is something else, works or ends in a
TypeError, ValueError or RuntimeError that names an argument of the function: never in anything else.
"""

from __future__ import annotations

import inspect
import math
import random
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import scone_kernels as kernels
from scone_kernels.inference.ops.decoder_step import DecoderLayer, decoder_step
from scone_kernels.inference.ops.encoder import EncoderLayer, encoder
from scone_kernels.inference.ops.linear_half import linear_half

Call = tuple[Callable[..., Any], dict[str, Any]]
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
SIZES = (1, 2, 3, 47, 48, 49, 130)


def lawful(chance: random.Random) -> Call:
    """A call with shapes, strides, types and values of every lawful kind."""
    make = chance.choice(_MAKERS)
    return make(_Draw(chance))


def hostile(chance: random.Random) -> tuple[Callable[..., Any], dict[str, Any], str]:
    """A lawful call with something else in the place of one argument, and that argument's name."""
    function, given = lawful(chance)
    name = chance.choice(sorted(given))
    return function, {**given, name: chance.choice(_STRANGE)(given[name])}, name


def answer(function: Callable[..., Any], given: dict[str, Any]) -> list[Tensor] | Exception:
    """The tensors that a call returns, or one of the errors that it may end in; anything else is raised."""
    try:
        found = function(**given)
    except (TypeError, ValueError, RuntimeError) as error:
        names = inspect.signature(function).parameters
        if not any(name in str(error) for name in (*names, "row ", "rows ", "vocabulary", "layers")):
            raise AssertionError(f"{type(error).__name__} names no argument: {error}") from error
        return error
    return _flat(found)


def agree(found: list[Tensor], expected: list[Tensor]) -> None:
    """Raise AssertionError where two answers differ by more than float32 may."""
    assert len(found) == len(expected)
    for mine, theirs in zip(found, expected):
        torch.testing.assert_close(mine.float(), theirs.float(), atol=2e-3, rtol=2e-3, equal_nan=True)


def _flat(found: Any) -> list[Tensor]:
    if isinstance(found, Tensor):
        return [found]
    if isinstance(found, list | tuple):
        return [tensor for part in found for tensor in _flat(part)]
    return []


class _Draw:
    """Random arguments."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.generator = torch.Generator().manual_seed(chance.getrandbits(60))
        self.dtype = chance.choice(DTYPES)

    def size(self, *, zero: bool = False) -> int:
        return self.chance.choice((0, *SIZES) if zero else SIZES)

    def tensor(self, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        """Values of some scale, as a view with strides of some kind."""
        scale = self.chance.choice((1e-3, 1.0, 5.0))
        kind = self.chance.randrange(4)
        if kind == 1 and len(shape) == 2:
            made = torch.randn(shape[::-1], generator=self.generator).t()
        elif kind == 2:
            made = torch.randn((*shape[:-1], 2 * shape[-1]), generator=self.generator)[..., ::2]
        elif kind == 3:
            made = torch.randn((shape[0] + 1, *shape[1:]), generator=self.generator)[1:]
        else:
            made = torch.randn(shape, generator=self.generator)
        return (made * scale).to(dtype or self.dtype)

    def integers(self, count: int, most: int) -> Tensor:
        return torch.randint(most, (count,), generator=self.generator)

    def head(self, rows: int, width: int, vocabulary: int) -> dict[str, Any]:
        keep = torch.rand(vocabulary, generator=self.generator) < 0.7
        keep[self.chance.randrange(vocabulary)] = True
        return {
            "hidden": self.tensor(rows, width),
            "weight": self.tensor(vocabulary, width),
            "bias": self.chance.choice((None, self.tensor(vocabulary))),
            "keep": self.chance.choice((None, keep)),
            "temperature": self.chance.choice((0.1, 1, 1.0, 30.0)),
        }


def _logits(draw: _Draw, rows: int, vocabulary: int) -> dict[str, Any]:
    head = draw.head(rows, 2, vocabulary)
    return {"logits": draw.tensor(rows, vocabulary), "keep": head["keep"], "temperature": head["temperature"]}


def _seeds(draw: _Draw, rows: int) -> dict[str, Any]:
    edges = (0, 1, -1, 2**32 - 1, 2**32, 2**63 - 1, -(2**63), 2**64 - 1)
    many = torch.tensor([draw.chance.choice(edges[:-1]) for _ in range(rows)], dtype=torch.int64)
    return {name: draw.chance.choice((draw.chance.choice(edges), many)) for name in ("seed", "counter")}


def _expected_embedding(draw: _Draw) -> Call:
    rows, width, size, depth = draw.size(zero=True), draw.size(), draw.size(), draw.size()
    return kernels.expected_embedding, {**draw.head(rows, width, size), "table": draw.tensor(size, depth)}


def _expected_embedding_from_logits(draw: _Draw) -> Call:
    rows, size = draw.size(zero=True), draw.size()
    given = {**_logits(draw, rows, size), "table": draw.tensor(size, draw.size())}
    return kernels.expected_embedding_from_logits, given


def _dots(draw: _Draw, rows: int, size: int) -> dict[str, Any]:
    depth, sequences = draw.size(), draw.size()
    table, grad = draw.tensor(size, depth), draw.tensor(sequences, depth)
    return {"table": table, "grad": grad, "segment": draw.integers(rows, sequences)}


def _expected_dot(draw: _Draw) -> Call:
    rows, size = draw.size(zero=True), draw.size()
    return kernels.expected_dot, {**draw.head(rows, draw.size(), size), **_dots(draw, rows, size)}


def _expected_dot_from_logits(draw: _Draw) -> Call:
    rows, size = draw.size(zero=True), draw.size()
    return kernels.expected_dot_from_logits, {**_logits(draw, rows, size), **_dots(draw, rows, size)}


def _gibbs_sample_from_logits(draw: _Draw) -> Call:
    rows, size = draw.size(zero=True), draw.size()
    return kernels.gibbs_sample_from_logits, {**_logits(draw, rows, size), **_seeds(draw, rows)}


def _likely_rows_from_logits(draw: _Draw) -> Call:
    rows, size = draw.size(zero=True), draw.size()
    given = {"tables": [draw.tensor(size, draw.size())], "among": draw.chance.choice((1, 5, 64)), "min_p": 0.0}
    return kernels.likely_rows_from_logits, {**_logits(draw, rows, size), **given}


def _taylor_estimate(draw: _Draw) -> Call:
    rows, depth, sequences = draw.size(zero=True), draw.size(), draw.size()
    names = ("grad", "expected", "anchor")
    given: dict[str, Any] = {name: draw.tensor(rows, depth) for name in names}
    given |= {"score": draw.tensor(sequences), "segment": draw.integers(rows, sequences)}
    return kernels.taylor_estimate, {**given, "form": draw.chance.choice(("position", "mean"))}


def _to_panels(draw: _Draw) -> Call:
    dtype = draw.chance.choice(DTYPES[1:])
    return kernels.to_panels, {"weight": draw.tensor(draw.size(), draw.size(), dtype=dtype).float()}


def _linear_half(draw: _Draw) -> Call:
    width, columns = draw.size(), draw.size()
    panels = kernels.to_panels(torch.randn((width, columns), generator=draw.generator).bfloat16().float())
    bias = draw.chance.choice((None, draw.tensor(width)))
    return linear_half, {
        "x": draw.tensor(draw.size(zero=True), columns),
        "panels": panels,
        "bias": bias,
        "width": width,
    }


def _decoder_step(draw: _Draw) -> Call:
    rows, length, single = draw.chance.randint(1, 4), draw.chance.randint(0, 6), torch.float32
    shapes = [(8,), (8, 8), None, (4, 8), None, (4, 8), None, (8, 8), (8,), (12, 8), (12, 8), (8, 12)]
    layer = DecoderLayer(*(shape and draw.tensor(*shape, dtype=single) for shape in shapes))  # type: ignore[arg-type]
    cache = [torch.randn((rows, 1, length, 4), generator=draw.generator)]
    angle = draw.tensor(rows, 4, dtype=single)
    given = {"x": draw.tensor(rows, 8, dtype=single), "layers": [layer], "keys": cache, "values": cache}
    return decoder_step, {**given, "cos": angle.cos(), "sin": angle.sin(), "heads": 2, "eps": 1e-5, "seen": None}


def _encoder(draw: _Draw) -> Call:
    single, rows = torch.float32, draw.chance.randint(1, 9)
    shapes = [(8, 8), (8,)] * 4 + [(8,), (8,), (12, 8), (12,), (8, 12), (8,), (8,), (8,)]
    layer = EncoderLayer(*(draw.tensor(*shape, dtype=single).contiguous() for shape in shapes))
    cut = draw.chance.randint(0, rows)
    given = {"x": draw.tensor(rows, 8, dtype=single), "starts": torch.tensor([0, cut, rows]), "layers": [layer]}
    return encoder, {**given, "heads": 2, "eps": 1e-12, "rows": None}


_MAKERS = (
    _expected_embedding, _expected_embedding_from_logits, _expected_dot, _expected_dot_from_logits,
    _gibbs_sample_from_logits, _likely_rows_from_logits, _taylor_estimate, _to_panels, _linear_half, _decoder_step,
    _encoder,
)  # fmt: skip

# What is put in the place of an argument, made of what stood there.
_STRANGE: tuple[Callable[[Any], Any], ...] = (
    *(lambda _, value=value: value for value in (
        None, True, -1, 0, 2**31, 2**63, -(2**70), 10**400, 10**5000, 0.5, 1e-40, -0.0, math.nan, math.inf, "x", b"", [],
        [None], {}, object(), torch.zeros(0), torch.zeros(()), torch.zeros(2, 0), torch.zeros(1, 1, 1),
        torch.tensor([-1]), torch.tensor([2**62]), torch.zeros(3, 3, dtype=torch.complex64),
        torch.zeros(3, 3).to_sparse(), torch.zeros(3, 3, device="meta"), torch.zeros(4, dtype=torch.bool),
    )),
    lambda old: old.t() if isinstance(old, Tensor) and old.dim() == 2 else [old],
    lambda old: old.double() if isinstance(old, Tensor) else (old, old),
    lambda old: old[:-1] if isinstance(old, Tensor | list) and len(old) else old,
    lambda old: old.to("meta") if isinstance(old, Tensor) else [],
    lambda old: torch.full_like(old, math.nan) if isinstance(old, Tensor) and old.is_floating_point() else -7,
    lambda old: torch.full_like(old, math.inf) if isinstance(old, Tensor) and old.is_floating_point() else 7,
    lambda old: old - 2**40 if isinstance(old, Tensor) and old.dtype is torch.int64 else object(),
)  # fmt: skip
