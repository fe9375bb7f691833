"""What the kernel benchmarks time: sizes of real models, and the best plain torch for each op."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear

from scone_kernels.testing import Inputs, make_inputs

MODELS = {"bert-384": (30522, 384), "bert-768": (30522, 768), "modernbert": (50368, 768)}
ROWS = (100, 2000)
POSITIONS = 25  # rows of one sequence
OPS = ("expected_embedding", "expected_dot", "gibbs_sample", "taylor_estimate")


@dataclass(frozen=True)
class Case:
    """One op at one size, with its plain torch rivals; `flops` counts what the fused op has to do."""

    op: str
    model: str
    rows: int
    inputs: Inputs
    plain: dict[str, Callable[..., Any]]
    flops: float

    def rival_arguments(self) -> tuple[Any, ...]:
        """The tensors that the plain formulations take."""
        given = self.inputs.arguments
        return tuple(given[name] for name in _ARGUMENTS[self.op])

    def first_rows(self, count: int = 16) -> Inputs:
        """The same call on the first rows only, for a quick check against float64."""
        if self.op == "taylor_estimate":
            return self.inputs
        changed = dict(self.inputs.arguments)
        for name in ("hidden", "segment", "counter"):
            if isinstance(changed.get(name), Tensor):
                changed[name] = changed[name][:count]
        return replace(self.inputs, arguments=changed)


def make_case(op: str, model: str, rows: int, *, dtype: torch.dtype = torch.float32, device: str = "cpu") -> Case:
    """Inputs and rivals for `op` at the size of `model` with `rows` rows (25 of them per sequence)."""
    vocabulary, width = MODELS[model]
    sequences = rows // POSITIONS
    shared = op in ("expected_dot", "taylor_estimate")
    inputs = make_inputs(
        op,
        rows=rows,
        vocabulary=vocabulary,
        width=width,
        sequences=sequences if shared else None,
        keep=False,
        dtype=dtype,
        device=device,
    )
    flops = {
        "expected_embedding": 4.0 * rows * vocabulary * width,
        "expected_dot": 2.0 * (rows + sequences) * vocabulary * width,
        "gibbs_sample": 2.0 * rows * vocabulary * width,
        "taylor_estimate": 3.0 * rows * width,
    }[op]
    return Case(op, model, rows, inputs, _PLAIN[op], flops)


_ARGUMENTS = {
    "expected_embedding": ("hidden", "weight", "bias", "table"),
    "expected_dot": ("hidden", "weight", "bias", "table", "grad", "segment"),
    "gibbs_sample": ("hidden", "weight", "bias"),
    "taylor_estimate": ("score", "grad", "expected", "anchor", "segment"),
}


def _embedding(hidden, weight, bias, table):
    return torch.softmax(linear(hidden, weight, bias), -1) @ table


def _paper_dot(hidden, weight, bias, table, grad, segment):
    """The expected embedding first, then its dot product with the gradient."""
    return (_embedding(hidden, weight, bias, table) * grad[segment]).sum(-1)


def _projected_dot(hidden, weight, bias, table, grad, segment):
    """Reassociated: the table is projected once per sequence."""
    return (torch.softmax(linear(hidden, weight, bias), -1) * (grad @ table.T)[segment]).sum(-1)


def _multinomial(hidden, weight, bias):
    return torch.multinomial(torch.softmax(linear(hidden, weight, bias), -1), 1)


def _race(hidden, weight, bias):
    """The exponential race: the smallest of exponential variables with the probabilities as rates."""
    probability = torch.softmax(linear(hidden, weight, bias), -1)
    return (probability / torch.empty_like(probability).exponential_()).argmax(-1)


def _taylor(score, grad, expected, anchor, segment):
    return score.index_add(0, segment, (grad * (expected - anchor)).sum(-1))


_PLAIN: dict[str, dict[str, Callable[..., Any]]] = {
    "expected_embedding": {"eager": _embedding},
    "expected_dot": {"the paper's formula": _paper_dot, "reassociated": _projected_dot},
    "gibbs_sample": {"multinomial": _multinomial, "exponential race": _race},
    "taylor_estimate": {"eager": _taylor},
}
COMPILED = {
    "expected_embedding": "eager",
    "expected_dot": "reassociated",
    "gibbs_sample": "exponential race",
    "taylor_estimate": "eager",
}
"""The plain formulation that is also timed under torch.compile: the faster one."""
