"""Chains on shared state: more than one worker, and stale conditionals."""

from __future__ import annotations

import pytest
import tiny
import torch

from scone.conditionals import Conditionals
from scone.config import SconeConfig
from scone.decode import Scone
from scone.lookahead import begin, look_ahead


@pytest.mark.parametrize(("workers", "sync_every"), [(2, 1), (1, 3), (3, 2)])
def test_workers_fill_the_future_and_leave_the_rest(workers: int, sync_every: int) -> None:
    mlm = Conditionals(*tiny.masked_lm("bert"))
    texts = ["the movie was", "a nice day it is"]
    state = begin(mlm, texts, mlm.encode_batch(texts), [[mlm.mask_id] * 7] * 2, torch.arange(2))
    config = SconeConfig(workers=workers, sync_every=sync_every, block=2, iterations=6, thin=3, warmup=0, chains=1)
    samples = look_ahead(mlm, state, config, step=1)
    assert len(samples) == config.samples == 2
    for sample in samples:
        fixed = state.offset < 0
        assert torch.equal(sample.ids[fixed], state.ids[fixed])
        assert not (sample.ids == mlm.mask_id).any()
        assert mlm.keep[sample.ids[~fixed]].all()
    assert len(samples[-1].row) == 14  # every position has a conditional


def test_one_worker_with_stale_conditionals_repeats(engine: Scone) -> None:
    stale = engine.with_config(sync_every=2, iterations=4, block=1)
    first, second = (stale.next_token("the movie was", seed=2).q for _ in range(2))
    assert torch.equal(first, second)


def test_engine_with_workers(engine: Scone) -> None:
    out = engine.with_config(workers=2, iterations=4).generate(["the movie was", "a nice day"], max_new_tokens=3)
    assert out.scores.isfinite().all() and all(step.q.isfinite().all() for step in out.trace[0])
