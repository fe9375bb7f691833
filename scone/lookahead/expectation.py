"""What the LM expects: the next tokens as means over its own distribution, nothing drawn."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

import torch
from torch import Tensor

from scone.lookahead.base import Answer, Lookahead, Query
from scone.lookahead.parts import EMBEDDINGS, LM_STATES, Parts
from scone.lookahead.paths import Paths
from scone.options import integer, option
from scone.output import Cost

__all__ = ["Expectation"]


@dataclass(frozen=True)
class Expectation(Lookahead):
    """The LM reads a candidate and then its own expected embeddings; q is φ at the verifier's expected embeddings.

    >>> Expectation(3)
    Expectation(tokens=3, among=10)
    """

    needs = frozenset({LM_STATES, EMBEDDINGS})
    draws = False

    tokens: int = option(3, integer(1), "tokens to look ahead")
    among: int = option(10, integer(1, 64), "an expectation is over this many of the likeliest tokens")

    def place(self, parts: Parts, step: int, remaining: int) -> Hashable:
        return self.horizon(remaining)

    def judge(self, query: Query) -> Answer:
        parts, lm = query.parts, query.parts.lm
        tokens = self.horizon(query.remaining)
        read = query.read
        with query.timer("look ahead"):
            forked = lm.select(read, torch.arange(len(query.written)))
            likeliest: list[Tensor] = []  # (n,) tokens of each place
            means = lm.anticipate(forked, tokens, parts.lm_tables, among=self.among, likeliest=likeliest)
        query.show(self, lambda: [query.future(i, ids) for i, ids in enumerate(torch.stack(likeliest, 1).tolist())])
        with query.timer("estimate"):
            q = query.score_expected(query.written, means)
        rows, more = len(query.written), tokens - 1
        return Answer(q, Cost(lm_rows=rows * more, lm_passes=more, verifier_rows=query.asked))

    def instead(self, missing: frozenset[str]) -> Lookahead | None:
        """Without embeddings, drawn tokens that the verifier reads as text; without the LM, the masked LM expects."""
        from scone.lookahead.masked import Masked

        return Masked(tokens=self.tokens) if LM_STATES in missing else Paths(tokens=self.tokens, judged="drawn")
