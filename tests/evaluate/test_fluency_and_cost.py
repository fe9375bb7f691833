"""Perplexity against a plain loop; counters and memory against known work."""

import numpy as np
import pytest
import torch

from scone.evaluate.cost import count_sequences, measure
from scone.evaluate.fluency import negative_log_likelihood


def test_nll_is_that_of_the_continuation_alone(lm):
    prompt, continuations = "the film was", [" good", " very bad and dull", " nice"]
    nll, tokens = negative_log_likelihood(lm, prompt, continuations, batch=2)
    assert tokens.tolist() == [1, 4, 1]
    for total, continuation in zip(nll, continuations):
        ids = lm.encode(prompt + continuation)
        expected = 0.0
        for i in range(3, len(ids)):
            with torch.inference_mode():
                log_p = lm.model(input_ids=torch.tensor([ids[:i]])).logits[0, -1].log_softmax(0)
            expected -= log_p[ids[i]].item()
        assert total == pytest.approx(expected, rel=1e-4)


def test_sequences_are_counted_through_the_base_model(lm):
    ids = torch.zeros(3, 2, dtype=torch.int64)
    with count_sequences(lm=lm.model) as counts:
        lm.model(input_ids=ids)
        lm.model.base_model(input_ids=ids[:1])
    lm.model(input_ids=ids)
    assert counts == {"lm": 4}


def test_peak_memory_sees_what_was_freed_again():
    with measure(every=0.001) as cost:
        block = np.ones(20_000_000)
        for _ in range(3):
            block *= 2
        del block
    assert cost.peak_bytes > 100_000_000
    assert cost.seconds > 0
