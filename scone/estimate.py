"""From lookaheads to the next-token distribution: the Taylor estimate of q, and the rules that reweigh by it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

import scone_kernels as kernels
from scone.bridge import Bridge, Surfaces, View
from scone.conditionals import Conditionals
from scone.config import SconeConfig
from scone.lookahead import Lookahead, Sample
from scone.verifier import EmbeddingVerifier, Expression, Leaf

__all__ = ["Expansion", "all_hold", "blend", "estimate", "expected_value", "linearise", "reweigh", "taylor_term"]


@dataclass(frozen=True)
class Expansion:
    """A verifier about the R rows of a sample: its value, and its gradient at P pairs of tokens that may vary.

    A pair is an entry of the sample's conditionals and a token of the verifier's that it covers; at order zero there
    are none.

    >>> Expansion(torch.tensor([0.3]), "prob").grad is None
    True
    """

    value: Tensor  # (R,) φ, or its log-odds where `kind` is "logit"
    kind: str
    table: Tensor | None = None  # (V of the masked LM, D)
    grad: Tensor | None = None  # (P, D)
    anchor: Tensor | None = None  # (P, D) the embedding that stands there
    entry: Tensor | None = None  # (P,) into the sample's conditionals
    segment: Tensor | None = None  # (P,) into rows


def linearise(
    leaf: Leaf,
    bridge: Bridge | None,
    lookahead: Lookahead,
    sample: Sample,
    config: SconeConfig,
    *,
    surfaces: Surfaces,
    mlm: Conditionals,
) -> Expansion:
    """Expand one verifier about a sample, or about the mean over its conditionals, where the linear term is zero.

    To order zero without a gradient or where `taylor_scale` is 0.

    >>> from scone.embedded import load_classifier, load_masked_lm
    >>> from scone.lookahead import begin, look_ahead
    >>> from scone.verifier import Verifier
    >>> mlm, config = Conditionals(*load_masked_lm()), SconeConfig(expand="sample", taylor_scale=1.0)
    >>> positive = Verifier(*load_classifier("sentiment"), target="positive")
    >>> surfaces, text = Surfaces(mlm.tokenizer), "The weather today is"
    >>> bridge = Bridge(mlm.tokenizer, len(mlm.keep), surfaces, positive)
    >>> start = begin(mlm, [text], [mlm.encode(text)], [[mlm.mask_id] * 3], torch.tensor([0]))
    >>> (sample,) = look_ahead(mlm, start, config, step=0)
    >>> linearise(positive, bridge, start, sample, config, surfaces=surfaces, mlm=mlm).grad.shape
    torch.Size([3, 384])
    """
    if bridge is None or not isinstance(leaf, EmbeddingVerifier):
        futures = [surfaces.write(future)[0] for future in lookahead.with_ids(sample.ids).futures()]
        return Expansion(leaf.evaluate([text + future for text, future in zip(lookahead.texts, futures)]), "prob")
    view = bridge.view(sample.ids, lookahead.mask, lookahead.offset, sample.row, sample.col, lookahead.texts)
    if config.expand == "mean" and len(view.entry):
        return Expansion(_value_at_mean(leaf, bridge, mlm, view, sample, config), "prob")
    if config.taylor_scale == 0 or not len(view.entry):
        return Expansion(leaf.value_of_ids(view.ids, view.mask), "prob")
    at = leaf.linearise(view.ids, view.mask, kind=config.linearise)
    segment = sample.row[view.entry]
    grad = at.grad[segment, view.position] * view.share[:, None]
    anchor = at.embeds[segment, view.position]
    return Expansion(at.value, config.linearise, bridge.table, grad, anchor, view.entry, segment)


@torch.no_grad()
def _value_at_mean(
    leaf: EmbeddingVerifier, bridge: Bridge, mlm: Conditionals, view: View, sample: Sample, config: SconeConfig
) -> Tensor:
    """φ (R,) where every token that may vary is replaced by its expected embedding, as far as the entry covers it."""
    expected = mlm.expect(sample.hidden, bridge.table, temperature=config.mlm_temperature)[view.entry]  # (P, D)
    embeds = leaf.table[view.ids].float()  # (R, T, D)
    row = sample.row[view.entry]
    change = view.share[:, None] * (expected - embeds[row, view.position])
    embeds = embeds.index_put((row, view.position), change, accumulate=True)
    return leaf.value(embeds.to(leaf.table), view.mask, "prob")


def estimate(
    verifier: Expression,
    expansions: Mapping[object, Expansion],
    mlm: Conditionals,
    sample: Sample,
    config: SconeConfig,
) -> Tensor:
    """q of each term of the verifier at each row of a sample: (terms, R) float32 on the CPU.

    `expansions` are those of the verifier's leaves, by `leaf.key`.

    >>> from scone.verifier import Verifier
    >>> short = Verifier.from_callable(lambda texts: [1 / len(text) for text in texts])
    >>> order_zero = {short.key: Expansion(torch.tensor([0.25]), "prob")}
    >>> estimate(~short, order_zero, mlm=None, sample=None, config=SconeConfig())
    tensor([[0.7500]])
    """
    values = {key: expected_value(expansion, mlm, sample, config) for key, expansion in expansions.items()}
    return torch.stack([term.combine(values) for term in verifier.terms])


def blend(ahead: Tensor, now: Tensor, share: float) -> Tensor:
    """q from two views of a candidate: its lookahead's φ and that of the text so far, mixed as log-odds.

    >>> blend(torch.tensor([0.8]), torch.tensor([0.2]), share=0.5)
    tensor([0.5000])
    """
    ahead, now = (q.clamp(1e-6, 1 - 1e-6).logit() for q in (ahead, now))
    return ((1 - share) * ahead + share * now).sigmoid()


def expected_value(expansion: Expansion, mlm: Conditionals, sample: Sample, config: SconeConfig) -> Tensor:
    """φ at each row plus the first-order effect of all the words that could stand there instead: (R,) on the CPU.

    >>> expected_value(Expansion(torch.tensor([0.0]), "logit"), mlm=None, sample=None, config=SconeConfig())
    tensor([0.5000])
    """
    value = expansion.value.cpu()
    if expansion.grad is not None:
        value = value + config.taylor_scale * taylor_term(expansion, mlm, sample.hidden, config).cpu()
    if expansion.kind == "logit":
        return value.sigmoid()
    return value if config.reweigh == "softmax" else value.clamp(0, 1)


def taylor_term(expansion: Expansion, mlm: Conditionals, hidden: Tensor, config: SconeConfig) -> Tensor:
    """Gradient times (expected - present) embedding, summed over each row's pairs: (R,); hidden: (N, H).

    >>> from types import SimpleNamespace
    >>> even = SimpleNamespace(expect=lambda hidden, table, temperature: table.mean(0, keepdim=True))
    >>> grad, anchor, first = torch.tensor([[4.0, 0.0]]), torch.tensor([[0.0, 1.0]]), torch.tensor([0])
    >>> one = Expansion(torch.zeros(1), "prob", torch.eye(2), grad, anchor, entry=first, segment=first)
    >>> taylor_term(one, even, torch.zeros(1, 1), SconeConfig())  # 4 * (0.5 - 0)
    tensor([2.])
    """
    table, grad, anchor = expansion.table, expansion.grad, expansion.anchor
    entry, segment, rows = expansion.entry, expansion.segment, len(expansion.value)
    assert table is not None and grad is not None and anchor is not None and entry is not None and segment is not None
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


def all_hold(q: Tensor, strengths: Sequence[float]) -> Tensor:
    """The product over the terms, each to its strength: (B, K) of q (terms, B, K).

    >>> all_hold(torch.tensor([[[0.9]], [[0.5]]]), strengths=(1.0, 2.0))
    tensor([[0.2250]])
    """
    return (q.clamp(min=0) ** torch.tensor(strengths)[:, None, None]).prod(0)


def reweigh(log_p: Tensor, q: Tensor, config: SconeConfig, *, strengths: Sequence[float] = (1.0,)) -> Tensor:
    """log p*(token | attribute) over the candidates, normalised: (B, K); q: (terms, B, K), `-inf` in log_p stays out.

    >>> even = torch.tensor([[0.5, 0.5]]).log()
    >>> q = torch.tensor([[[0.2, 0.8]]])
    >>> reweigh(even, q, SconeConfig(reweigh="bayes", strength=1)).exp()
    tensor([[0.2000, 0.8000]])
    """
    weights = config.strength * torch.tensor(strengths)[:, None, None]
    if config.reweigh == "odds":
        # The odds of all terms together: one that is as good as certain does not outweigh one that is in doubt.
        together = all_hold(q, [strength / (max(strengths) or 1) for strength in strengths])
        log_q = weights.amax() * together.clamp(config.epsilon, 1 - config.epsilon).logit()[None]
    elif config.reweigh == "bayes":
        log_q = weights * q.clamp(config.epsilon, 1).log()
    elif config.reweigh == "logit":
        log_q = torch.nn.functional.logsigmoid(weights * q.clamp(config.epsilon, 1 - config.epsilon).logit())
    else:  # Algorithm 1: log_softmax of the q's summed over samples
        log_q = weights * (config.samples * q).masked_fill(log_p.isneginf(), -torch.inf).log_softmax(-1)
        log_q = log_q.masked_fill(log_p.isneginf(), 0)
    return (log_p + log_q.sum(0)).log_softmax(-1)
