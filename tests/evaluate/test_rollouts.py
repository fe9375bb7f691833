"""Rollouts: drawn from the truncated distribution, stored once, scored by any verifier."""

import numpy as np
import pytest
import torch
from scipy import stats

from scone.evaluate import rollouts as store
from scone.evaluate.sampling import PAD, continue_batch, encode, end_tokens, truncated

PROMPTS = ["the film was", "the food is very"]


def share_of_good(texts):
    return np.array([text.split().count("good") / len(text.split()) for text in texts])


def collect(lm, tokenizer, folder, **options):
    return store.collect(
        lm, tokenizer, PROMPTS, folder, rollouts=6, length=8, top_k=4, say=lambda line: None, **options
    )


def test_draws_follow_the_truncated_distribution(lm, tokenizer):
    prefix = encode(tokenizer, "the film was")
    tokens = continue_batch(lm, prefix, None, 8000, 1, ends=frozenset(), top_k=4, seed=1)[:, 0]
    candidates, log_p = truncated(lm(input_ids=prefix[None]).logits[:, -1], 4)
    counts = [(tokens == candidate).sum().item() for candidate in candidates[0]]
    assert sum(counts) == 8000
    assert stats.chisquare(counts, 8000 * log_p[0].detach().double().exp().numpy()).pvalue > 1e-3


def test_the_cache_gives_what_a_full_forward_gives(lm, tokenizer):
    """The second token of a greedy rollout is the likeliest after prefix + first."""
    prefix, first = encode(tokenizer, "the film was"), torch.tensor([3, 7])
    tokens = continue_batch(lm, prefix, first, 2, 3, ends=frozenset(), top_k=1, seed=0)
    for row in tokens:
        for position in (1, 2):
            text = torch.cat([prefix, row[:position]])
            assert row[position] == lm(input_ids=text[None]).logits[0, -1].argmax()


def test_after_an_end_token_nothing_follows(lm, tokenizer):
    first = torch.tensor([0, 3])
    ends = end_tokens(lm, tokenizer)
    tokens = continue_batch(lm, encode(tokenizer, "the film"), first, 2, 5, ends=ends, top_k=3, seed=0)
    assert tokens[0].tolist() == [0, PAD, PAD, PAD, PAD]
    assert tokens[1, 0] == 3


def test_stored_once_and_read_back(lm, tokenizer, tmp_path):
    drawn = collect(lm, tokenizer, tmp_path)
    assert [r.step.place for r in drawn] == ["start", "middle", "end"] * 2
    assert drawn[0].tokens.shape == (4, 6, 8) and drawn[0].step.prefix == PROMPTS[0]
    assert (drawn[0].tokens[:, :, 0] == np.array(drawn[0].step.candidates)[:, None]).all()
    times = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    again = collect(lm, tokenizer, tmp_path)
    assert times == {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    for one, other, read in zip(drawn, again, store.load_rollouts(tmp_path)):
        assert one.step == other.step == read.step
        np.testing.assert_array_equal(one.tokens, read.tokens)


def test_goes_on_where_it_was_killed(lm, tokenizer, tmp_path):
    whole = collect(lm, tokenizer, tmp_path / "whole")

    class Killed(Exception):
        pass

    def say(line):
        raise Killed

    with pytest.raises(Killed):
        store.collect(lm, tokenizer, PROMPTS, tmp_path / "cut", rollouts=6, length=8, top_k=4, say=say)
    assert len(list((tmp_path / "cut").iterdir())) == 1
    for one, other in zip(whole, collect(lm, tokenizer, tmp_path / "cut")):
        np.testing.assert_array_equal(one.tokens, other.tokens)


def test_scores_are_kept_for_each_verifier(lm, tokenizer, tmp_path):
    drawn = collect(lm, tokenizer, tmp_path)
    calls = []

    def score(texts):
        calls.append(len(texts))
        return share_of_good(texts)

    first = store.score_rollouts(drawn, tokenizer, score, "good", say=lambda line: None)
    assert first[0].shape == (4, 6) and len(calls) == 6
    text = drawn[0].texts(tokenizer)[7]  # candidate 1, rollout 1
    assert text.startswith(PROMPTS[0]) and first[0][1, 1] == pytest.approx(share_of_good([text])[0])
    store.score_rollouts(drawn, tokenizer, score, "good", say=lambda line: None)
    assert len(calls) == 6
    store.score_rollouts(drawn, tokenizer, score, "other", say=lambda line: None)
    assert len(calls) == 12
    assert len(store.load_rollouts(tmp_path)) == 6
