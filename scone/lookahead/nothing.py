"""No lookahead: the verifier on text and candidate."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from scone.lookahead.base import Answer, Lookahead, Query
from scone.lookahead.parts import EMBEDDINGS, Parts
from scone.output import Cost

__all__ = ["Nothing"]


@dataclass(frozen=True)
class Nothing(Lookahead):
    """q is φ of the text as if it ended after the candidate.

    >>> Nothing()
    Nothing()
    """

    draws = False

    def place(self, parts: Parts, step: int, remaining: int) -> Hashable:
        return None

    def judge(self, query: Query) -> Answer:
        parts = query.parts
        with query.timer("estimate"):
            if EMBEDDINGS not in parts.offers:
                q = query.score(query.written)
            else:
                n = len(query.written)
                q = query.score_expected(
                    query.written, [leaf.table.new_empty(n, 0, leaf.table.shape[1]) for leaf in parts.readers]
                )
        return Answer(q, Cost(verifier_rows=query.asked))
