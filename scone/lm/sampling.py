"""Candidates for the next token, the draw among them, and the cuts of a distribution that others draw from."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

import scone_kernels as kernels
from scone.errors import InputError
from scone.lm.transfer import fetched, sent

__all__ = ["Candidates", "choose", "propose", "truncate"]


@dataclass(frozen=True)
class Candidates:
    """The likely next tokens of B texts, most probable first; `log_p` is -inf where a text has fewer than K.

    >>> Candidates(torch.tensor([[4, 9]]), torch.tensor([[0.3, 0.1]]).log()).share
    tensor([[0.7500, 0.2500]])
    """

    tokens: Tensor  # (B, K) int64
    log_p: Tensor  # (B, K) float32, normalised over the whole vocabulary
    near: Candidates | None = None  # the same on the LM's device, where this is a copy on the CPU

    @property
    def on_device(self) -> Candidates:
        """The same where the LM is."""
        return self if self.near is None else self.near

    @property
    def share(self) -> Tensor:
        """(B, K) probabilities among the candidates."""
        return self.log_p.softmax(-1)


def propose(
    logits: Tensor, *, top_k: int, top_p: float = 1.0, min_p: float = 0.0, temperature: float = 1.0
) -> Candidates:
    """The top-k tokens inside the nucleus; logits: (B, V), with -inf where a processor forbids a token.

    They are on the CPU, for which the host waits once, and also where the logits are.

    >>> propose(torch.tensor([[0.0, 2.0, 1.0]]), top_k=2).tokens
    tensor([[1, 2]])
    """
    empty = logits.isneginf().all(-1)
    tokens = logits.topk(min(top_k, logits.shape[-1]), dim=-1).indices  # by logits: far-off log p are rounded alike
    # Less the largest first: a low temperature would blow all of them up, and infinity less infinity is no number.
    log_p = ((logits - logits.amax(-1, keepdim=True)) / max(temperature, 1e-30)).log_softmax(-1).gather(-1, tokens)
    if top_p < 1 or min_p > 0:
        # The nucleus of the k best: mass is counted over the whole vocabulary, as top-p alone would.
        ahead = log_p.exp().cumsum(-1) - log_p.exp()
        log_p = log_p.masked_fill(ahead >= top_p, -torch.inf)
        log_p = log_p.masked_fill(truncate(log_p, min_p=min_p).isneginf(), -torch.inf)
    near = Candidates(tokens, log_p)
    tokens, log_p, empty = fetched(tokens, log_p, empty)
    if bool(empty.any()):
        raise InputError("logits_processor must leave at least one token, got -inf for all")
    return Candidates(tokens, log_p, near)


def choose(
    tokens: Tensor, log_p_star: Tensor, *, vocabulary: int, seeds: Sequence[int], step: int | Sequence[int]
) -> Tensor:
    """Draw one candidate for each text: (B,) indices into K, on the candidates' device.

    The noise hangs on (seed, step, token id), step being one for all or each its own, so that the order of the candidates
    and the rest of the batch play no part.

    >>> choose(torch.tensor([[4, 9]]), torch.tensor([[-torch.inf, 0.0]]), vocabulary=10, seeds=[0], step=0)
    tensor([1])
    """
    logits = log_p_star.new_full((len(tokens), vocabulary), -torch.inf).scatter(1, tokens, log_p_star)
    counter = step if isinstance(step, int) else sent(list(step), tokens.device)
    drawn = kernels.gibbs_sample_from_logits(logits, seed=sent(list(seeds), tokens.device), counter=counter).tokens
    return (tokens == drawn[:, None]).int().argmax(-1)


def truncate(logits: Tensor, *, top_p: float = 1.0, min_p: float = 0.0) -> Tensor:
    """Logits with `-inf` outside the nucleus of mass `top_p` and below `min_p` times the largest probability.

    >>> truncate(torch.tensor([[2.0, 1.0, -3.0]]), min_p=0.1)
    tensor([[2., 1., -inf]])
    """
    if min_p == 0 and top_p == 1:
        return logits
    kept = logits.isfinite() if min_p == 0 else logits >= logits.amax(-1, keepdim=True) + math.log(min_p)
    if top_p == 1:
        return logits.masked_fill(~kept, -torch.inf)
    # Only tokens that pass `min_p` are put in order: some dozens, as a rule, instead of the vocabulary.
    found, tokens = logits.topk(int(kept.sum(-1).max()), dim=-1)
    p = (found - logits.logsumexp(-1, keepdim=True)).exp()
    inside = kept.gather(-1, tokens) & (p.cumsum(-1) - p < top_p)  # p.cumsum - p: the mass ahead of a token
    return torch.full_like(logits, -torch.inf).scatter(-1, tokens, found.masked_fill(~inside, -torch.inf))
