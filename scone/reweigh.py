"""From q to the next-token distribution: log p* over the candidates."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from scone.lm import sent

__all__ = ["RULES", "all_hold", "reweigh"]

_MOST = 1e30
RULES = ("odds", "bayes", "softmax", "logit")


def all_hold(q: Tensor, strengths: Sequence[float] | Tensor) -> Tensor:
    """The product over the terms, each to its strength: (B, K) of q (terms, B, K). Strengths may differ by text: (terms, B).

    >>> all_hold(torch.tensor([[[0.9]], [[0.5]]]), strengths=(1.0, 2.0))
    tensor([[0.2250]])
    """
    return (q.clamp(min=0) ** _each(strengths, q.device)).prod(0)


def reweigh(
    log_p: Tensor,
    q: Tensor,
    rule: str,
    *,
    strength: float,
    strengths: Sequence[float] | Tensor = (1.0,),
    epsilon: float = 1e-4,
    samples: int = 1,
) -> Tensor:
    """log p*(token | attribute) over the candidates, normalised: (B, K); `-inf` in log_p stays out.

    q: (terms, B, K), the mean of `samples` estimates   strengths: one for each term, or (terms, B); times `strength`

    >>> even = torch.tensor([[0.5, 0.5]]).log()
    >>> reweigh(even, torch.tensor([[[0.2, 0.8]]]), "bayes", strength=1).exp()
    tensor([[0.2000, 0.8000]])
    """
    # Beyond any use, and far from where float32 overflows and infinity less infinity is no number.
    weights = (min(strength, _MOST) * _each(strengths, q.device).clamp(max=_MOST)).clamp(max=_MOST)
    low, high = max(epsilon, 1e-37), min(1 - epsilon, 1 - 2**-24)  # 0 and 1 have no odds
    if rule == "odds":
        # The odds of all terms together: one that is as good as certain does not outweigh one that is in doubt.
        most = weights.amax(0)
        together = all_hold(q, (weights / torch.where(most > 0, most, 1.0))[:, :, 0])
        log_q = (most * together.clamp(low, high).logit())[None]
    elif rule == "bayes":
        log_q = weights * q.clamp(low, 1).log()
    elif rule == "logit":
        log_q = torch.nn.functional.logsigmoid(weights * q.clamp(low, high).logit())
    else:  # Algorithm 1: log_softmax of the q's summed over samples
        log_q = weights * (samples * q).masked_fill(log_p.isneginf(), -torch.inf).log_softmax(-1)
        log_q = log_q.masked_fill(log_p.isneginf(), 0)
    return (log_p + log_q.sum(0)).log_softmax(-1)


def _each(strengths: Sequence[float] | Tensor, device: torch.device) -> Tensor:
    """(terms, B or 1, 1)"""
    own = sent(strengths if isinstance(strengths, Tensor) else list(strengths), device)
    return own[:, None, None] if own.dim() == 1 else own[:, :, None]
