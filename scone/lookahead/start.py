"""Where chains begin: a first guess of the future, as the masked LM's tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

import scone_kernels as kernels
from scone.lm import truncate
from scone.lookahead.base import Query
from scone.lookahead.chains import shift
from scone.lookahead.parts import LM_STATES
from scone.options import Options, integer, number, option
from scone.output import Cost
from scone.seeds import rollout_seed

__all__ = ["Beginning", "Carried", "Masks", "Rollout", "Start"]

WARMUP = "updates of chains that begin with nothing but [MASK], before those that count"


class Beginning(NamedTuple):
    """A row for each candidate and chain, the chains of a candidate side by side."""

    texts: list[str]  # the fixed text of each row
    fixed: list[list[int]]  # the same as tokens
    futures: list[list[int]]
    cost: Cost = Cost()


class Start(Options):
    """A way to begin."""

    needs: ClassVar[frozenset[str]] = frozenset()
    warmup: int = 0
    carries: ClassVar[bool] = False  # whether a text takes the end of its chains along

    def begin(self, query: Query, seed: Tensor, chains: int, length: int) -> Beginning:
        """Up to `length` tokens of future for each row; seed: (rows,)."""
        raise NotImplementedError


@dataclass(frozen=True)
class Rollout(Start):
    """What the LM writes, re-read by the masked LM's tokenizer (the paper's appendix A).

    >>> Rollout(tokens=4).tokens
    4
    """

    needs: ClassVar[frozenset[str]] = frozenset({LM_STATES})

    tokens: int | None = option(None, integer(1, optional=True), "the LM writes so many and [MASK] stands for the rest")
    top_p: float = option(0.9, number(0, 1, above=True), "draw only the likeliest tokens of this mass")
    min_p: float = option(0.1, number(0, 1), "draw no token below this share of the likeliest one's probability")

    def begin(self, query: Query, seed: Tensor, chains: int, length: int) -> Beginning:
        lm, mlm, density = query.parts.lm, query.parts.masked_lm, query.parts.density
        whole = max(1, round(length / density))  # as tokens of the LM
        count = whole if self.tokens is None else min(whole, self.tokens)
        read = query.read
        forked = lm.select(read, torch.arange(len(seed)) // chains)
        noise = rollout_seed(seed, query.step).to(forked.mask.device)

        def draw(logits: Tensor, i: int) -> Tensor:
            logits = truncate(logits, top_p=self.top_p, min_p=self.min_p)
            return kernels.gibbs_sample_from_logits(logits, seed=noise, counter=i).tokens

        drawn = lm.rollout(forked, count, draw)
        goes_on = [count < whole and len(path) == count for path in drawn]
        before = [text for text in query.written for _ in range(chains)]
        after = [text + query.future(i // chains, path) for i, (text, path) in enumerate(zip(before, drawn))]
        tokens = mlm.tokenizer(after, add_special_tokens=False, return_offsets_mapping=True)
        texts, fixed, futures = [], [], []
        for old, text, ids, places, unfinished in zip(
            before, after, tokens["input_ids"], tokens["offset_mapping"], goes_on
        ):
            split = sum(start < len(old) for start, _ in places)
            texts.append(text[: places[split - 1][1]] if split else old)
            fixed.append(list(ids[:split]))
            future = list(ids[split : split + length])
            futures.append(future + [mlm.mask_id] * (length - len(future)) if unfinished else future)
        cost = Cost(lm_rows=len(seed) * (count - 1), lm_passes=count - 1)
        return Beginning(texts, fixed, futures, cost)


@dataclass(frozen=True)
class Masks(Start):
    """Nothing but [MASK] (the paper's appendix D).

    >>> Masks().warmup
    4
    """

    warmup: int = option(4, integer(0), WARMUP)

    def begin(self, query: Query, seed: Tensor, chains: int, length: int) -> Beginning:
        return _from_known(query, [None] * len(seed), chains, length)


@dataclass(frozen=True)
class Carried(Start):
    """What the chains of the last step have become, moved on by the token that was taken; [MASK] at first.

    >>> Carried(warmup=2).carries
    True
    """

    carries: ClassVar[bool] = True

    warmup: int = option(4, integer(0), WARMUP)

    def begin(self, query: Query, seed: Tensor, chains: int, length: int) -> Beginning:
        known = [None if text.carried is None else text.carried[c] for text in query.texts for c in range(chains)]
        return _from_known(query, known, chains, length)


def _from_known(query: Query, known: Sequence[Sequence[int] | None], chains: int, length: int) -> Beginning:
    mlm = query.parts.masked_lm
    texts = [text for text in query.written for _ in range(chains)]
    fixed = [ids for ids in mlm.encode_batch(list(query.written)) for _ in range(chains)]
    return Beginning(texts, fixed, [shift(future, length, mlm.mask_id) for future in known])
