"""A second, smaller LM that looks ahead: for LMs that are much larger, and where only their logits are seen."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

import torch

from scone.lm import CausalLM, Reading, common_prefix, read_on
from scone.lookahead.base import Answer, Lookahead, Query
from scone.lookahead.expectation import Expectation
from scone.lookahead.parts import EMBEDDINGS, LM_STATES, Parts
from scone.lookahead.paths import Paths
from scone.options import Rule, integer, one_of, option
from scone.output import Cost

__all__ = ["Draft"]

_AT_ONCE = 1 << 15  # tokens of cache that candidates hold together: a gigabyte and a half of a 135M LM in float32


def _is_lm(value: Any) -> bool:
    if isinstance(value, tuple):
        return len(value) == 2
    return isinstance(value, CausalLM) or (isinstance(value, str) and value != "")


_LM = Rule(_is_lm, "'embedded', a folder, an id of the Hub or (model, tokenizer)", str)


@dataclass(frozen=True)
class Draft(Lookahead):
    """Another causal LM reads text and candidate, and looks ahead in the LM's place; of the LM only logits are needed.

    Where the tokenizers are the same it reads the LM's tokens, else their text. It keeps a cache for each text and reads
    on from where the text has changed.

    >>> Draft().inner
    Expectation(tokens=3, among=10)
    >>> sorted(Draft().needs)
    ['embeddings']
    """

    lm: Any = option("embedded", _LM, "the LM that looks ahead: a Hub id, a folder or embedded")
    inner: Lookahead = option(Expectation(tokens=3), one_of((Expectation, Paths)), "how it looks ahead")
    window: int = option(1024, integer(16), "tokens of the text that it reads: at least half of these, the last ones")

    @property
    def needs(self) -> frozenset[str]:
        """What the inner lookahead needs, but for the LM."""
        return self.inner.needs - {LM_STATES}

    @property
    def samples(self) -> int:
        """Those of the inner lookahead."""
        return self.inner.samples

    def prepare(self, parts: Parts) -> None:
        """Load the other LM, and what it needs beside it."""
        self.inner.prepare(parts.beside(self.lm))

    def place(self, parts: Parts, step: int, remaining: int) -> Hashable:
        return self.inner.place(parts, step, remaining)

    def judge(self, query: Query) -> Answer:
        parts = query.parts.beside(self.lm)
        with query.timer("look ahead"):
            texts = [self._cut(ids, parts.lm, query.remaining) for ids in _tokens(query, parts)]
            groups = [[i for i, _ in found] for _, found in groupby(enumerate(query.rows_or_texts), lambda at: at[1])]
            begun, rows = self._begin(query, parts.lm, texts, groups)
        answers, carried = [], [begun[g] for g, group in enumerate(groups) for _ in group]
        batches = list(_batches(groups, [len(ids) for ids in texts]))
        for batch in batches:
            own = self._of(query, parts, texts, batch)
            with query.timer("look ahead"):
                own.__dict__["read"] = read_on(parts.lm, [carried[i] for i in batch], [texts[i] for i in batch])
            rows += len(batch)
            answers.append(self.inner.judge(own))
            if len(batches) == 1:  # else the caches of all candidates would be held until the next step
                carried = [Reading(own.read, row, ids) for row, ids in enumerate(texts)]
        cost = sum((answer.cost for answer in answers), Cost())
        cost = replace(cost, lm_rows=0, lm_passes=0, draft_rows=rows + cost.lm_rows)
        return Answer(torch.cat([answer.q for answer in answers], 1), cost, carried)

    def instead(self, missing: frozenset[str]) -> Lookahead | None:
        """Without embeddings, what the inner lookahead would be without them."""
        inner = self.inner.instead(missing) if missing == {EMBEDDINGS} else None
        return None if inner is None else self.replace(inner=inner)

    def as_dict(self) -> dict[str, Any]:
        """A model that was given as an object is told by its class."""
        lm = self.lm[0] if isinstance(self.lm, tuple) else getattr(self.lm, "model", self.lm)
        return {**super().as_dict(), "lm": lm if isinstance(lm, str) else type(lm).__name__}

    def _cut(self, ids: Sequence[int], lm: CausalLM, remaining: int) -> list[int]:
        """The last tokens; where it begins moves by half a window at a time, so that what was read mostly still holds."""
        room = min(self.window, (lm.max_length or self.window) - self.inner.horizon(remaining))
        half = max(1, room // 2)
        return list(ids[max(0, -(-(len(ids) - room) // half) * half) :])

    def _begin(
        self, query: Query, lm: CausalLM, texts: Sequence[list[int]], groups: Sequence[Sequence[int]]
    ) -> tuple[list[Reading | None], int]:
        """What the candidates of each text have in common, read; and how many rows that took."""
        begun: list[Reading | None] = [query.texts[group[0]].carried for group in groups]
        shared, unread = [], []
        for g, group in enumerate(groups):
            first, last = min(texts[i] for i in group), max(texts[i] for i in group)
            common = min(common_prefix(first, last), *(len(texts[i]) - 1 for i in group))
            shared.append(list(texts[group[0]][:common]))
            known = 0 if begun[g] is None else common_prefix(begun[g].ids, shared[g])  # type: ignore[union-attr]
            if known < common:
                unread.append((common - known, common, g))
        for batch in _alike(sorted(unread)):
            state = read_on(lm, [begun[g] for g in batch], [shared[g] for g in batch])
            for row, g in enumerate(batch):
                begun[g] = Reading(state, row, shared[g])
        return begun, len(unread)

    def _of(self, query: Query, parts: Parts, texts: Sequence[Sequence[int]], batch: Sequence[int]) -> Query:
        """The question to the inner lookahead, about some of the candidates, in tokens of the other LM."""
        own = replace(
            query,
            parts=parts,
            texts=[replace(query.texts[i], prompt_ids=list(texts[i][:-1]), new_ids=[], carried=None) for i in batch],
            tokens=torch.tensor([texts[i][-1] for i in batch]),
            written=[query.written[i] for i in batch],
            state=None,
            rows=(),
            verifiers=[query.verifiers[i] for i in batch] if query.verifiers else (),
            futures=None if query.futures is None else [query.futures[i] for i in batch],
            part_of=None,
        )
        own.__dict__["steps"] = [query.steps[i] for i in batch]
        return own


def _tokens(query: Query, other: Parts) -> list[list[int]]:
    """n texts with their candidates, in tokens of another LM."""
    lm = query.parts.lm
    ids = [[*text.prompt_ids, *text.new_ids, token] for text, token in zip(query.texts, query.tokens.tolist())]
    return ids if query.parts.shares_tokens(other) else [other.lm.encode_open(lm.decode(row)) for row in ids]


def _batches(groups: Sequence[Sequence[int]], lengths: Sequence[int]) -> Iterator[list[int]]:
    """Candidates, text by text, as many at once as may hold a cache."""
    batch: list[int] = []
    longest = 0
    for group in groups:
        width = max(longest, *(lengths[i] for i in group), 0)
        if batch and width * (len(batch) + len(group)) > _AT_ONCE:
            yield batch
            batch, width = [], max(lengths[i] for i in group)
        batch, longest = [*batch, *group], width
    yield batch


def _alike(unread: Sequence[tuple[int, int, int]]) -> Iterator[list[int]]:
    """Texts by how much of them is to be read, so that few pads are: (to read, length, text), in that order."""
    batch: list[tuple[int, int, int]] = []
    for one in unread:
        padded = one[0] > 4 * batch[0][0] + 8 if batch else False
        if batch and (padded or (len(batch) + 1) * max(one[1], *(other[1] for other in batch)) > _AT_ONCE):
            yield [text for _, _, text in batch]
            batch = []
        batch.append(one)
    if batch:
        yield [text for _, _, text in batch]
