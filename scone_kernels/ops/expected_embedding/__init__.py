"""expected_embedding: the mean row of a table under a softmax over the vocabulary."""

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
    "expected_embedding(Tensor hidden, Tensor weight, Tensor table, Tensor? bias, Tensor? keep, float temperature)"
    " -> Tensor",
    reference=reference.fused,
    launch=_launch_fused,
    fake=lambda hidden, weight, table, bias, keep, temperature: hidden.new_empty(
        (hidden.shape[0], table.shape[1]), dtype=torch.float32
    ),
)
_from_logits = Op(
    "expected_embedding_from_logits(Tensor logits, Tensor table, Tensor? keep, float temperature) -> Tensor",
    reference=reference.from_logits,
    launch=_launch_from_logits,
    fake=lambda logits, table, keep, temperature: logits.new_empty(
        (logits.shape[0], table.shape[1]), dtype=torch.float32
    ),
)


def expected_embedding(
    hidden: Tensor,
    weight: Tensor,
    table: Tensor,
    *,
    bias: Tensor | None = None,
    keep: Tensor | None = None,
    temperature: float = 1.0,
    backend: str | None = None,
    check: bool = True,
) -> Tensor:
    """Equals `softmax((hidden @ weight.T + bias) / temperature, -1) @ table`, without the (N, V) intermediate.

    hidden: (N, H)   weight: (V, H)   table: (V, D)   bias: (V,) or None   keep: (V,) bool or None
    returns (N, D) float32

    Tokens whose `keep` is false have no probability. With `check`, on the CPU, a row without a softmax (NaN logits, or
    all of them -inf) raises ValueError; unchecked, and always on a GPU, it gives a row of NaN.

    >>> import torch
    >>> table = torch.eye(3)
    >>> expected_embedding(torch.zeros(1, 2), torch.ones(3, 2), table, keep=torch.tensor([True, True, False])).tolist()
    [[0.5, 0.5, 0.0]]
    """
    _checks.head(hidden, weight, bias, keep, temperature)
    _checks.floats("table", table, (weight.shape[0], None), hidden.device)
    out = _fused(backend, hidden, weight, table, bias, keep, float(temperature))
    if _checks.wanted(check, hidden):
        _checks.raise_bad_row(
            out.isnan().any(1), lambda row: _head.row_of_logits(hidden, weight, bias, keep, row), {"table": table}
        )
    return out


def expected_embedding_from_logits(
    logits: Tensor,
    table: Tensor,
    *,
    keep: Tensor | None = None,
    temperature: float = 1.0,
    backend: str | None = None,
    check: bool = True,
) -> Tensor:
    """Equals `softmax(logits / temperature, -1) @ table`; see `expected_embedding` for the options.

    logits: (N, V)   table: (V, D)   keep: (V,) bool or None
    returns (N, D) float32

    >>> import torch
    >>> expected_embedding_from_logits(torch.zeros(1, 2), torch.tensor([[1.0], [3.0]])).item()
    2.0
    """
    _checks.ready_logits(logits, keep, temperature)
    _checks.floats("table", table, (logits.shape[1], None), logits.device)
    out = _from_logits(backend, logits, table, keep, float(temperature))
    if _checks.wanted(check, logits):
        _checks.raise_bad_row(out.isnan().any(1), lambda row: _head.tempered(logits[row], keep, 1.0), {"table": table})
    return out
