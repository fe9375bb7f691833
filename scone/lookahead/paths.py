"""Futures that the LM draws, judged as they are or at the embeddings that it expected on the way."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from itertools import takewhile

import torch
from torch import Tensor

from scone.lm import CausalLM, LMState, fetched, sent
from scone.lookahead.base import Answer, Lookahead, Query
from scone.lookahead.parts import EMBEDDINGS, LM_STATES, Parts
from scone.options import choice, flag, integer, number, option
from scone.output import Cost
from scone.seeds import chain_seed, mix, rollout_seed

__all__ = ["Paths", "path_seeds"]


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
    among: int = option(20, integer(1, 64), "draw among this many of the likeliest tokens")
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

    def place(self, parts: Parts, step: int, remaining: int) -> Hashable:
        return self.horizon(remaining)

    def judge(self, query: Query) -> Answer:
        lm = query.parts.lm
        tokens, rows = self.horizon(query.remaining), len(query.written) * self.count
        read = query.read
        with query.timer("look ahead"):
            seed = path_seeds(query, self.count, coupled=self.coupled)
            forked = lm.select(read, torch.arange(rows) // self.count)
            drawn, means = self._draw(query, forked, seed, tokens)

        def futures() -> list[str]:
            return [query.future(i // self.count, path) for i, path in enumerate(_up_to_the_end(lm, drawn))]

        query.show(self, futures)
        written = [text for text in query.written for _ in range(self.count)]
        with query.timer("estimate"):
            if self.judged == "expected":
                q = query.score_expected(written, means)
            else:
                q = query.score([text + future for text, future in zip(written, futures())])
        cost = Cost(
            lm_rows=rows * (tokens - 1),
            lm_passes=tokens - 1,
            verifier_rows=self.count * query.asked,
        )
        return Answer(q.unflatten(1, (-1, self.count)).mean(-1), cost)

    def _draw(self, query: Query, state: LMState, seed: Tensor, tokens: int) -> tuple[Tensor, list[Tensor]]:
        """Tokens (rows, tokens) after each row of a state that may grow, and for each verifier the mean embeddings (rows, tokens, D) there.

        An expected embedding belongs to a text that goes on; where tokens are judged as drawn, a path ends where its text does.
        """
        lm, tables = query.parts.lm, query.parts.lm_tables if self.judged == "expected" else []
        each = [step for step in query.steps for _ in range(self.count)]
        noise = sent(rollout_seed(seed, each), state.mask.device)
        means: list[list[Tensor]] = [[] for _ in tables]
        drawn: list[Tensor] = []
        for i in range(tokens):
            likely = lm.likely(
                state, tables, among=self.among, min_p=self.min_p, goes_on=bool(tables), seed=noise, counter=i
            )
            for found, mean, table in zip(means, likely.rows, tables):
                found.append(mean.to(table.dtype))
            assert likely.drawn is not None
            drawn.append(likely.drawn)
            if i + 1 < tokens:
                state = lm.step(state, likely.drawn, headless=True)
        return torch.stack(drawn, 1), [torch.stack(found, 1) for found in means]

    def instead(self, missing: frozenset[str]) -> Lookahead | None:
        """Without embeddings the same paths, judged as drawn."""
        return self.replace(judged="drawn") if missing == {EMBEDDINGS} else None


def _up_to_the_end(lm: CausalLM, drawn: Tensor) -> list[list[int]]:
    """The tokens of each path before the one that ends its text: the host waits for them."""
    return [list(takewhile(lambda t: t not in lm.stop_ids, path)) for path in fetched(drawn)[0].tolist()]


def path_seeds(query: Query, count: int, *, coupled: bool) -> Tensor:
    """(n * count,) seeds: those of a text's chains, the same for all its candidates where these are coupled."""
    seed = torch.tensor([chain_seed(text.seed, c) for text in query.texts for c in range(count)])
    return seed if coupled else mix(seed, query.tokens.repeat_interleave(count))
