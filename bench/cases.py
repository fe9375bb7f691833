"""What the kernel benchmarks time: sizes of real models, and the best plain torch for each op."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear

import scone_kernels
from scone_kernels.testing import OPS, Inputs, make_inputs

MODELS = {"bert-384": (30522, 384), "bert-768": (30522, 768), "modernbert": (50368, 768)}
ROWS = (100, 2000)
# Of causal LMs, for likely_rows: the embedded one, and the largest vocabulary in use.
LMS = {"smollm2": (49152, 576), "vocabulary-256k": (262144, 640)}
LM_ROWS = {"smollm2": (7, 56, 200), "vocabulary-256k": (7, 56)}
SECOND_TABLE = 384
POSITIONS = 25  # rows of one sequence


@dataclass(frozen=True)
class Case:
    """One op at one size, with its plain torch rivals; `flops` counts what has to be multiplied, None if next to nothing."""

    op: str
    model: str
    rows: int
    inputs: Inputs
    plain: dict[str, Callable[..., Any]]
    flops: float | None
    others: dict[str, Callable[[], Any]] = field(default_factory=dict)
    """The op on the same in another form."""

    def rival_arguments(self) -> tuple[Any, ...]:
        """The tensors that the plain formulations take."""
        given = self.inputs.arguments
        return tuple(given.get(name) for name in _ARGUMENTS[self.op])

    def first_rows(self, count: int = 16) -> Inputs:
        """The same call on the first rows only, for a quick check against float64."""
        if self.op == "taylor_estimate":
            return self.inputs
        changed = dict(self.inputs.arguments)
        for name in ("hidden", "logits", "segment", "counter"):
            if isinstance(changed.get(name), Tensor):
                changed[name] = changed[name][:count]
        return replace(self.inputs, arguments=changed)


def models_of(op: str) -> dict[str, tuple[int, int]]:
    """The sizes (V, width) at which an op is timed, by name."""
    return LMS if op.startswith("likely_rows") else MODELS


def rows_of(op: str, model: str) -> tuple[int, ...]:
    """The numbers of rows at which an op is timed."""
    return LM_ROWS[model] if op.startswith("likely_rows") else ROWS


def make_case(op: str, model: str, rows: int, *, dtype: torch.dtype = torch.float32, device: str = "cpu") -> Case:
    """Inputs and rivals for `op` at the size of `model` with `rows` rows (25 of them per sequence)."""
    vocabulary, width = models_of(op)[model]
    sequences = rows // POSITIONS
    shared = op.startswith(("expected_dot", "taylor_estimate"))
    inputs = make_inputs(
        op,
        rows=rows,
        vocabulary=vocabulary,
        width=width,
        sequences=sequences if shared else None,
        bias=not op.startswith("likely_rows"),  # heads of causal LMs have none
        keep=False,
        dtype=dtype,
        device=device,
    )
    others = _likely_case(inputs) if op.startswith("likely_rows") else {}
    multiplied = {  # rows of vectors that meet the whole vocabulary
        "expected_embedding": 2 * rows,
        "expected_embedding_from_logits": rows,
        "expected_dot": rows + sequences,
        "gibbs_sample": rows,
        "likely_rows": rows,
    }
    flops = 2.0 * multiplied[op] * vocabulary * width if op in multiplied else None
    return Case(op, model, rows, inputs, _PLAIN[op], flops, others)


def _likely_case(inputs: Inputs) -> dict[str, Callable[[], Any]]:
    """Top-k alone, tables as wide as the LM and the verifier, and on a CPU the weight in 16 bits as well."""
    given = inputs.arguments
    table = given["tables"][0]
    generator = torch.Generator().manual_seed(1)
    second = torch.randn(len(table), SECOND_TABLE, generator=generator).to(table)
    given.update({"tables": [table, second], "min_p": 0.0})
    if "weight" not in given or table.device.type != "cpu":
        return {}
    given["weight"] = given["weight"].bfloat16().to(table.dtype)
    halves = {**given, "weight": scone_kernels.to_panels(given["weight"].float())}
    return {"scone_kernels, weight in 16 bits": lambda: scone_kernels.likely_rows(**halves)}


def _embedding(logits, table):
    return torch.softmax(logits, -1) @ table


def _paper_dot(logits, table, grad, segment):
    """The expected embedding first, then its dot product with the gradient."""
    return (_embedding(logits, table) * grad[segment]).sum(-1)


def _projected_dot(logits, table, grad, segment):
    """Reassociated: the table is projected once per sequence."""
    return (torch.softmax(logits, -1) * (grad @ table.T)[segment]).sum(-1)


def _multinomial(logits):
    return torch.multinomial(torch.softmax(logits, -1), 1)


def _race(logits):
    """The exponential race: the smallest of exponential variables with the probabilities as rates."""
    probability = torch.softmax(logits, -1)
    return (probability / torch.empty_like(probability).exponential_()).argmax(-1)


def _top_k(logits, tables, among):
    found, tokens = logits.topk(among)
    p = torch.softmax(found, -1)[..., None]
    return [(p * table[tokens]).sum(1) for table in tables]


def _top_k_of_our_linear(hidden, weight, bias, *rest):
    """The head as the decoder multiplies with it where there is no likely_rows."""
    return _top_k(scone_kernels.linear(hidden, weight, bias), *rest)


def _taylor(score, grad, expected, anchor, segment):
    return score.index_add(0, segment, (grad * (expected - anchor)).sum(-1))


def _with_head(formula: Callable[..., Any]) -> Callable[..., Any]:
    return lambda hidden, weight, bias, *rest: formula(linear(hidden, weight, bias), *rest)


_FROM_LOGITS: dict[str, dict[str, Callable[..., Any]]] = {
    "expected_embedding": {"eager": _embedding},
    "expected_dot": {"the paper's formula": _paper_dot, "reassociated": _projected_dot},
    "gibbs_sample": {"multinomial": _multinomial, "exponential race": _race},
    "likely_rows": {"top-k and gathers": _top_k},
}
_REST = {
    "expected_embedding": ("table",),
    "expected_dot": ("table", "grad", "segment"),
    "gibbs_sample": (),
    "likely_rows": ("tables", "among"),
}
_PLAIN = {"taylor_estimate": {"eager": _taylor}}
_ARGUMENTS: dict[str, tuple[str, ...]] = {"taylor_estimate": ("score", "grad", "expected", "anchor", "segment")}
for _op, _formulas in _FROM_LOGITS.items():
    _PLAIN[_op] = {name: _with_head(formula) for name, formula in _formulas.items()}
    _PLAIN[f"{_op}_from_logits"] = _formulas
    _ARGUMENTS[_op] = ("hidden", "weight", "bias", *_REST[_op])
    _ARGUMENTS[f"{_op}_from_logits"] = ("logits", *_REST[_op])

_PLAIN["likely_rows"] = {"scone_kernels.linear, top-k, gathers": _top_k_of_our_linear, **_PLAIN["likely_rows"]}

COMPILED = {op: list(_PLAIN[op])[-1] for op in OPS}
"""The plain formulation that is also timed under torch.compile: the faster one, which stands last."""
