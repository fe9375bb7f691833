"""What a verifier says of chains that a masked LM has drawn: at the sample, at its mean, or to first order about it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

import scone_kernels as kernels
from scone.lm import MaskedLM
from scone.lookahead.base import Query
from scone.lookahead.chains import Chains, Sample, marginals
from scone.lookahead.parts import ANYWHERE, EMBEDDINGS, GRADIENTS, Parts, score_each
from scone.options import Options, choice, flag, number, option
from scone.verifier import EmbeddingVerifier, Leaf

__all__ = ["AtMean", "AtSample", "Estimate", "Expansion", "Taylor", "linearise", "taylor_term"]

MARGINALS = "the conditionals p(y_i | the rest): of each position's last draw, with each masked in turn, or with none"


class Estimate(Options):
    """φ of chains whose tokens might have been others."""

    needs: ClassVar[frozenset[str]] = frozenset()

    def prepare(self, mlm: MaskedLM, chains: Chains, sample: Sample) -> Sample:
        """The sample with the conditionals that this estimate wants."""
        return sample

    def rows_read(self, chains: Chains) -> int:
        """Rows of the masked LM that `prepare` reads."""
        return 0

    def value(self, leaf: Leaf, parts: Parts, chains: Chains, sample: Sample, temperature: float) -> Tensor:
        """(R,) float32: q of each row under one verifier."""
        raise NotImplementedError

    def of(self, query: Query, chains: Chains, sample: Sample, temperature: float) -> Tensor:
        """(terms, R): q of each row under each term of its verifier."""
        parts = query.parts
        ready = self.prepare(parts.masked_lm, chains, sample)
        if not query.verifiers:
            leaves = parts.verifier.leaves
            return parts.combine(
                {leaf.key: parts.near(self.value(leaf, parts, chains, ready, temperature)) for leaf in leaves}
            )

        def of_some(leaf: Leaf, rows: list[int]) -> Tensor:
            if isinstance(leaf, EmbeddingVerifier):  # whose conditionals are those of all rows
                return self.value(leaf, parts, chains, ready, temperature)[rows]
            own = torch.tensor(rows, device=ready.ids.device)
            return self.value(leaf, parts, chains.rows(own), replace(ready, ids=ready.ids[own]), temperature)

        return score_each(query.by_row(len(chains.ids)), of_some)


@dataclass(frozen=True)
class AtSample(Estimate):
    """φ of the tokens as drawn: all that a verifier without embeddings can be asked.

    >>> AtSample()
    AtSample()
    """

    def value(self, leaf: Leaf, parts: Parts, chains: Chains, sample: Sample, temperature: float) -> Tensor:
        if not isinstance(leaf, EmbeddingVerifier):
            futures = [parts.surfaces.write(future)[0] for future in chains.with_ids(sample.ids).futures()]
            return leaf.judged([text + future for text, future in zip(chains.texts, futures)])
        view = parts.bridge(leaf).view(sample.ids, chains.mask, chains.offset, sample.row, sample.col, chains.texts)
        return leaf.value_of_ids(view.ids, view.mask)


@dataclass(frozen=True)
class _OverWords(Estimate):
    """An estimate over all the words that might stand at each position."""

    marginals: str = option("sweep", choice("sweep", "masked", "unmasked"), MARGINALS)

    def prepare(self, mlm: MaskedLM, chains: Chains, sample: Sample) -> Sample:
        if self.marginals == "sweep":
            return sample
        return marginals(mlm, chains.with_ids(sample.ids), masked=self.marginals == "masked")

    def rows_read(self, chains: Chains) -> int:
        return {"sweep": 0, "masked": int(chains.length.sum()), "unmasked": len(chains.ids)}[self.marginals]


@dataclass(frozen=True)
class AtMean(_OverWords):
    """φ at the expected embeddings: expanded about the mean, the linear term is zero.

    >>> AtMean().marginals
    'sweep'
    """

    needs: ClassVar[frozenset[str]] = frozenset({EMBEDDINGS, ANYWHERE})

    @torch.no_grad()
    def value(self, leaf: Leaf, parts: Parts, chains: Chains, sample: Sample, temperature: float) -> Tensor:
        assert isinstance(leaf, EmbeddingVerifier)
        bridge = parts.bridge(leaf)
        view = bridge.view(sample.ids, chains.mask, chains.offset, sample.row, sample.col, chains.texts)
        embeds = leaf.table[view.ids].float()  # (R, T, D)
        if len(view.entry):
            expected = parts.masked_lm.expect(sample.hidden, bridge.table, temperature=temperature)[
                view.entry
            ]  # (P, D)
            row = sample.row[view.entry]
            change = view.share[:, None] * (expected - embeds[row, view.position])
            embeds = embeds.index_put((row, view.position), change, accumulate=True)
        return leaf.value(embeds.to(leaf.table), view.mask, "prob")


@dataclass(frozen=True)
class Taylor(_OverWords):
    """φ at the sample plus the first-order effect of all the words that could stand there instead.

    >>> Taylor(form="mean").form
    'mean'
    """

    needs: ClassVar[frozenset[str]] = frozenset({EMBEDDINGS, ANYWHERE, GRADIENTS})

    form: str = option(
        "position", choice("position", "mean"), "gradient times difference by position, or of their sums"
    )
    linearise: str = option("logit", choice("prob", "logit"), "expand φ itself or its log-odds")
    scale: float = option(1.0, number(0, above=True), "how much of the first-order term is trusted")
    clamp: bool = option(True, flag(), "keep an estimate of φ itself within [0, 1]")

    def value(self, leaf: Leaf, parts: Parts, chains: Chains, sample: Sample, temperature: float) -> Tensor:
        assert isinstance(leaf, EmbeddingVerifier)
        at = linearise(leaf, parts, chains, sample, kind=self.linearise)
        value = at.value
        if len(at.entry):
            term = taylor_term(at, parts.masked_lm, sample.hidden, form=self.form, temperature=temperature)
            value = value + self.scale * term
        if self.linearise == "logit":
            return value.sigmoid()
        return value.clamp(0, 1) if self.clamp else value


@dataclass(frozen=True)
class Expansion:
    """A verifier about the R rows of a sample: its value, and its gradient at P pairs of tokens that may vary.

    A pair is an entry of the sample's conditionals and a token of the verifier's that it covers.

    >>> none = torch.zeros(0, dtype=torch.long)
    >>> Expansion(torch.tensor([0.3]), torch.eye(2), torch.zeros(0, 2), torch.zeros(0, 2), none, none).value
    tensor([0.3000])
    """

    value: Tensor  # (R,) φ or its log-odds
    table: Tensor  # (V of the masked LM, D)
    grad: Tensor  # (P, D)
    anchor: Tensor  # (P, D) the embedding that stands there
    entry: Tensor  # (P,) into the sample's conditionals
    segment: Tensor  # (P,) into rows


def linearise(leaf: EmbeddingVerifier, parts: Parts, chains: Chains, sample: Sample, *, kind: str) -> Expansion:
    """Expand one verifier, φ (kind "prob") or its log-odds (kind "logit"), about a sample.

    >>> from scone.decode import Scone, SconeConfig
    >>> from scone.lookahead.chains import Memory, begin, draw_masks
    >>> parts = Scone.from_pretrained(target="positive").parts
    >>> mlm, text = parts.masked_lm, "The weather today is"
    >>> chains = begin(mlm, [text], [mlm.encode(text)], [[mlm.mask_id] * 3], torch.tensor([0]))
    >>> memory = Memory(chains)
    >>> ids = draw_masks(mlm, chains, chains.ids, memory, temperature=1.0, step=0, number=0)
    >>> linearise(parts.verifier, parts, chains, memory.sample(ids), kind="prob").grad.shape
    torch.Size([3, 384])
    """
    bridge = parts.bridge(leaf)
    view = bridge.view(sample.ids, chains.mask, chains.offset, sample.row, sample.col, chains.texts)
    at = leaf.linearise(view.ids, view.mask, kind=kind)
    segment = sample.row[view.entry]
    grad = at.grad[segment, view.position] * view.share[:, None]
    anchor = at.embeds[segment, view.position]
    return Expansion(at.value, bridge.table, grad, anchor, view.entry, segment)


def taylor_term(at: Expansion, mlm: MaskedLM, hidden: Tensor, *, form: str, temperature: float = 1.0) -> Tensor:
    """Gradient times (expected - present) embedding, summed over each row's pairs: (R,); hidden: (N, H).

    >>> from types import SimpleNamespace
    >>> even = SimpleNamespace(expect=lambda hidden, table, temperature: table.mean(0, keepdim=True))
    >>> grad, anchor, first = torch.tensor([[4.0, 0.0]]), torch.tensor([[0.0, 1.0]]), torch.tensor([0])
    >>> one = Expansion(torch.zeros(1), torch.eye(2), grad, anchor, entry=first, segment=first)
    >>> taylor_term(one, even, torch.zeros(1, 1), form="position")  # 4 * (0.5 - 0)
    tensor([2.])
    """
    rows, device = len(at.value), at.grad.device
    if form == "position":
        expected = mlm.expect(hidden, at.table, temperature=temperature)[at.entry]  # (P, D)
        zero = torch.zeros(rows, device=device)
        return kernels.taylor_estimate(zero, at.grad, expected, at.anchor, at.segment, form="position")
    # The paper's form has one gradient a row: project the table on it once and skip the (P, D) expectation.
    grad_sum = torch.zeros(rows, at.grad.shape[1], device=device).index_add(0, at.segment, at.grad.float())  # (R, D)
    expected_dot = mlm.expect_dot(
        hidden[at.entry], at.table, grad_sum.to(at.table.dtype), segment=at.segment, temperature=temperature
    )  # (P,)
    difference = expected_dot - (grad_sum[at.segment] * at.anchor.float()).sum(-1)
    count = torch.bincount(at.segment, minlength=rows).clamp(min=1)
    return torch.zeros(rows, device=device).index_add(0, at.segment, difference) / count
