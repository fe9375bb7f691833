"""The paper's lookahead: block Gibbs chains of a masked LM, and the verifier expanded about what they draw."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from scone.errors import ConfigError
from scone.lookahead.base import Answer, Lookahead, Query
from scone.lookahead.chains import Chains, Memory, Sample, begin, draw_masks, run_chains, shift
from scone.lookahead.parts import ANYWHERE, EMBEDDINGS, GRADIENTS, LM_STATES, MASKED_LM, Parts
from scone.lookahead.paths import path_seeds
from scone.lookahead.start import Masks, Rollout, Start
from scone.lookahead.taylor import AtSample, Estimate, Taylor
from scone.options import choice, flag, integer, number, one_of, option
from scone.output import Cost
from scone.seeds import UPDATES

__all__ = ["Gibbs"]


@dataclass(frozen=True)
class Gibbs(Lookahead):
    """Futures that a masked LM redraws block by block; q is the mean of what `estimate` says of the states kept.

    >>> Gibbs(chains=2, iterations=20, thin=5).samples
    8
    >>> Gibbs(iterations=5000)
    Traceback (most recent call last):
    scone.errors.ConfigError: iterations must leave a step at most 4096 updates, warm-up and kept states included, got 5001
    """

    tokens: int = option(25, integer(1), "tokens of the masked LM to look ahead")
    start: Start = option(Rollout(), one_of(Start), "where the chains begin")
    schedule: str = option("systematic", choice("systematic", "uniform"), "blocks in turn, or at random")
    block: int = option(6, integer(1), "tokens redrawn at once")
    iterations: int = option(1, integer(0), "updates of each chain")
    thin: int | None = option(None, integer(1, optional=True), "keep every n-th state of a chain; none: only the last")
    chains: int = option(1, integer(1), "chains of each candidate")
    workers: int = option(1, integer(1), "threads that share the chains without waiting for each other (Hogwild)")
    sync_every: int = option(1, integer(1), "blocks of a chain that are drawn from one reading of it")
    temperature: float = option(1.0, number(0, above=True), "of the masked LM")
    coupled: bool = option(
        True, flag(), "candidates share their random numbers, so that noise does not tell them apart"
    )
    estimate: Estimate = option(Taylor(), one_of(Estimate), "what is asked of the verifier")

    def __post_init__(self) -> None:
        super().__post_init__()
        most = self._warmup + self.iterations + self._kept
        if most > UPDATES:
            raise ConfigError(
                f"iterations must leave a step at most {UPDATES} updates, warm-up and kept states included, got {most}"
            )

    @property
    def needs(self) -> frozenset[str]:
        """A masked LM, and what its start and its estimate need."""
        return frozenset({MASKED_LM}) | self.start.needs | self.estimate.needs

    @property
    def samples(self) -> int:
        """States that are kept, of all chains of a candidate."""
        return self.chains * self._kept

    @property
    def _kept(self) -> int:
        return 1 if self.thin is None or not self.iterations else -(-self.iterations // self.thin)

    @property
    def _warmup(self) -> int:
        return self.start.warmup

    def place(self, parts: Parts, step: int, remaining: int) -> Hashable:
        return step, self._length(parts, remaining)

    def judge(self, query: Query) -> Answer:
        parts, n = query.parts, len(query.written)
        with query.timer("look ahead"):
            chains, cost = self._begin(query)
            kept, read = self._run(parts, chains, query.step)
        estimates = []
        for sample in kept:
            with query.timer("estimate"):
                estimates.append(self.estimate.of(query, chains, sample, self.temperature))  # (terms, rows)
        query.show(self, lambda: self._read(parts, chains, kept))
        q = torch.stack(estimates).mean(0).unflatten(1, (-1, self.chains)).mean(-1)
        carried = None
        if self.start.carries:
            last = chains.with_ids(kept[-1].ids).futures()
            carried = [last[i * self.chains : (i + 1) * self.chains] for i in range(n)]
        cost += Cost(
            masked_lm_rows=read + len(kept) * self.estimate.rows_read(chains),
            verifier_rows=self.chains * len(kept) * query.asked,
        )
        return Answer(q, cost, carried)

    def pass_on(self, carried: Any, parts: Parts, *, remaining: int) -> Any:
        """The chains one token on, [MASK] where they end."""
        length = self._length(parts, remaining)
        return [shift(future, length, parts.masked_lm.mask_id) for future in carried]

    def instead(self, missing: frozenset[str]) -> Lookahead | None:
        """Without embeddings or gradients the chains as drawn; where the LM cannot be run, chains from [MASK]."""
        if missing & {EMBEDDINGS, ANYWHERE, GRADIENTS}:
            return self.replace(estimate=AtSample())
        return self.replace(start=Masks()) if missing == {LM_STATES} else None

    def _read(self, parts: Parts, chains: Chains, kept: Sequence[Sample]) -> list[str]:
        """What the states that are kept read as, those of a candidate side by side."""
        each = [[parts.surfaces.write(future)[0] for future in chains.with_ids(s.ids).futures()] for s in kept]
        return [text for of_one in zip(*each) for text in of_one]

    def _length(self, parts: Parts, remaining: int) -> int:
        return min(self.tokens, max(1, round(remaining * parts.density)) if remaining > 0 else 0)

    def _begin(self, query: Query) -> tuple[Chains, Cost]:
        length = self._length(query.parts, query.remaining)
        seed = path_seeds(query, self.chains, coupled=self.coupled)
        texts, fixed, futures, cost = self.start.begin(query, seed, self.chains, length)
        return begin(query.parts.masked_lm, texts, fixed, futures, seed), cost

    def _run(self, parts: Parts, chains: Chains, step: int) -> tuple[list[Sample], int]:
        """The states that are kept, and how many rows the masked LM has read.

        No state holds a [MASK], and each has the conditionals of its positions' last draws.
        """
        mlm, memory = parts.masked_lm, Memory(chains)
        samples: list[Sample] = []
        chains, read = self._warm(parts, chains, step)
        ids, done = chains.ids, 0
        for count in self._stretches():
            if count:
                ids = self._updates(parts, chains.with_ids(ids), memory, step, first=self._warmup + done, count=count)
            done += count
            number = self._warmup + self.iterations + len(samples)
            ids = draw_masks(mlm, chains, ids, memory, temperature=self.temperature, step=step, number=number)
            samples.append(memory.sample(ids))
        return samples, read + memory.rows_read

    def _stretches(self) -> list[int]:
        """How many updates lie before each state that is kept."""
        thin = self.thin or self.iterations
        whole, rest = divmod(self.iterations, thin) if thin else (0, 0)
        return [thin] * whole + [rest] * bool(rest) or [0]

    def _warm(self, parts: Parts, chains: Chains, step: int) -> tuple[Chains, int]:
        """Rows that start from nothing but [MASK] first get updates of their own; and how many rows were read for it."""
        future, mask_id = chains.offset >= 0, parts.masked_lm.mask_id
        cold = (((chains.ids == mask_id) | ~future).all(1) & future.any(1)).nonzero()[:, 0]
        if not self._warmup or not len(cold):
            return chains, 0
        rows = chains.rows(cold)
        memory = Memory(rows)
        warmed = self._updates(parts, rows, memory, step, first=0, count=self._warmup)
        return chains.with_ids(chains.ids.index_copy(0, cold, warmed)), memory.rows_read

    def _updates(self, parts: Parts, chains: Chains, memory: Memory, step: int, *, first: int, count: int) -> Tensor:
        return run_chains(
            parts.masked_lm, chains, memory, block=self.block, iterations=count, schedule=self.schedule,
            workers=self.workers, sync_every=self.sync_every, temperature=self.temperature, step=step, first=first,
        )  # fmt: skip
