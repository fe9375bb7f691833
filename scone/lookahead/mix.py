"""Several lookaheads: each is wrong in its own way, so that their mean is less wrong."""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from scone.errors import ConfigError
from scone.lookahead.base import Answer, Lookahead, Query
from scone.lookahead.parts import Parts
from scone.options import number
from scone.output import Cost

__all__ = ["Mix"]

_WEIGHT = number(0, above=True)


@dataclass(frozen=True, init=False)
class Mix(Lookahead):
    """The weighted mean of what its parts say, as log-odds; without weights all count the same.

    >>> from scone.lookahead import Expectation, Nothing
    >>> sorted(Mix(Expectation(3), Nothing()).needs)
    ['embeddings', 'lm states']
    >>> Mix(Expectation(3))
    Traceback (most recent call last):
    scone.errors.ConfigError: parts of Mix must be two lookaheads or more, got (Expectation(tokens=3, among=10),)
    """

    parts: tuple[Lookahead, ...]
    weights: tuple[float, ...]  # they add up to one

    def __init__(self, *parts: Lookahead, weights: tuple[float, ...] | None = None) -> None:
        if len(parts) < 2 or not all(isinstance(part, Lookahead) for part in parts):
            raise ConfigError(f"parts of Mix must be two lookaheads or more, got {parts!r}")
        given = (1.0,) * len(parts) if weights is None else tuple(weights)
        if len(given) != len(parts) or not all(map(_WEIGHT.allows, given)):
            raise ConfigError(
                f"weights of Mix must be {_WEIGHT.expected} for each of its {len(parts)} parts, got {weights!r}"
            )
        object.__setattr__(self, "parts", parts)
        object.__setattr__(self, "weights", tuple(weight / math.fsum(given) for weight in given))

    def replace(self, **changes: Any) -> Mix:
        """A copy with other parts or weights."""
        parts = changes.pop("parts", self.parts)
        return Mix(*parts, **{"weights": self.weights, **changes})

    @property
    def needs(self) -> frozenset[str]:
        """What any of its parts needs."""
        return frozenset().union(*(part.needs for part in self.parts))

    @property
    def draws(self) -> bool:
        """Whether any of its parts draws."""
        return any(part.draws for part in self.parts)

    def serving(self, offers: frozenset[str]) -> Lookahead:
        return Mix(*(part.serving(offers) for part in self.parts), weights=self.weights)

    def prepare(self, parts: Parts) -> None:
        for part in self.parts:
            part.prepare(parts)

    def place(self, parts: Parts, step: int, remaining: int) -> Hashable:
        return tuple(part.place(parts, step, remaining) for part in self.parts)

    def judge(self, query: Query) -> Answer:
        q: Tensor | None = None
        cost, carried = Cost(), []
        for i, (part, weight) in enumerate(zip(self.parts, self.weights)):
            own = query.carrying(i)
            answer = part.judge(own)
            if own.was_read is not None:
                query.__dict__["read"] = own.read
            odds = weight * answer.q.clamp(1e-6, 1 - 1e-6).logit()
            q = odds if q is None else q + odds
            cost += answer.cost
            carried.append(answer.carried or [None] * len(query.written))
        assert q is not None
        some = any(entry is not None for one in carried for entry in one)
        return Answer(torch.sigmoid(q), cost, list(zip(*carried)) if some else None)

    def pass_on(self, carried: Any, parts: Parts, *, remaining: int) -> Any:
        """Each part passes on its own."""
        return tuple(
            None if own is None else part.pass_on(own, parts, remaining=remaining)
            for part, own in zip(self.parts, carried)
        )
