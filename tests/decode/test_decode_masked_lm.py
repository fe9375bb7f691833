"""Masked LMs of each family, and the lookaheads that they write."""

from __future__ import annotations

import dataclasses
import itertools

import pytest
import tiny
import torch

from scone.conditionals import Conditionals, Head
from scone.config import SconeConfig
from scone.decode import Scone, Verifier
from scone.lookahead import begin, block_at, gibbs, look_ahead, marginals, shift
from scone.output import Timer
from scone.prompts import open_prompts

FAMILIES = ["bert", "distilbert", "roberta", "electra", "modernbert"]


@pytest.mark.parametrize("family", FAMILIES)
def test_split_head_gives_the_models_logits(family: str) -> None:
    model, tok = tiny.masked_lm(family)
    mlm = Conditionals(model, tok)
    batch = tok(["the movie was great", "a day"], return_tensors="pt", padding=True)
    row, col = batch["attention_mask"].nonzero(as_tuple=True)
    hidden = mlm.hidden(batch["input_ids"], batch["attention_mask"].bool(), row, col)
    logits = hidden @ mlm.head.weight.T + (0 if mlm.head.bias is None else mlm.head.bias)
    with torch.no_grad():
        expected = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits[row, col]
    assert torch.allclose(logits, expected, atol=1e-4)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_controls(family: str) -> None:
    masked = tiny.masked_lm(family)
    verifier = Verifier(*tiny.classifier(masked[1]), target="positive")
    config = SconeConfig(taylor_scale=1, min_mass=0, lookahead=5, top_k=4)
    step = Scone(tiny.llama(), masked, verifier, config).next_token("the movie was", max_new_tokens=6)
    assert step.q.isfinite().all() and step.q.std() > 0


def test_unknown_family_works_on_ready_logits(positive: Verifier) -> None:
    """A model without a known cut gives the same draws and q by its whole logits."""
    model, tok = tiny.masked_lm("bert")
    config = SconeConfig(taylor_scale=1, min_mass=0, lookahead=5, top_k=4)
    engine = Scone(tiny.llama(), (model, tok), positive, config)
    expected = {form: engine.with_config(taylor=form).next_token("the movie was").q for form in ("position", "mean")}
    whole = Head(lambda **kw: (model(**kw).logits,), lambda x: x, None, None)
    engine.controller.mlm.head = whole
    for form, q in expected.items():
        assert torch.allclose(engine.with_config(taylor=form).next_token("the movie was").q, q, atol=1e-4)


def start(length: int = 6, rows: int = 3, **options: object):
    mlm = Conditionals(*tiny.masked_lm("bert"))
    texts = ["the movie was", "a nice day it is", "what"][:rows]
    futures = [[mlm.mask_id] * length] * rows
    return mlm, begin(mlm, texts, mlm.encode_batch(texts), futures, torch.arange(rows), **options)


def test_special_tokens_are_never_drawn() -> None:
    mlm, state = start(length=20)
    banned = {mlm.tokenizer.convert_tokens_to_ids(t) for t in [*tiny.BERT_SPECIAL.values(), "[unused0]"]}
    drawn = {
        t
        for step in range(20)
        for future in dataclasses.replace(state, ids=gibbs(mlm, state, SconeConfig(), step=step)[-1].ids).futures()
        for t in future
    }
    assert not drawn & banned and len(drawn) > 50


@pytest.mark.parametrize("schedule", ["systematic", "uniform"])
@pytest.mark.parametrize(("iterations", "thin", "kept"), [(1, None, 1), (20, 5, 4), (5, 2, 3), (4, None, 1)])
def test_kept_states_hold_no_mask_and_fixed_text_stays(
    schedule: str, iterations: int, thin: int | None, kept: int
) -> None:
    mlm, state = start()
    config = SconeConfig(schedule=schedule, iterations=iterations, thin=thin, block=2)
    samples = look_ahead(mlm, state, config, step=0)
    assert len(samples) == kept == config.samples
    for sample in samples:
        assert not (sample.ids == mlm.mask_id).any()
        fixed = state.offset < 0
        assert torch.equal(sample.ids[fixed], state.ids[fixed])
        assert (state.offset[sample.row, sample.col] >= 0).all()


def test_schedules() -> None:
    _, state = start(length=5, rows=1)
    blocks = [block_at(state, SconeConfig(block=2), i, step=0, number=i)[0].nonzero()[:, 0] for i in range(3)]
    first = int((state.offset[0] == 0).nonzero())
    assert [(b - first).tolist() for b in blocks] == [[0, 1], [2, 3], [4]]
    starts = {
        int(block_at(state, SconeConfig(block=2, schedule="uniform"), i, step=0, number=i)[0].nonzero()[0]) - first
        for i in range(60)
    }
    assert starts == {0, 1, 2, 3}  # j ~ U(first, last - B + 1): a block never leaves the future


def test_sweep_and_masked_marginals_agree_for_one_position() -> None:
    mlm, state = start(length=1)
    (sample,) = gibbs(mlm, state, SconeConfig(), step=0)
    masked = marginals(mlm, dataclasses.replace(state, ids=sample.ids), masked=True)
    assert torch.allclose(sample.hidden, masked.hidden, atol=1e-5)
    unmasked = marginals(mlm, dataclasses.replace(state, ids=sample.ids), masked=False)
    assert not torch.allclose(unmasked.hidden, masked.hidden, atol=1e-2)


def test_rows_of_one_seed_share_their_noise() -> None:
    """Coupled candidates: the same conditionals and the same seed give the same draw, other seeds others."""
    mlm = Conditionals(*tiny.masked_lm("bert"))
    text, future = "the movie was", [mlm.mask_id] * 8
    state = begin(mlm, [text] * 3, [mlm.encode(text)] * 3, [future] * 3, torch.tensor([4, 4, 5]))
    one, same, other = dataclasses.replace(state, ids=gibbs(mlm, state, SconeConfig(), step=2)[-1].ids).futures()
    assert one == same != other


def test_context_window_keeps_the_end_of_the_text() -> None:
    _, state = start(context_window=2)
    assert state.texts == ("movie was", "it is", "what")
    assert state.mask.sum(1).tolist() == [2 + 2 + 6, 2 + 2 + 6, 2 + 1 + 6]


def test_empty_future() -> None:
    mlm = Conditionals(*tiny.masked_lm("bert"))
    state = begin(
        mlm, ["the movie", "a day"], mlm.encode_batch(["the movie", "a day"]), [[], [mlm.mask_id]], torch.arange(2)
    )
    (sample,) = look_ahead(mlm, state, SconeConfig(), step=0)
    assert sample.row.tolist() == [1]
    assert dataclasses.replace(state, ids=sample.ids).futures()[0] == []


def test_warm_lookahead_survives(engine: Scone) -> None:
    """What follows a token that was taken is what its lookahead said, shifted, except where it was redrawn."""
    mlm = engine.controller.mlm
    assert shift([1, 2, 3], 4, mlm.mask_id) == [2, 3, mlm.mask_id, mlm.mask_id]
    frozen = engine.with_config(init="warm", block=1, iterations=1, lookahead=4)
    texts = open_prompts(frozen.causal_lm, ["the movie was"], 9, copies=1, seed=0)
    seen = []
    for _ in frozen._run(texts, frozen._writer((), ()), 3, Timer(), True, ()):
        seen.append(texts[0].futures[0])
    for before, after in itertools.pairwise(seen):
        assert after[1 : len(before) - 1] == before[2:][: len(after) - 1]
