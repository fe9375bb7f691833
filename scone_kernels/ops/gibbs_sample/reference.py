"""The definition of gibbs_sample, in plain torch."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ... import _head, _noise


def from_logits(
    logits: Tensor, keep: Tensor | None, temperature: float, seed: Tensor, counter: Tensor
) -> tuple[Tensor, Tensor]:
    """The token (N,) with the largest `logits / temperature + gumbel(seed, counter, token)`, and its log-probability."""
    tokens = torch.empty(logits.shape[0], dtype=torch.int64, device=logits.device)
    logprob = torch.empty(logits.shape[0], dtype=torch.float32, device=logits.device)
    # A few rows at a time: the noise takes sixty-odd bytes per token while it is computed.
    rows = max(1, 2**20 // logits.shape[1])
    for start in range(0, logits.shape[0], rows):
        block = slice(start, start + rows)
        scores = _head.tempered(logits[block], keep, temperature)
        chosen = (scores + _noise.gumbel(seed[block], counter[block], logits.shape[1])).argmax(-1)
        total = torch.logsumexp(scores, -1)
        bad = ~total.isfinite()  # NaN, infinite or no logits
        tokens[block] = chosen.masked_fill(bad, -1)
        logprob[block] = (scores.gather(1, chosen[:, None])[:, 0] - total).masked_fill(bad, math.nan)
    return tokens, logprob


def fused(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    keep: Tensor | None,
    temperature: float,
    seed: Tensor,
    counter: Tensor,
) -> tuple[Tensor, Tensor]:
    """The same with `logits = hidden @ weight.T + bias`."""
    return from_logits(_head.logits(hidden, weight, bias), keep, temperature, seed, counter)
