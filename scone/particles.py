"""A few texts written side by side for each that is asked for: weighed as they grow, resampled, and one of them kept.

q is their twist. Where one is to be drawn (`keep="sample"`) a particle's weight corrects what steering has done to it, so
that the particles stand for the LM's own texts that satisfy the verifier, whatever the strength they are written with:

    W_t = W_{t-1} · p(y_t) q(y_t) / (p*(y_t) q_{t-1}),        at the end q is φ

Where the best is kept (`keep="best"`) nothing is to be corrected, and the weight is the odds of q, which still tell particles
apart where all of them are likely to end well.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from scone.seeds import derive
from scone.text import Text

if TYPE_CHECKING:
    from scone.loop import Decision

__all__ = ["CHECKPOINT", "Particle", "Population", "systematic"]

CHECKPOINT = 8
"""Tokens after which a stream of particles chooses what it shows."""

_LEAST = 1e-12  # what q and φ are taken to be at least, so that weights stay finite


@dataclass
class Particle(Text):
    """A text with its weight.

    >>> Particle("One two", prompt_ids=[3, 4], seed=0).log_weight
    0.0
    """

    log_weight: float = 0.0
    log_q: float = 0.0  # the twist: log q of the text so far, 0 before the first step

    def become(self, other: Particle) -> None:
        """Go on from where another particle is; noise stays one's own."""
        self.new_ids, self.continuation, self.finish_reason = (
            list(other.new_ids),
            other.continuation,
            other.finish_reason,
        )
        self.carried, self.q, self.rested, self.log_q = other.carried, other.q, other.rested, other.log_q
        self.trace = [*other.trace[:-1], *(replace(step, resampled=True) for step in other.trace[-1:])]


@dataclass
class Population:
    """The particles of some texts, `count` each, side by side.

    >>> texts = [Text("One", [3], seed) for seed in (1, 2)]
    >>> population = Population.of(texts, count=3, keep="best", share=0.5)
    >>> len(population.particles), [len(group) for group in population.groups]
    (6, [3, 3])
    """

    groups: list[list[Particle]]
    keep: str  # "best" or "sample"
    share: float  # resample where the effective number falls below this share of a group
    log_evidence: list[float] = field(default_factory=list)  # of each group, as far as it has been resampled
    moves: dict[int, Particle] = field(default_factory=dict)  # by `id`, what particles went on from since the last step

    @classmethod
    def of(cls, texts: Sequence[Text], *, count: int, keep: str, share: float) -> Population:
        """Particles for texts that nothing has been added to; the first of each has the text's own seed."""
        groups = [
            [_particle(text, derive(text.seed, "particle", i) if i else text.seed) for i in range(count)]
            for text in texts
        ]
        return cls(groups, keep, share, [0.0] * len(groups))

    @contextmanager
    def part(self, groups: slice) -> Iterator[Population]:
        """A population of some of the groups alone: what it does to them is done here."""
        alone = Population(self.groups[groups], self.keep, self.share, self.log_evidence[groups])
        yield alone
        self.log_evidence[groups] = alone.log_evidence

    @property
    def particles(self) -> list[Particle]:
        """All of them, group by group."""
        return [particle for group in self.groups for particle in group]

    def _twist(self, q: Tensor) -> Tensor:
        """What weights are made of: log q, or its log-odds where the best is kept."""
        return q.clamp(min=_LEAST).log() if self.keep == "sample" else q.clamp(_LEAST, 1 - 1e-6).logit()

    def weigh(self, living: Sequence[Text], decision: Decision, chosen: Sequence[int]) -> None:
        """Enter a step of the particles that live."""
        found = torch.tensor(list(chosen))[:, None]
        candidates, q = decision.candidates, self._twist(decision.q)
        log_p = candidates.log_p.log_softmax(-1).gather(1, found)[:, 0].tolist()
        log_p_star = decision.log_p_star.gather(1, found)[:, 0].tolist()
        log_q, judged = q.gather(1, found)[:, 0].tolist(), decision.judged.seen.tolist()
        for particle, p, p_star, own, is_judged in zip(living, log_p, log_p_star, log_q, judged):
            assert isinstance(particle, Particle)
            if not is_judged:  # the choice was settled: the LM's own distribution, and nothing new about q
                own, p_star = particle.log_q, p
            correction = p - p_star if self.keep == "sample" else 0.0
            particle.log_weight += own - particle.log_q + correction
            particle.log_q = own

    def resample(self, step: int) -> None:
        """Resample the groups that need it."""
        for g, group in enumerate(self.groups):
            weights = torch.tensor([particle.log_weight for particle in group], dtype=torch.float64).softmax(0)
            if 1 / float((weights**2).sum()) >= self.share * len(group):
                continue
            if all(particle.finish_reason is not None for particle in group):
                continue
            self.redraw(g, systematic(weights, derive(group[0].seed, "resample", step)))

    def redraw(self, g: int, parents: Sequence[int]) -> None:
        """Let the particles of a group go on from these; their weights become the group's mean."""
        group = self.groups[g]
        weights = torch.tensor([particle.log_weight for particle in group], dtype=torch.float64)
        mean = float(weights.logsumexp(0)) - math.log(len(group))
        self.log_evidence[g] += mean
        taken = [replace(group[i]) for i in parents]
        for i, (particle, parent) in enumerate(zip(group, parents)):
            if parent != i:
                self.moves[id(particle)] = self.moves.get(id(group[parent]), group[parent])
                particle.become(taken[i])
            particle.log_weight = 0.0

    def settle(self) -> Particle:
        """Choose for the one text that there is: all its particles go on from the one that is kept."""
        (kept,) = self.kept()
        self.redraw(0, [kept] * len(self.particles))
        return self.particles[kept]

    def finish(self, phi: Tensor) -> None:
        """Enter φ of the finished texts: (particles,), in their order."""
        for particle, value in zip(self.particles, self._twist(phi).tolist()):
            particle.log_weight += value - particle.log_q
            particle.log_q = value

    def kept(self) -> list[int]:
        """The particle of each group that is kept, as places in `particles`: the best by q, or one drawn by weight."""
        chosen, size = [], len(self.groups[0]) if self.groups else 0
        for g, group in enumerate(self.groups):
            if self.keep == "best":
                own = max(range(size), key=lambda i: (group[i].log_q, -i))
            else:
                weights = torch.tensor([particle.log_weight for particle in group], dtype=torch.float64).softmax(0)
                (own,) = systematic(weights, derive(group[0].seed, "keep"), count=1)
            chosen.append(g * size + own)
        return chosen

    def evidence(self) -> list[float] | None:
        """For each group the log of an unbiased estimate of E[φ] under the LM, once φ is entered; None for the best."""
        if self.keep == "best":
            return None
        found = []
        for log_before, group in zip(self.log_evidence, self.groups):
            weights = torch.tensor([particle.log_weight for particle in group], dtype=torch.float64)
            found.append(log_before + float(weights.logsumexp(0)) - math.log(len(group)))
        return found


def systematic(weights: Tensor, seed: int, *, count: int | None = None) -> list[int]:
    """Places drawn in proportion to weights (n,), evenly spaced from one random number; a place that may stay, stays.

    >>> systematic(torch.tensor([0.5, 0.0, 0.5, 0.0]), seed=3)
    [0, 0, 2, 2]
    """
    n = len(weights) if count is None else count
    offset = (seed % (1 << 53)) / (1 << 53)
    points = (torch.arange(n, dtype=torch.float64) + offset) / n
    edges = (weights.double() / weights.sum()).cumsum(0)
    drawn = torch.searchsorted(edges, points, right=True).clamp(max=len(weights) - 1).tolist()
    if count is not None:
        return drawn
    order: list[int | None] = [None] * n
    spare = []
    for place in drawn:
        if order[place] is None:
            order[place] = place
        else:
            spare.append(place)
    return [place if place is not None else spare.pop(0) for place in order]


def _particle(text: Text, seed: int) -> Particle:
    return Particle(text.context, text.prompt_ids, seed, after=text.after, verifier=text.verifier)
