"""Rollouts: drawn from the truncated distribution, stored once, scored by any verifier."""

import numpy as np
import pytest
import torch
from scipy import stats
from transformers import MinPLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from scone.evaluate import continuations
from scone.evaluate import rollouts as store
from scone.evaluate.continuations import PAD, continue_batch, truncated

PROMPTS = ["the film was", "the food is very"]


def share_of_good(texts):
    return np.array([text.split().count("good") / len(text.split()) for text in texts])


def collect(lm, folder, **options):
    return store.collect(lm, PROMPTS, folder, rollouts=6, length=8, top_k=4, say=lambda line: None, **options)


@pytest.mark.parametrize(("top_k", "top_p", "min_p"), [(50, 0.9, 0.1), (5, 0.5, 0.0), (40, 1.0, 0.3), (3, 0.01, 0.0)])
def test_truncation_is_that_of_transformers(top_k, top_p, min_p):
    logits = 2 * torch.randn(20, 200, generator=torch.Generator().manual_seed(1))
    warped = TopKLogitsWarper(top_k)(None, logits)
    warped = TopPLogitsWarper(top_p)(None, warped)
    warped = MinPLogitsWarper(min_p)(None, warped)
    tokens, log_p = truncated(logits, top_k, top_p=top_p, min_p=min_p)
    found = torch.full_like(logits, -torch.inf).scatter(1, tokens, log_p)
    assert torch.equal(found.isneginf(), warped.isneginf())
    torch.testing.assert_close(found, warped.log_softmax(-1))


def test_many_rows_are_drawn_in_parts(lm, monkeypatch):
    monkeypatch.setattr(continuations, "ROWS_AT_ONCE", 3)
    prefix = lm.encode("the film")
    drawn = continue_batch(lm, prefix, 8, 4, top_k=5, seed=1)
    assert drawn.shape == (8, 4) and len({tuple(row) for row in drawn.tolist()}) > 3
    assert torch.equal(drawn[:3], continue_batch(lm, prefix, 3, 4, top_k=5, seed=1))


def test_draws_follow_the_truncated_distribution(lm):
    prefix = lm.encode("the film was")
    tokens = continue_batch(lm, prefix, 8000, 1, top_k=4, seed=1)[:, 0]
    candidates, log_p = truncated(lm.prefill([prefix]).logits, 4)
    counts = [(tokens == candidate).sum().item() for candidate in candidates[0]]
    assert sum(counts) == 8000
    assert stats.chisquare(counts, 8000 * log_p[0].double().softmax(0).numpy()).pvalue > 1e-3


def test_the_cache_gives_what_a_full_forward_gives(lm):
    """With k = 1 every token is the likeliest after all that stands before it."""
    prefix = lm.encode("the film was")
    tokens = continue_batch(lm, prefix, 2, 4, top_k=1, seed=0, first=7)
    for row in tokens.tolist():
        assert row[0] == 7
        for position in (1, 2, 3):
            text = torch.tensor([[*prefix, *row[:position]]])
            assert row[position] == lm.model(input_ids=text).logits[0, -1].argmax()


def test_after_an_end_token_nothing_follows(lm):
    tokens = continue_batch(lm, lm.encode("the film"), 2, 5, top_k=3, seed=0, first=0)
    assert tokens.tolist() == [[0, PAD, PAD, PAD, PAD]] * 2


def test_stored_once_and_read_back(lm, tmp_path):
    drawn = collect(lm, tmp_path)
    assert [r.step.place for r in drawn] == ["start", "early", "middle", "end"] * 2
    assert drawn[0].tokens.shape == (4, 6, 8) and drawn[0].step.prefix == PROMPTS[0]
    assert (drawn[0].tokens[:, :, 0] == np.array(drawn[0].step.candidates)[:, None]).all()
    times = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    again = collect(lm, tmp_path)
    assert times == {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    for one, other, read in zip(drawn, again, store.load_rollouts(tmp_path)):
        assert one.step == other.step == read.step
        np.testing.assert_array_equal(one.tokens, read.tokens)


def test_goes_on_where_it_was_killed(lm, tmp_path):
    whole = collect(lm, tmp_path / "whole")

    class Killed(Exception):
        pass

    def say(line):
        raise Killed

    with pytest.raises(Killed):
        store.collect(lm, PROMPTS, tmp_path / "cut", rollouts=6, length=8, top_k=4, say=say)
    assert len(list((tmp_path / "cut").iterdir())) == 1
    for one, other in zip(whole, collect(lm, tmp_path / "cut")):
        np.testing.assert_array_equal(one.tokens, other.tokens)


def test_scores_are_kept_for_each_verifier(lm, tmp_path):
    drawn = collect(lm, tmp_path)
    calls = []

    def score(step, texts):
        assert texts[0].startswith(step.prompt)
        calls.append(len(texts))
        return share_of_good(texts)

    first = store.score_rollouts(drawn, lm, score, "good", say=lambda line: None)
    assert first[0].shape == (4, 6) and len(calls) == 8
    text = drawn[0].texts(lm)[7]  # candidate 1, rollout 1
    assert text.startswith(PROMPTS[0]) and first[0][1, 1] == pytest.approx(share_of_good([text])[0])
    store.score_rollouts(drawn, lm, score, "good", say=lambda line: None)
    assert len(calls) == 8
    store.score_rollouts(drawn, lm, score, "other", say=lambda line: None)
    assert len(calls) == 16
    assert len(store.load_rollouts(tmp_path)) == 8
