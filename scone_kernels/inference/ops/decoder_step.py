"""decoder_step: one new token of each text through all layers of a Llama-like decoder, in one call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ... import _checks
from ..._panels import from_panels
from ..._registry import Op


class DecoderLayer(NamedTuple):
    """The weights of one layer, each product's as (out, in) in float32, or in 16 bits as `to_panels` makes them.

    x += mix(attend(norm(x))), then x += down(silu(gate(norm(x))) * up(norm(x))), with root-mean-square norms.
    """

    first_norm: Tensor
    query: Tensor
    query_bias: Tensor | None
    key: Tensor
    key_bias: Tensor | None
    value: Tensor
    value_bias: Tensor | None
    mix: Tensor
    second_norm: Tensor
    gate: Tensor
    up: Tensor
    down: Tensor


def reference(
    x: Tensor,
    weights: Sequence[Tensor | None],
    keys: Sequence[Tensor],
    values: Sequence[Tensor],
    cos: Tensor,
    sin: Tensor,
    seen: Tensor | None,
    heads: int,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """The definition, layer by layer."""
    linear, silu, new_keys, new_values = nn.functional.linear, nn.functional.silu, [], []
    parts = len(DecoderLayer._fields)

    def norm(state: Tensor, gain: Tensor) -> Tensor:
        return gain * (state * torch.rsqrt(state.pow(2).mean(-1, keepdim=True) + eps))

    def turn(flat: Tensor) -> Tensor:
        """(B, n * depth) → (B, n, depth), turned by the angles of the row's position"""
        by_head = flat.unflatten(1, (-1, cos.shape[1]))
        first, second = by_head.chunk(2, -1)
        return by_head * cos[:, None] + torch.cat([-second, first], -1) * sin[:, None]

    for i, (key, value) in enumerate(zip(keys, values)):
        own = DecoderLayer(*weights[i * parts : (i + 1) * parts])  # type: ignore[arg-type]
        w = _wide(own, x.shape[1], heads * cos.shape[1], key.shape[1] * cos.shape[1])
        normed = norm(x, w.first_norm)
        query = turn(linear(normed, w.query, w.query_bias))  # (B, heads, depth)
        own_key = turn(linear(normed, w.key, w.key_bias))  # (B, groups, depth)
        own_value = linear(normed, w.value, w.value_bias).view_as(own_key)
        new_keys.append(own_key)
        new_values.append(own_value)
        share = heads // key.shape[1]
        all_keys, all_values = (
            torch.cat([cached.to(own.dtype), own[:, :, None]], 2).repeat_interleave(
                share, 1
            )  # (B, heads, T + 1, depth)
            for cached, own in ((key, own_key), (value, own_value))
        )
        score = (all_keys @ query[..., None])[..., 0] * query.shape[-1] ** -0.5  # (B, heads, T + 1)
        if seen is not None:
            score = score.masked_fill(~nn.functional.pad(seen, (0, 1), value=True)[:, None], -torch.inf)
        context = (score.softmax(-1)[:, :, None] @ all_values).flatten(1)
        x = x + linear(context, w.mix)
        normed = norm(x, w.second_norm)
        x = x + linear(silu(linear(normed, w.gate)) * linear(normed, w.up), w.down)
    return x, torch.stack(new_keys), torch.stack(new_values)


def _rows(layer: DecoderLayer, width: int, asked: int, kept: int) -> dict[str, int]:
    """How many rows each product's weight has, for a width of x and so many columns of queries and of keys."""
    inner = layer.down.shape[1]
    return {"query": asked, "key": kept, "value": kept, "mix": width, "gate": inner, "up": inner, "down": width}


def _wide(layer: DecoderLayer, width: int, asked: int, kept: int) -> DecoderLayer:
    """The same with every weight as (out, in) in float32."""
    rows = _rows(layer, width, asked, kept)
    found = {name: getattr(layer, name) for name in rows}
    return layer._replace(**{n: from_panels(w, rows[n]) for n, w in found.items() if w.dim() == 3})


def _fake(x, weights, keys, values, cos, sin, seen, heads, eps):
    rows, groups, depth = x.shape[0], keys[0].shape[1], keys[0].shape[3]
    new = [x.new_empty(len(keys), rows, groups, depth) for _ in range(2)]
    return torch.empty_like(x), *new


_op = Op(
    "decoder_step(Tensor x, Tensor?[] weights, Tensor[] keys, Tensor[] values, Tensor cos, Tensor sin, Tensor? seen, "
    "int heads, float eps) -> (Tensor, Tensor, Tensor)",
    reference=reference,
    launch=None,  # on a GPU launches are captured in graphs instead
    fake=_fake,
)


def decoder_step(
    x: Tensor,
    layers: Sequence[DecoderLayer],
    keys: Sequence[Tensor],
    values: Sequence[Tensor],
    cos: Tensor,
    sin: Tensor,
    *,
    heads: int,
    eps: float = 1e-5,
    seen: Tensor | None = None,
    backend: str | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """One token of each text through all layers: its states, and its keys and values for the cache.

    x: (B, D) float32   keys, values: of each layer (B, groups, T, depth), what the cache holds, of one type; they stay as
    they are
    cos, sin: (B, depth) of the new positions   seen: (B, T) bool, False where the cache holds padding
    returns (B, D), (layers, B, groups, depth), (layers, B, groups, depth)

    For a few texts the time of a layer goes into starting its thirty operations; here they are one.

    >>> import torch
    >>> shapes = [(4,), (4, 4), None, (2, 4), None, (2, 4), None, (4, 4), (4,), (6, 4), (6, 4), (4, 6)]
    >>> layer = DecoderLayer(*(shape and torch.randn(shape) for shape in shapes))
    >>> cache, angle = torch.randn(3, 1, 5, 2), torch.zeros(3, 2)
    >>> out, key, value = decoder_step(torch.randn(3, 4), [layer], [cache], [cache], angle.cos(), angle.sin(), heads=2)
    >>> out.shape, key.shape
    (torch.Size([3, 4]), torch.Size([1, 3, 1, 2]))
    """
    device = x.device if isinstance(x, Tensor) else torch.device("cpu")
    for name, given in (("layers", layers), ("keys", keys), ("values", values)):
        if not isinstance(given, list | tuple):
            raise TypeError(f"{name} must be a list, got {type(given).__name__}")
    if not layers or not len(layers) == len(keys) == len(values):
        raise ValueError(
            f"layers, keys and values must be equally many, got {len(layers)}, {len(keys)} and {len(values)}"
        )
    _checks.single("x", x, (None, None), device)
    rows, width = x.shape
    for name, cached in (("keys", keys), ("values", values)):
        for i, tensor in enumerate(cached):
            _checks.floats(f"{name}[{i}]", tensor, (rows, None, None, None) if i == 0 else cached[0].shape, device)
            if tensor.dtype != keys[0].dtype:
                raise TypeError(f"{name}[{i}] must have the dtype of keys[0], {keys[0].dtype}, got {tensor.dtype}")
    if keys[0].shape != values[0].shape:
        raise ValueError(f"values must have the shape of keys, {tuple(keys[0].shape)}, got {tuple(values[0].shape)}")
    _checks.count("heads", heads)
    _checks.positive("eps", eps)
    _, groups, length, depth = keys[0].shape
    if depth % 2 or not groups or heads % groups:
        raise ValueError(
            f"heads must be a multiple of {groups}, the groups of keys, of even depth, got {heads}, {depth}"
        )
    for name, tensor in (("cos", cos), ("sin", sin)):
        _checks.single(name, tensor, (rows, depth), device)
    if seen is not None and not isinstance(seen, Tensor):
        raise TypeError(f"seen must be a tensor, got {type(seen).__name__}")
    if seen is not None and (seen.device != device or seen.dtype != torch.bool or seen.shape != (rows, length)):
        raise ValueError(f"seen must be bool of shape {(rows, length)}, got {seen.dtype} of {tuple(seen.shape)}")
    check_layers(layers, width, heads * depth, groups * depth, device)
    weights = [weight if weight is None else weight.contiguous() for layer in layers for weight in layer]
    seen = None if seen is None else seen.contiguous()
    return _op(backend, x, weights, list(keys), list(values), cos.contiguous(), sin.contiguous(), seen, heads, eps)


def check_layers(layers: Sequence[DecoderLayer], width: int, asked: int, kept: int, device: torch.device) -> None:
    """Raise where a weight has not the shape that a width of x and so many columns of queries and of keys ask for."""
    for i, layer in enumerate(layers):
        if not isinstance(layer, DecoderLayer):
            raise TypeError(f"layers[{i}] must be a DecoderLayer, got {type(layer).__name__}")
        if not isinstance(layer.down, Tensor) or layer.down.dim() not in (2, 3):
            raise TypeError(f"layers[{i}].down must be a matrix or panels of one, got {type(layer.down).__name__}")
        _check_layer(f"layers[{i}]", layer, width, asked, kept, device)


def _check_layer(name: str, layer: DecoderLayer, width: int, asked: int, kept: int, device: torch.device) -> None:
    """Every weight has the shape that a width of x and so many columns of queries and of keys ask for."""
    out = _rows(layer, width, asked, kept)
    for part, weight in zip(layer._fields, layer):
        shape: tuple[int, ...] = (width,) if part.endswith("_norm") else (out[part.removesuffix("_bias")],)
        if part in out:
            shape = (*shape, {"mix": asked, "down": out["gate"]}.get(part, width))
            if weight is not None and weight.dim() == 3:
                _checks.panels(f"{name}.{part}", weight, shape, device)
                continue
        if weight is not None or not part.endswith("_bias"):
            _checks.single(f"{name}.{part}", weight, shape, device)  # type: ignore[arg-type]
