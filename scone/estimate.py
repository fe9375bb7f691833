"""From lookaheads to the next-token distribution: the Taylor estimate of q, and the rules that reweigh by it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

import scone_kernels as kernels
from scone.bridge import Bridge, Surfaces
from scone.conditionals import Conditionals
from scone.config import SconeConfig
from scone.lookahead import Lookahead, Sample
from scone.verifier import EmbeddingVerifier, Expression, Leaf

__all__ = ["estimate", "estimate_leaf", "reweigh", "taylor_term"]


def estimate(
    verifier: Expression,
    bridges: Mapping[object, Bridge],
    mlm: Conditionals,
    lookahead: Lookahead,
    samples: Sequence[Sample],
    config: SconeConfig,
    *,
    surfaces: Surfaces,
) -> Tensor:
    """q of each term of the verifier for each row, averaged over the samples: (terms, R) float32 on the CPU."""
    total = torch.zeros(len(verifier.terms), len(lookahead.texts))
    for sample in samples:
        values = {
            leaf.key: estimate_leaf(leaf, bridges.get(leaf.key), mlm, lookahead, sample, config, surfaces=surfaces)
            for leaf in verifier.leaves
        }
        total += torch.stack([term.combine(values) for term in verifier.terms])
    return total / len(samples)


def estimate_leaf(
    leaf: Leaf,
    bridge: Bridge | None,
    mlm: Conditionals,
    lookahead: Lookahead,
    sample: Sample,
    config: SconeConfig,
    *,
    surfaces: Surfaces,
) -> Tensor:
    """φ at each row of a sample plus the first-order effect of all the words that could stand there instead: (R,)."""
    if bridge is None or not isinstance(leaf, EmbeddingVerifier):
        futures = [surfaces.write(future)[0] for future in replaced(lookahead, sample).futures()]
        return leaf.evaluate([text + future for text, future in zip(lookahead.texts, futures)])
    view = bridge.view(sample.ids, lookahead.mask, lookahead.offset, sample.row, sample.col, lookahead.texts)
    if config.taylor_scale == 0 or not len(view.entry):
        return leaf.value_of_ids(view.ids, view.mask).cpu()
    at = leaf.linearise(view.ids, view.mask, kind=config.linearise)
    segment = sample.row[view.entry]
    grad = at.grad[segment, view.position] * view.share[:, None]  # (P, D)
    anchor = at.embeds[segment, view.position]  # (P, D)
    delta = taylor_term(mlm, sample.hidden, bridge.table, grad, anchor, view.entry, segment, config, rows=len(at.value))
    first_order = (at.value + config.taylor_scale * delta).cpu()
    if config.linearise == "logit":
        return first_order.sigmoid()
    return first_order if config.reweigh == "softmax" else first_order.clamp(0, 1)


def taylor_term(
    mlm: Conditionals,
    hidden: Tensor,
    table: Tensor,
    grad: Tensor,
    anchor: Tensor,
    entry: Tensor,
    segment: Tensor,
    config: SconeConfig,
    *,
    rows: int,
) -> Tensor:
    """Gradient times (expected - present) embedding, summed over each row's pairs: (rows,).

    hidden: (N, H)   table: (V, D)   grad, anchor: (P, D)   entry: (P,) into hidden   segment: (P,) into rows
    """
    if config.taylor == "position":
        expected = mlm.expect(hidden, table, temperature=config.mlm_temperature)[entry]  # (P, D)
        return kernels.taylor_estimate(
            torch.zeros(rows, device=grad.device), grad, expected, anchor, segment, form="position"
        )
    # The paper's form has one gradient a row: project the table on it once and skip the (P, D) expectation.
    grad_sum = torch.zeros(rows, grad.shape[1], device=grad.device).index_add(0, segment, grad.float())  # (R, D)
    expected_dot = mlm.expect_dot(
        hidden[entry], table, grad_sum.to(table.dtype), segment=segment, temperature=config.mlm_temperature
    )  # (P,)
    difference = expected_dot - (grad_sum[segment] * anchor.float()).sum(-1)
    count = torch.bincount(segment, minlength=rows).clamp(min=1)
    return torch.zeros(rows, device=grad.device).index_add(0, segment, difference) / count


def reweigh(log_p: Tensor, q: Tensor, config: SconeConfig, *, strengths: Sequence[float] = (1.0,)) -> Tensor:
    """log p*(token | attribute) over the candidates, normalised: (B, K); q: (terms, B, K), `-inf` in log_p stays out.

    >>> even = torch.tensor([[0.5, 0.5]]).log()
    >>> q = torch.tensor([[[0.2, 0.8]]])
    >>> reweigh(even, q, SconeConfig(strength=1)).exp()
    tensor([[0.2000, 0.8000]])
    """
    weights = config.strength * torch.tensor(strengths)[:, None, None]
    if config.reweigh == "bayes":
        log_q = weights * q.clamp(config.epsilon, 1).log()
    elif config.reweigh == "logit":
        log_q = torch.nn.functional.logsigmoid(weights * q.clamp(config.epsilon, 1 - config.epsilon).logit())
    else:  # Algorithm 1: log_softmax of the q's summed over samples
        log_q = weights * (config.samples * q).masked_fill(log_p.isneginf(), -torch.inf).log_softmax(-1)
        log_q = log_q.masked_fill(log_p.isneginf(), 0)
    return (log_p + log_q.sum(0)).log_softmax(-1)


def replaced(lookahead: Lookahead, sample: Sample) -> Lookahead:
    """The lookahead with a sample's tokens."""
    return Lookahead(sample.ids, lookahead.mask, lookahead.offset, lookahead.seed, lookahead.texts)
