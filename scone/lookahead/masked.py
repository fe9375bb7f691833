"""What a masked LM expects: one pass over [MASK], nothing drawn; of the LM only its next-token logits are needed."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

import torch
from torch import Tensor

from scone.lookahead.base import Answer, Lookahead, Query
from scone.lookahead.chains import begin
from scone.lookahead.gibbs import Gibbs
from scone.lookahead.parts import EMBEDDINGS, MASKED_LM, Parts
from scone.lookahead.start import Masks
from scone.lookahead.taylor import AtSample
from scone.options import integer, number, option
from scone.output import Cost

__all__ = ["Masked"]


@dataclass(frozen=True)
class Masked(Lookahead):
    """The masked LM reads text, candidate and [MASK]; q is φ at the embeddings that it expects there.

    >>> Masked(tokens=6).tokens
    6
    """

    needs = frozenset({MASKED_LM, EMBEDDINGS})
    draws = False

    tokens: int = option(6, integer(1), "tokens of the masked LM to look ahead")
    temperature: float = option(1.0, number(0, above=True), "of the masked LM")

    def place(self, parts: Parts, step: int, remaining: int) -> Hashable:
        return min(self.tokens, max(1, round(remaining * parts.density)))

    def judge(self, query: Query) -> Answer:
        parts, mlm, n = query.parts, query.parts.masked_lm, len(query.written)
        length = min(self.tokens, max(1, round(query.remaining * parts.density)))
        with query.timer("look ahead"):
            futures = [[mlm.mask_id] * length] * n
            chains = begin(mlm, query.written, mlm.encode_batch(list(query.written)), futures, torch.zeros(n).long())
            row, col = (chains.offset >= 0).nonzero(as_tuple=True)
            hidden = mlm.hidden(chains.ids, chains.mask, row, col)  # (n * length, H)
            tables = [parts.bridge(leaf).table for leaf in parts.readers]
            means = [mlm.expect(hidden, table, temperature=self.temperature) for table in tables]
        query.show(self, lambda: self._likeliest(query, hidden, length))
        with query.timer("estimate"):
            q = query.score_expected(query.written, [mean.unflatten(0, (n, length)) for mean in means])
        return Answer(q, Cost(masked_lm_rows=n, verifier_rows=query.asked))

    def _likeliest(self, query: Query, hidden: Tensor, length: int) -> list[str]:
        """What the likeliest tokens read as; almost without temperature noise plays no part."""
        parts = query.parts
        tokens = parts.masked_lm.draw(hidden, seed=0, counter=0, temperature=1e-6)
        return [parts.surfaces.write(ids)[0] for ids in tokens.view(-1, length).tolist()]

    def instead(self, missing: frozenset[str]) -> Lookahead | None:
        """Without embeddings, tokens that the masked LM draws at once."""
        if EMBEDDINGS not in missing:
            return None
        return Gibbs(
            tokens=self.tokens,
            start=Masks(warmup=0),
            iterations=0,
            temperature=self.temperature,
            estimate=AtSample(),
        )
