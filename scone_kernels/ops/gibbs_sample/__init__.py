"""gibbs_sample: a reproducible draw from a softmax over the vocabulary."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ... import _checks, _head
from ..._registry import Op
from . import reference


class GibbsSample(NamedTuple):
    """Drawn tokens (N,) int64 and their log-probabilities (N,) float32 under the distribution that they come from."""

    tokens: Tensor
    logprob: Tensor


def _launch_fused():
    from .kernel import launch_fused

    return launch_fused


def _launch_from_logits():
    from .kernel import launch_from_logits

    return launch_from_logits


def _fake(rows: Tensor, *_) -> tuple[Tensor, Tensor]:
    return rows.new_empty((rows.shape[0],), dtype=torch.int64), rows.new_empty((rows.shape[0],), dtype=torch.float32)


_fused = Op(
    "gibbs_sample(Tensor hidden, Tensor weight, Tensor? bias, Tensor? keep, float temperature, Tensor seed,"
    " Tensor counter) -> (Tensor, Tensor)",
    reference=reference.fused,
    launch=_launch_fused,
    fake=_fake,
)
_from_logits = Op(
    "gibbs_sample_from_logits(Tensor logits, Tensor? keep, float temperature, Tensor seed, Tensor counter)"
    " -> (Tensor, Tensor)",
    reference=reference.from_logits,
    launch=_launch_from_logits,
    fake=_fake,
)


def gibbs_sample(
    hidden: Tensor,
    weight: Tensor,
    *,
    bias: Tensor | None = None,
    keep: Tensor | None = None,
    temperature: float = 1.0,
    seed: int | Tensor,
    counter: int | Tensor,
    backend: str | None = None,
    check: bool = True,
) -> GibbsSample:
    """Draws as `multinomial(softmax((hidden @ weight.T + bias) / temperature, -1), 1)`, without the (N, V) intermediate.

    hidden: (N, H)   weight: (V, H)   bias: (V,) or None   keep: (V,) bool or None
    seed, counter: int or (N,) int64
    returns tokens (N,) int64 and logprob (N,) float32

    The draw is the argmax of `logits / temperature + gumbel(seed, counter, token)`: it depends on the row's logits, seed
    and counter and on nothing else. An int is shared by all rows, so that rows with equal logits draw equal tokens
    (common random numbers); for independent rows give each its own, such as `counter=torch.arange(N)`. A token whose
    `keep` is false is never drawn. With `check`, on the CPU, a row without a softmax raises ValueError; unchecked, and
    always on a GPU, it gives the token -1 and a log-probability of NaN.

    >>> import torch
    >>> hidden, weight = torch.zeros(2, 4), torch.ones(10, 4)
    >>> draw = gibbs_sample(hidden, weight, seed=0, counter=torch.tensor([7, 7]))
    >>> bool(draw.tokens[0] == draw.tokens[1])
    True
    """
    _checks.head(hidden, weight, bias, keep, temperature)
    seed, counter = _checks.per_row("seed", seed, hidden), _checks.per_row("counter", counter, hidden)
    sample = GibbsSample(*_fused(backend, hidden, weight, bias, keep, float(temperature), seed, counter))
    if _checks.wanted(check, hidden):
        _checks.raise_bad_row(sample.tokens < 0, lambda row: _head.row_of_logits(hidden, weight, bias, keep, row), {})
    return sample


def gibbs_sample_from_logits(
    logits: Tensor,
    *,
    keep: Tensor | None = None,
    temperature: float = 1.0,
    seed: int | Tensor,
    counter: int | Tensor,
    backend: str | None = None,
    check: bool = True,
) -> GibbsSample:
    """Draws as `multinomial(softmax(logits / temperature, -1), 1)`; see `gibbs_sample` for the options.

    logits: (N, V)   keep: (V,) bool or None   seed, counter: int or (N,) int64
    returns tokens (N,) int64 and logprob (N,) float32

    >>> import torch
    >>> gibbs_sample_from_logits(torch.tensor([[0.0, 100.0]]), seed=1, counter=2).tokens.item()
    1
    """
    _checks.ready_logits(logits, keep, temperature)
    seed, counter = _checks.per_row("seed", seed, logits), _checks.per_row("counter", counter, logits)
    sample = GibbsSample(*_from_logits(backend, logits, keep, float(temperature), seed, counter))
    if _checks.wanted(check, logits):
        _checks.raise_bad_row(sample.tokens < 0, lambda row: _head.tempered(logits[row], keep, 1.0), {})
    return sample
