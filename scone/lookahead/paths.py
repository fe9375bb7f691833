"""Futures that the LM draws, judged as they are or at the embeddings that it expected on the way."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

import scone_kernels as kernels
from scone.lm import LMState, truncate
from scone.lookahead.base import Answer, Lookahead, Query
from scone.lookahead.parts import EMBEDDINGS, LM_STATES
from scone.options import choice, flag, integer, number, option
from scone.output import Cost
from scone.seeds import chain_seed, mix, rollout_seed

__all__ = ["Paths", "draw_paths", "path_seeds"]


@dataclass(frozen=True)
class Paths(Lookahead):
    """Some continuations of each candidate, drawn by the LM; q is the mean of what the verifier says of them.

    >>> Paths(tokens=6, count=2).count
    2
    """

    tokens: int = option(6, integer(1), "tokens to look ahead")
    count: int = option(4, integer(1), "continuations of each candidate")
    judged: str = option(
        "expected", choice("expected", "drawn"), "a path at its expected embeddings, or its tokens as drawn"
    )
    top_p: float = option(0.9, number(0, 1, above=True), "draw only the likeliest tokens of this mass")
    min_p: float = option(0.1, number(0, 1), "draw no token below this share of the likeliest one's probability")
    coupled: bool = option(
        True, flag(), "candidates share their random numbers, so that noise does not tell them apart"
    )

    @property
    def needs(self) -> frozenset[str]:
        """The LM; and a verifier that reads embeddings unless paths are judged as text."""
        return frozenset({LM_STATES, EMBEDDINGS} if self.judged == "expected" else {LM_STATES})

    @property
    def samples(self) -> int:
        """Paths of a candidate."""
        return self.count

    def judge(self, query: Query) -> Answer:
        parts, lm = query.parts, query.parts.lm
        tokens, rows = self.horizon(query.remaining), len(query.written) * self.count
        read = query.read
        with query.timer("look ahead"):
            seed = path_seeds(query, self.count, coupled=self.coupled)
            forked = lm.select(read, torch.arange(rows) // self.count)
            tables = parts.lm_tables if self.judged == "expected" else []
            drawn, means = draw_paths(query, forked, seed, tokens, tables, top_p=self.top_p, min_p=self.min_p)
        written = [text for text in query.written for _ in range(self.count)]
        with query.timer("estimate"):
            if self.judged == "expected":
                q = parts.score_expected(written, means)
            else:
                futures = (query.future(i // self.count, path) for i, path in enumerate(drawn))
                q = parts.score([text + future for text, future in zip(written, futures)])
        cost = Cost(
            lm_rows=len(query.written) + rows * (tokens - 1),
            lm_passes=tokens,
            verifier_rows=rows * len(parts.verifier.leaves),
        )
        return Answer(q.unflatten(1, (-1, self.count)).mean(-1), cost)

    def instead(self, missing: frozenset[str]) -> Lookahead | None:
        """Without embeddings the same paths, judged as drawn."""
        return self.replace(judged="drawn") if missing == {EMBEDDINGS} else None


def path_seeds(query: Query, count: int, *, coupled: bool) -> Tensor:
    """(n * count,) seeds: those of a text's chains, the same for all its candidates where these are coupled."""
    seed = torch.tensor([chain_seed(text.seed, c) for text in query.texts for c in range(count)])
    return seed if coupled else mix(seed, query.tokens.repeat_interleave(count))


def draw_paths(
    query: Query, state: LMState, seed: Tensor, tokens: int, tables: list[Tensor], *, top_p: float, min_p: float
) -> tuple[list[list[int]], list[Tensor]]:
    """Up to `tokens` tokens after each row of a state that may grow, and the tables' mean rows (R, tokens, D) there."""
    lm = query.parts.lm
    noise = rollout_seed(seed, query.step).to(state.logits.device)
    stops = torch.tensor(sorted(lm.stop_ids), dtype=torch.long, device=state.logits.device)
    means: list[list[Tensor]] = [[] for _ in tables]

    def draw(logits: Tensor, i: int) -> Tensor:
        if tables:  # an expected embedding belongs to a text that goes on
            logits = logits.index_fill(1, stops, -torch.inf)
        logits = truncate(logits, top_p=top_p, min_p=min_p)
        for found, table in zip(means, tables):
            found.append(kernels.expected_embedding_from_logits(logits, table).to(table.dtype))
        return kernels.gibbs_sample_from_logits(logits, seed=noise, counter=i).tokens

    drawn = lm.rollout(state, tokens, draw)
    return drawn, [torch.stack(found, 1) for found in means]
