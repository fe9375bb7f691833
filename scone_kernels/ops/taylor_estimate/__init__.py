"""taylor_estimate: a first-order estimate of a verifier's score, summed over the positions of each sequence."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from ... import _checks
from ..._registry import Op
from . import reference

FORMS = ("position", "mean")


def _launch():
    from .kernel import launch

    return launch


_op = Op(
    "taylor_estimate(Tensor score, Tensor grad, Tensor expected, Tensor anchor, Tensor segment, str form) -> Tensor",
    reference=reference.estimate,
    launch=_launch,
    fake=lambda score, grad, expected, anchor, segment, form: score.new_empty(score.shape, dtype=torch.float32),
)


def taylor_estimate(
    score: Tensor,
    grad: Tensor,
    expected: Tensor,
    anchor: Tensor,
    segment: Tensor,
    *,
    form: Literal["position", "mean"] = "position",
    backend: str | None = None,
) -> Tensor:
    """Equals `score.index_add(0, segment, (grad * (expected - anchor)).sum(-1))`, without the (N, D) intermediates.

    score: (S,)   grad, expected, anchor: (N, D)   segment: (N,) int64, the sequence of each row, in any order
    returns (S,) float32

    `form="mean"` gives `score + (sum_t grad_t) . mean_t(expected_t - anchor_t)` per sequence instead. A sequence
    without rows keeps its score. On a GPU the range of `segment` is not checked; rows outside it count for nothing.

    >>> import torch
    >>> grad, segment = torch.tensor([[1.0], [2.0]]), torch.tensor([0, 0])
    >>> move = torch.tensor([[3.0], [5.0]])
    >>> taylor_estimate(torch.zeros(1), grad, move, torch.zeros(2, 1), segment).item()
    13.0
    >>> taylor_estimate(torch.zeros(1), grad, move, torch.zeros(2, 1), segment, form="mean").item()
    12.0
    """
    if form not in FORMS:
        raise ValueError(f"form must be one of {FORMS}, got {_checks.shown(form)}")
    device = score.device if isinstance(score, Tensor) else torch.device("cpu")
    _checks.floats("score", score, (None,), device)
    _checks.floats("grad", grad, (None, None), device)
    rows, width = grad.shape
    _checks.floats("expected", expected, (rows, width), device)
    _checks.floats("anchor", anchor, (rows, width), device)
    _checks.indices("segment", segment, (rows,), device)
    return _op(backend, score, grad, expected, anchor, segment, form)
