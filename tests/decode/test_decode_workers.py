"""Chains on shared state: more than one worker, and stale conditionals."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest
import tiny
import torch

from scone.decode import Scone
from scone.lm import MaskedLM
from scone.lookahead import Gibbs, Masks
from scone.lookahead.chains import begin


@pytest.mark.parametrize(("workers", "sync_every"), [(2, 1), (1, 3), (3, 2)])
def test_workers_fill_the_future_and_leave_the_rest(workers: int, sync_every: int) -> None:
    mlm = MaskedLM(*tiny.masked_lm("bert"))
    texts = ["the movie was", "a nice day it is"]
    state = begin(mlm, texts, mlm.encode_batch(texts), [[mlm.mask_id] * 7] * 2, torch.arange(2))
    start = Masks(warmup=0)
    gibbs = Gibbs(start=start, workers=workers, sync_every=sync_every, block=2, iterations=6, thin=3)
    samples, _ = gibbs._run(SimpleNamespace(masked_lm=mlm), state, 1)
    assert len(samples) == gibbs.samples == 2
    for sample in samples:
        fixed = state.offset < 0
        assert torch.equal(sample.ids[fixed], state.ids[fixed])
        assert not (sample.ids == mlm.mask_id).any()
        assert mlm.keep[sample.ids[~fixed]].all()
    assert len(samples[-1].row) == 14  # every position has a conditional


def changed(engine: Scone, **options: object) -> Scone:
    return engine.with_config(lookahead=engine.config.lookahead.replace(**options))


def test_one_worker_with_stale_conditionals_repeats(engine: Scone) -> None:
    stale = changed(engine, sync_every=2, iterations=4, block=1)
    first, second = (stale.next_token("the movie was", seed=2).q for _ in range(2))
    assert torch.equal(first, second)
    assert not torch.equal(first, changed(engine, iterations=4, block=1).next_token("the movie was", seed=2).q)


def test_engine_with_workers(engine: Scone, monkeypatch: pytest.MonkeyPatch) -> None:
    names: set[str] = set()
    hidden = MaskedLM.hidden
    watch = lambda *args: (names.add(threading.current_thread().name), hidden(*args))[1]  # noqa: E731
    monkeypatch.setattr(MaskedLM, "hidden", watch)
    out = changed(engine, workers=2, iterations=4).generate(["the movie was", "a nice day"], max_new_tokens=3)
    assert out.scores.isfinite().all() and all(step.q.isfinite().all() for step in out.trace[0])
    assert len([name for name in names if name.startswith("gibbs")]) >= 2
