"""The definition of likely_rows, in plain torch."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import pad

from ... import _head, _noise


def from_logits(
    logits: Tensor,
    tables: Sequence[Tensor],
    keep: Tensor | None,
    temperature: float,
    among: int,
    min_p: float,
    seed: Tensor | None,
    counter: Tensor | None,
    dtype: torch.dtype = torch.float32,
) -> list[Tensor]:
    """Tokens and log_p (N, among), log_mass (N,), drawn (N,) if there is a seed, and the mean rows of every table."""
    scores = _head.tempered(logits, keep, temperature, dtype)
    whole = torch.logsumexp(scores, -1)
    whole = whole.masked_fill(~whole.isfinite(), math.nan)  # NaN, infinite or no logits
    scores = scores.masked_fill(whole.isnan()[:, None], -math.inf)
    found, order = scores.sort(dim=-1, descending=True, stable=True)
    found = pad(found[:, :among], (0, max(0, among - found.shape[1])), value=-math.inf)
    order = pad(order[:, :among], (0, max(0, among - order.shape[1])))
    inside = found > -math.inf
    if min_p > 0:
        inside &= found >= found[:, :1] + math.log(min_p)
    found = found.masked_fill(~inside, -math.inf)
    total = torch.logsumexp(found, -1)
    log_p, p = found - total[:, None], torch.softmax(found, -1)
    results = [order.masked_fill(~inside, -1), log_p, total - whole]
    if seed is not None and counter is not None:
        noise = _noise.gumbel_at(seed[:, None], counter[:, None], order)
        results.append(_first_best(found + noise, order, inside))
    picked = torch.where(inside, order, order[:, :1])  # what is not inside weighs nothing; its row may be NaN
    results += [torch.einsum("nk,nkd->nd", p, table[picked].to(dtype)) for table in tables]
    return results


def fused(
    hidden: Tensor,
    weight: Tensor,
    tables: Sequence[Tensor],
    bias: Tensor | None,
    keep: Tensor | None,
    temperature: float,
    vocabulary: int,
    among: int,
    min_p: float,
    seed: Tensor | None,
    counter: Tensor | None,
    dtype: torch.dtype = torch.float32,
) -> list[Tensor]:
    """The same with `logits = hidden @ weight.T + bias`."""
    logits = _head.logits(hidden, _head.rows_of(weight, vocabulary), bias, dtype)
    return from_logits(logits, tables, keep, temperature, among, min_p, seed, counter, dtype)


def _first_best(perturbed: Tensor, tokens: Tensor, inside: Tensor) -> Tensor:
    """The token (N,) with the largest of `perturbed` (N, k), the lowest on a tie; -1 where none is inside."""
    best = inside & (perturbed == perturbed.amax(-1, keepdim=True))
    lowest = tokens.masked_fill(~best, torch.iinfo(torch.int64).max).amin(-1)
    return lowest.masked_fill(~inside.any(-1), -1)
