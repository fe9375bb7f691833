"""expected_dot: the mean, under a softmax over the vocabulary, of a gradient's dot product with the rows of a table."""

from __future__ import annotations

import torch
from torch import Tensor

from ... import _checks, _head
from ..._registry import Op
from . import reference


def _launch_fused():
    from .kernel import launch_fused

    return launch_fused


def _launch_from_logits():
    from .kernel import launch_from_logits

    return launch_from_logits


_fused = Op(
    "expected_dot(Tensor hidden, Tensor weight, Tensor table, Tensor grad, Tensor? segment, Tensor? bias,"
    " Tensor? keep, float temperature) -> Tensor",
    reference=reference.fused,
    launch=_launch_fused,
    fake=lambda hidden, weight, table, grad, segment, bias, keep, temperature: hidden.new_empty(
        (hidden.shape[0],), dtype=torch.float32
    ),
)
_from_logits = Op(
    "expected_dot_from_logits(Tensor logits, Tensor table, Tensor grad, Tensor? segment, Tensor? keep,"
    " float temperature) -> Tensor",
    reference=reference.from_logits,
    launch=_launch_from_logits,
    fake=lambda logits, table, grad, segment, keep, temperature: logits.new_empty(
        (logits.shape[0],), dtype=torch.float32
    ),
)


def expected_dot(
    hidden: Tensor,
    weight: Tensor,
    table: Tensor,
    grad: Tensor,
    *,
    segment: Tensor | None = None,
    bias: Tensor | None = None,
    keep: Tensor | None = None,
    temperature: float = 1.0,
    backend: str | None = None,
    check: bool = True,
) -> Tensor:
    """Equals `(softmax((hidden @ weight.T + bias) / temperature, -1) * (grad[segment] @ table.T)).sum(-1)`.

    hidden: (N, H)   weight: (V, H)   table: (V, D)   bias: (V,) or None   keep: (V,) bool or None
    grad: (S, D), one gradient per sequence, with segment: (N,) int64, the sequence of each row;
          or (N, D), one gradient per row, with segment None
    returns (N,) float32

    Neither the (N, V) probabilities nor the (N, D) expected embeddings of the per-sequence form are materialised: with
    few sequences the table is projected once per sequence. `check` is that of `expected_embedding`.

    >>> import torch
    >>> grad = torch.tensor([[1.0, 0.0], [0.0, 2.0]])
    >>> segment = torch.tensor([0, 1, 1])
    >>> expected_dot(torch.zeros(3, 2), torch.ones(2, 2), torch.eye(2), grad, segment=segment).tolist()
    [0.5, 1.0, 1.0]
    """
    _checks.head(hidden, weight, bias, keep, temperature)
    _checks.floats("table", table, (weight.shape[0], None), hidden.device)
    _gradient(grad, table, segment, hidden.shape[0])
    out = _fused(backend, hidden, weight, table, grad, segment, bias, keep, float(temperature))
    if _checks.wanted(check, hidden):
        _checks.raise_bad_row(
            out.isnan(),
            lambda row: _head.row_of_logits(hidden, weight, bias, keep, row),
            {"table": table, "grad": grad},
        )
    return out


def expected_dot_from_logits(
    logits: Tensor,
    table: Tensor,
    grad: Tensor,
    *,
    segment: Tensor | None = None,
    keep: Tensor | None = None,
    temperature: float = 1.0,
    backend: str | None = None,
    check: bool = True,
) -> Tensor:
    """Equals `(softmax(logits / temperature, -1) * (grad[segment] @ table.T)).sum(-1)`; options as in `expected_dot`.

    logits: (N, V)   table: (V, D)   grad: (S, D) with segment: (N,), or (N, D)   keep: (V,) bool or None
    returns (N,) float32

    >>> import torch
    >>> expected_dot_from_logits(torch.zeros(1, 2), torch.eye(2), torch.tensor([[1.0, 3.0]])).item()
    2.0
    """
    _checks.ready_logits(logits, keep, temperature)
    _checks.floats("table", table, (logits.shape[1], None), logits.device)
    _gradient(grad, table, segment, logits.shape[0])
    out = _from_logits(backend, logits, table, grad, segment, keep, float(temperature))
    if _checks.wanted(check, logits):
        _checks.raise_bad_row(
            out.isnan(), lambda row: _head.tempered(logits[row], keep, 1.0), {"table": table, "grad": grad}
        )
    return out


def _gradient(grad: Tensor, table: Tensor, segment: Tensor | None, rows: int) -> None:
    """One gradient per row, or one per sequence with the sequence of each row."""
    _checks.floats("grad", grad, (rows if segment is None else None, table.shape[1]), table.device)
    if segment is not None:
        _checks.indices("segment", segment, (rows,), table.device)
