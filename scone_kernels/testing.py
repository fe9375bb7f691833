"""Inputs, baselines and tolerances for tests and benchmarks of the ops, at any size.

inputs = make_inputs("expected_dot", rows=2000, vocabulary=50368, width=768, sequences=80)
out = inputs.run()                        # scone_kernels.expected_dot(...)
assert_accurate(out, inputs)              # no worse than plain torch in the same dtype, both against float64
benchmark(inputs.run); benchmark(inputs.plain)   # with pytest-benchmark
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from .ops import expected_dot, expected_embedding, gibbs_sample, likely_rows, taylor_estimate

__all__ = ["OPS", "Inputs", "assert_accurate", "make_inputs", "worst_error"]

OPS: tuple[str, ...] = (
    "expected_embedding",
    "expected_embedding_from_logits",
    "expected_dot",
    "expected_dot_from_logits",
    "gibbs_sample",
    "gibbs_sample_from_logits",
    "likely_rows",
    "likely_rows_from_logits",
    "taylor_estimate",
)

_FUSED: dict[str, Callable[..., Any]] = {
    name: getattr(module, name)
    for module in (expected_embedding, expected_dot, gibbs_sample, likely_rows, taylor_estimate)
    for name in OPS
    if hasattr(module, name)
}

_EPSILON = torch.finfo(torch.float32).eps  # two roundings of every term: what remains where plain torch has luck


@dataclass(frozen=True)
class Inputs:
    """Arguments of one call of `op`, by name."""

    op: str
    arguments: dict[str, Any]

    def run(self, backend: str | None = None) -> Any:
        """The op itself on a backend."""
        return _FUSED[self.op](**self.arguments, backend=backend)

    def plain(self) -> Tensor:
        """The plain torch formulation that a user would write, in the dtype of the inputs."""
        return _PLAIN[self.op.removesuffix("_from_logits")](**_formula_arguments(self))

    def exact(self) -> Tensor:
        """The definition in float64."""
        values = self.arguments
        if self.op.startswith("gibbs_sample"):
            return torch.log_softmax(_exact_logits(self), -1)
        if self.op.startswith("likely_rows"):
            return _side_by_side(_exact_likely(self))
        ordered = [values.get(name, "position" if name == "form" else None) for name in _ORDER[self.op]]
        return _REFERENCE[self.op](*ordered, dtype=torch.float64)

    def magnitude(self) -> Tensor:
        """The result in float64 with every term by its absolute value, in the shape of `exact()`.

        If each number that goes into the result is off by a fraction of itself, the result is off by at most that
        fraction of this, to first order. Where terms cancel it is far larger than the result. A logit that is off moves
        its probability, and the other tokens' too, so that a probability counts 1 + |logit| + mean |logit| times; a
        logit's own terms are those of its dot product.
        """
        values = {name: _changed(value, lambda x: x.double().abs()) for name, value in self.arguments.items()}
        if self.op == "taylor_estimate":
            changed = replace(self, arguments=values | {"anchor": -values["anchor"]})
            return changed.exact()
        logits = _exact_logits(self)
        probability = torch.softmax(logits, -1)
        size = values["logits"] if "logits" in values else values["hidden"] @ values["weight"].T
        if values.get("bias") is not None:
            size = size + values["bias"]
        size = (size / values["temperature"]).masked_fill(probability == 0, 0.0)
        if self.op.startswith("likely_rows"):
            return _likely_magnitude(_exact_likely(self), values["tables"], probability, size)
        moved = 1 + size + (probability * size).sum(-1, keepdim=True)
        if self.op.startswith("gibbs_sample"):
            return moved - torch.log_softmax(logits, -1)
        if self.op.startswith("expected_embedding"):
            return (probability * moved) @ values["table"]
        projected = values["grad"] @ values["table"].T
        segment = values["segment"]
        return (probability * moved * (projected if segment is None else projected[segment])).sum(-1)

    def map(self, change: Callable[[Tensor], Tensor]) -> Inputs:
        """The same call with `change` applied to every floating-point tensor, for instance to make it a view."""
        changed = {name: _changed(value, change) for name, value in self.arguments.items()}
        return replace(self, arguments=changed)


def make_inputs(
    op: str,
    *,
    rows: int,
    vocabulary: int,
    width: int,
    table_width: int | None = None,
    sequences: int | None = None,
    bias: bool = True,
    keep: bool = True,
    temperature: float = 1.0,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
    seed: int = 0,
) -> Inputs:
    """Random arguments of `op`: logits spread by about 3, a tenth of the tokens masked.

    `width` is H, `table_width` is D (H if None); `likely_rows` gets a second table of half of it. `sequences` gives `expected_dot` one gradient per sequence; without it
    each row has its own. `taylor_estimate` takes `rows` positions of `sequences` sequences and ignores the vocabulary.

    >>> make_inputs("gibbs_sample", rows=2, vocabulary=5, width=3).run().tokens.shape
    torch.Size([2])
    """
    if op not in OPS:
        raise ValueError(f"op must be one of {OPS}, got {op!r}")
    random = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=random).to(device=device, dtype=dtype)

    table_width = width if table_width is None else table_width
    groups = rows if sequences is None else sequences
    segment = (torch.arange(rows, device=device) * groups) // max(1, rows)
    if op == "taylor_estimate":
        names = ("grad", "expected", "anchor")
        return Inputs(
            op, {"score": normal(groups)} | {name: normal(rows, table_width) for name in names} | {"segment": segment}
        )
    arguments: dict[str, Any] = {"temperature": temperature}
    if op.endswith("_from_logits"):
        arguments["logits"] = 3 * normal(rows, vocabulary)
    else:
        arguments |= {"hidden": normal(rows, width), "weight": 3 * width**-0.5 * normal(vocabulary, width)}
        if bias:
            arguments["bias"] = normal(vocabulary)
    if keep:
        mask = torch.rand(vocabulary, generator=random) > 0.1
        mask[0] = True
        arguments["keep"] = mask.to(device)
    if op.startswith(("gibbs_sample", "likely_rows")):
        arguments |= {"seed": seed, "counter": torch.arange(rows, device=device)}
    if op.startswith("likely_rows"):
        widths = (table_width, 1 + table_width // 2)
        arguments |= {"tables": [normal(vocabulary, wide) for wide in widths], "among": 10, "min_p": 0.01}
    elif not op.startswith("gibbs_sample"):
        arguments["table"] = normal(vocabulary, table_width)
    if op.startswith("expected_dot"):
        arguments["grad"] = normal(groups, table_width)
        arguments["segment"] = None if sequences is None else segment
    return Inputs(op, arguments)


def worst_error(actual: Tensor, exact: Tensor, magnitude: Tensor) -> tuple[float, tuple[int, ...]]:
    """The largest error relative to `magnitude`, element by element, and where it is."""
    if exact.numel() == 0:
        return 0.0, ()
    error = (actual.double() - exact).abs() / magnitude.clamp(min=1e-30)
    error = error.nan_to_num(nan=float("inf"))
    flat = int(error.argmax())
    return float(error.flatten()[flat]), tuple(int(i) for i in torch.unravel_index(torch.tensor(flat), exact.shape))


def assert_accurate(actual: Any, inputs: Inputs) -> None:
    """Fail unless `actual` is as accurate as plain torch in the same dtype: error <= 2 * torch's + float32's epsilon.

    Both errors are against float64 and relative to `inputs.magnitude()`. For a sampler the log-probability of the drawn
    token is compared. Likely tokens, and the draw among them, must be those of float64.
    """
    if isinstance(actual, likely_rows.LikelyRows):
        _assert_likely(actual, inputs)
        actual = _side_by_side(actual)
    exact, plain, magnitude = inputs.exact(), inputs.plain(), inputs.magnitude()
    if inputs.op.startswith("gibbs_sample"):
        tokens, actual = actual
        if tokens.numel() == 0:
            return
        exact, plain, magnitude = (table.gather(1, tokens[:, None])[:, 0] for table in (exact, plain, magnitude))
    if actual.shape != exact.shape:
        raise AssertionError(f"{inputs.op}: shape must be {tuple(exact.shape)}, got {tuple(actual.shape)}")
    error, where = worst_error(actual, exact, magnitude)
    allowed = 2 * worst_error(plain, exact, magnitude)[0] + _EPSILON
    if error > allowed:
        raise AssertionError(
            f"{inputs.op}: error {error:.3g} at {where} is above {allowed:.3g}: "
            f"got {float(actual[where]):.8g}, exact {float(exact[where]):.8g}"
        )


def _changed(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """The same with `change` applied to floating-point tensors, also those in a list."""
    if isinstance(value, list):
        return [_changed(one, change) for one in value]
    return change(value) if isinstance(value, Tensor) and value.is_floating_point() else value


def _exact_likely(inputs: Inputs) -> likely_rows.LikelyRows:
    """`likely_rows` in float64."""
    values = inputs.arguments
    logits = _exact_logits(replace(inputs, arguments={**values, "keep": None, "temperature": 1.0}))
    seed = torch.zeros_like(values["counter"]) + values["seed"]
    masked = (values.get("keep"), values["temperature"], values["among"], values["min_p"])
    found = likely_rows.reference.from_logits(
        logits, values["tables"], *masked, seed, values["counter"], dtype=torch.float64
    )
    return likely_rows.LikelyRows(found[4:], *found[:4])


def _assert_likely(actual: likely_rows.LikelyRows, inputs: Inputs) -> None:
    exact = _exact_likely(inputs)
    if not torch.equal(actual.tokens, exact.tokens):
        raise AssertionError(f"{inputs.op}: tokens must be {exact.tokens}, got {actual.tokens}")
    if actual.drawn is None or exact.drawn is None or not torch.equal(actual.drawn, exact.drawn):
        raise AssertionError(f"{inputs.op}: drawn must be {exact.drawn}, got {actual.drawn}")


def _side_by_side(likely: likely_rows.LikelyRows) -> Tensor:
    """All numbers of a result in one (N, ...); a log-probability of -inf counts as 0."""
    log_p = likely.log_p.masked_fill(likely.tokens < 0, 0.0)
    return torch.cat([*likely.rows, log_p, likely.log_mass[:, None]], 1)


def _likely_magnitude(exact: likely_rows.LikelyRows, tables: list[Tensor], probability: Tensor, size: Tensor) -> Tensor:
    """As `Inputs.magnitude`; probability and size (N, V) are those of the whole vocabulary."""
    inside, picked = exact.tokens >= 0, exact.tokens.clamp(min=0)
    p, near = exact.log_p.exp(), size.gather(1, picked) * inside
    mean, whole = (p * near).sum(1, keepdim=True), (probability * size).sum(1, keepdim=True)
    rows = [torch.einsum("nk,nkd->nd", p * (1 + near + mean), table[picked]) for table in tables]
    return torch.cat([*rows, 1 + near + mean - exact.log_p.masked_fill(~inside, 0.0), 1 + mean + whole], 1)


def _masked(logits: Tensor, keep: Tensor | None, temperature: float) -> Tensor:
    if keep is not None:
        logits = logits.masked_fill(~keep, float("-inf"))
    return logits / temperature if temperature != 1.0 else logits


def _plain_embedding(logits: Tensor, table: Tensor) -> Tensor:
    return torch.softmax(logits, -1) @ table


def _plain_dot(logits: Tensor, table: Tensor, grad: Tensor, segment: Tensor | None = None) -> Tensor:
    projected = grad @ table.T
    return (torch.softmax(logits, -1) * (projected if segment is None else projected[segment])).sum(-1)


def _plain_taylor(score, grad, expected, anchor, segment, form="position") -> Tensor:
    if form == "mean":
        sums = torch.zeros(score.shape[0], grad.shape[1], dtype=grad.dtype, device=grad.device)
        count = torch.bincount(segment, minlength=score.shape[0]).clamp(min=1)
        steps = sums.index_add(0, segment, expected - anchor)
        return score + (sums.index_add(0, segment, grad) * steps).sum(-1) / count
    return score.index_add(0, segment, (grad * (expected - anchor)).sum(-1))


def _plain_likely(logits: Tensor, tables: list[Tensor], tokens: Tensor) -> Tensor:
    """What torch makes of the likely tokens once they are known: in half precision it would find others."""
    found = logits.gather(1, tokens.clamp(min=0)).masked_fill(tokens < 0, -torch.inf)
    log_p = torch.log_softmax(found, -1)
    rows = [torch.einsum("nk,nkd->nd", log_p.exp(), table[tokens.clamp(min=0)]) for table in tables]
    log_mass = torch.logsumexp(found, -1) - torch.logsumexp(logits, -1)
    return _side_by_side(likely_rows.LikelyRows(rows, tokens, log_p, log_mass, None))


_PLAIN: dict[str, Callable[..., Tensor]] = {
    "expected_embedding": _plain_embedding,
    "expected_dot": _plain_dot,
    "gibbs_sample": lambda logits: torch.log_softmax(logits, -1),
    "likely_rows": _plain_likely,
    "taylor_estimate": _plain_taylor,
}
_REFERENCE: dict[str, Callable[..., Tensor]] = {
    "expected_embedding": expected_embedding.reference.fused,
    "expected_embedding_from_logits": expected_embedding.reference.from_logits,
    "expected_dot": expected_dot.reference.fused,
    "expected_dot_from_logits": expected_dot.reference.from_logits,
    "taylor_estimate": taylor_estimate.reference.estimate,
}
_HEAD = ("bias", "keep", "temperature")
_ORDER: dict[str, tuple[str, ...]] = {
    "expected_embedding": ("hidden", "weight", "table", *_HEAD),
    "expected_embedding_from_logits": ("logits", "table", *_HEAD[1:]),
    "expected_dot": ("hidden", "weight", "table", "grad", "segment", *_HEAD),
    "expected_dot_from_logits": ("logits", "table", "grad", "segment", *_HEAD[1:]),
    "taylor_estimate": ("score", "grad", "expected", "anchor", "segment", "form"),
}


def _formula_arguments(inputs: Inputs) -> dict[str, Any]:
    """Arguments of the plain formulas: ready, masked logits in the dtype of the inputs, and the rest."""
    values = dict(inputs.arguments)
    if inputs.op == "taylor_estimate":
        return values
    logits = values.pop("logits", None)
    if logits is None:
        hidden, weight, bias = values.pop("hidden"), values.pop("weight"), values.pop("bias", None)
        logits = torch.nn.functional.linear(hidden, weight, bias)
    logits = _masked(logits, values.pop("keep", None), values.pop("temperature"))
    values.pop("seed", None), values.pop("counter", None)
    if inputs.op.startswith("likely_rows"):
        values.pop("among"), values.pop("min_p")
        values["tokens"] = _exact_likely(inputs).tokens
    return {"logits": logits, **values}


def _exact_logits(inputs: Inputs) -> Tensor:
    values = inputs.arguments
    if "logits" in values:
        logits = values["logits"].double()
    else:
        logits = values["hidden"].double() @ values["weight"].double().T
        if values.get("bias") is not None:
            logits = logits + values["bias"].double()
    return _masked(logits, values.get("keep"), values["temperature"])
