"""encoder: the layers of a BERT-like encoder on texts of any lengths, in one call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ... import _checks
from ..._registry import Op


class EncoderLayer(NamedTuple):
    """The weights of one layer, each product's as (out, in) in float32, bfloat16 or float16.

    x = norm(x + mix(attend(x))), then x = norm(x + down(gelu(up(x)))), with layer norms of gain and bias.
    """

    query: Tensor
    query_bias: Tensor
    key: Tensor
    key_bias: Tensor
    value: Tensor
    value_bias: Tensor
    mix: Tensor
    mix_bias: Tensor
    first_gain: Tensor
    first_bias: Tensor
    up: Tensor
    up_bias: Tensor
    down: Tensor
    down_bias: Tensor
    second_gain: Tensor
    second_bias: Tensor


def reference(x: Tensor, starts: Tensor, rows: Tensor, weights: Sequence[Tensor], heads: int, eps: float) -> Tensor:
    """The definition, text by text."""
    parts = len(EncoderLayer._fields)
    layers = [EncoderLayer(*weights[i : i + parts]) for i in range(0, len(weights), parts)]
    texts = [x[:0]]
    for begin, end in zip(starts.tolist(), starts[1:].tolist()):
        state = x[begin:end]
        for layer in layers if end > begin else ():
            state = _layer(state, layer, heads, eps)
        texts.append(state)
    return torch.cat(texts)[rows]


def _layer(x: Tensor, w: EncoderLayer, heads: int, eps: float) -> Tensor:
    """x: (T, D)"""
    norm = nn.functional.layer_norm

    def linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return nn.functional.linear(x, weight.to(x.dtype), bias)

    query, key, value = (
        linear(x, weight, bias).unflatten(1, (heads, -1)).transpose(0, 1)  # (heads, T, D / heads)
        for weight, bias in ((w.query, w.query_bias), (w.key, w.key_bias), (w.value, w.value_bias))
    )
    p = (query @ key.mT * query.shape[-1] ** -0.5).softmax(-1)
    mixed = linear((p @ value).transpose(0, 1).flatten(1), w.mix, w.mix_bias)
    middle = norm(x + mixed, x.shape[1:], w.first_gain, w.first_bias, eps)
    fed = linear(nn.functional.gelu(linear(middle, w.up, w.up_bias)), w.down, w.down_bias)
    return norm(middle + fed, x.shape[1:], w.second_gain, w.second_bias, eps)


_op = Op(
    "encoder(Tensor x, Tensor starts, Tensor rows, Tensor[] weights, int heads, float eps) -> Tensor",
    reference=reference,
    launch=None,  # on a GPU the library's own attention and products are the best
    fake=lambda x, starts, rows, weights, heads, eps: x.new_empty(rows.shape[0], x.shape[1]),
)


def encoder(
    x: Tensor,
    starts: Tensor,
    layers: Sequence[EncoderLayer],
    *,
    heads: int,
    eps: float = 1e-12,
    rows: Tensor | None = None,
    backend: str | None = None,
) -> Tensor:
    """The states that the layers make of embedded texts, at `rows` of them, or at all.

    x: (N, D) float32, the tokens of all texts, one text after the other, with no padding
    starts: (S + 1,) where each text begins, and N
    rows: (M,) rows of x, none before its predecessor; behind its keys and values the last layer is computed for these only
    returns (M, D)

    >>> import torch
    >>> shapes = [(4, 4), (4,)] * 4 + [(4,), (4,), (8, 4), (8,), (4, 8), (4,), (4,), (4,)]
    >>> layer = EncoderLayer(*map(torch.randn, shapes))
    >>> encoder(torch.randn(5, 4), torch.tensor([0, 2, 5]), [layer], heads=2, rows=torch.tensor([0, 2])).shape
    torch.Size([2, 4])
    """
    device = x.device if isinstance(x, Tensor) else torch.device("cpu")
    _checks.single("x", x, (None, None), device)
    _checks.positive("eps", eps)
    _checks.indices("starts", starts, (None,), device)
    check_layers(layers, x.shape[1], heads, device)
    if rows is None:
        rows = torch.arange(len(x), device=device)
    _checks.indices("rows", rows, (None,), device)
    if starts.numel() < 1 or (device.type == "cpu" and int(starts[-1]) != len(x)):
        raise ValueError(f"starts must end with {len(x)}, the rows of x, got {starts.tolist()[-1:]}")
    weights = [weight for layer in layers for weight in layer]
    return _op(backend, x, starts.contiguous(), rows.contiguous(), weights, heads, eps)


def check_layers(layers: Sequence[EncoderLayer], width: int, heads: int, device: torch.device) -> None:
    """Raise where a weight has not the shape that a width of x asks for, or so many heads do not go into it."""
    if not isinstance(layers, list | tuple) or not layers:
        raise ValueError(f"layers must be a list of at least one layer, got {layers!r}")
    if not isinstance(heads, int) or heads < 1 or width % heads:
        raise ValueError(f"heads must be a positive divisor of {width}, the width of x, got {heads!r}")
    for i, layer in enumerate(layers):
        if not isinstance(layer, EncoderLayer):
            raise TypeError(f"layers[{i}] must be an EncoderLayer, got {type(layer).__name__}")
        _checks.floats(f"layers[{i}].up", layer.up, (None, width), device)
        inner = layer.up.shape[0]
        for name, weight in zip(layer._fields, layer):
            out = inner if name.startswith("up") else width
            if name.endswith(("bias", "gain")):
                _checks.single(f"layers[{i}].{name}", weight, (out,), device)
            else:
                _checks.floats(f"layers[{i}].{name}", weight, (out, inner if name == "down" else width), device)
