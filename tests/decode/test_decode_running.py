"""Texts that join and leave a running batch become what they would be alone."""

from __future__ import annotations

import pytest
import tiny
import torch
from transformers import MistralConfig, MistralForCausalLM

from scone.decode import Scone, SconeConfig
from scone.errors import InputError
from scone.lm import CausalLM
from scone.lookahead import Carried, Draft, Expectation, Gibbs, Masked, Mix, Nothing, Paths
from scone.running import Running

PROMPTS = ["the movie was", "what a day it is ; everyone", "my"]
LENGTHS = [9, 6, 7]
LOOKAHEADS = {
    "default": Mix(Expectation(tokens=3), Nothing()),
    "paths": Paths(tokens=3, count=2),
    "masked": Masked(tokens=3),
    "gibbs": Gibbs(tokens=4, start=Carried(), block=2, iterations=1),
    "draft": Draft(lm=tiny.llama(seed=5), inner=Paths(tokens=2, count=2)),
}


def sliding() -> tuple:
    """An LM whose attention reaches four tokens back."""
    tokenizer = tiny.byte_bpe()
    config = MistralConfig(
        vocab_size=len(tokenizer), sliding_window=4, num_key_value_heads=1, eos_token_id=tokenizer.eos_token_id,
        max_position_embeddings=256, **tiny._SIZES,
    )  # fmt: skip
    return tiny._seeded(lambda: MistralForCausalLM(config), 0), tokenizer


LMS = {"llama": tiny.llama, "gpt2": tiny.gpt2, "sliding": sliding}


def alone(engine, prompt, length):
    return engine.generate(prompt, max_new_tokens=length, seed=4)


def opened(engine, i):
    return engine.open(PROMPTS[i], max_new_tokens=LENGTHS[i], seed=4)


def written(engine, *, join=(0, 2, 3), cancel=None):
    """Each prompt joins at its step; one may be cancelled after a step."""
    batch, texts = Running(engine.loop()), [opened(engine, i)[0] for i in range(3)]
    for step in range(20):
        for i, when in enumerate(join):
            if when == step:
                batch.join([texts[i]], LENGTHS[i])
        if cancel and cancel[1] == step:
            texts[cancel[0]].finish_reason = "cancelled"
        batch.step()
    assert not batch and batch.step() is None
    return texts


def assert_alone(engine, texts, which=range(3)):
    for i in which:
        own = alone(engine, PROMPTS[i], LENGTHS[i])
        assert texts[i].new_ids == own.token_ids[0], i
        assert texts[i].finish_reason == own.finish_reasons[0]


@pytest.mark.parametrize("name", LOOKAHEADS)
def test_texts_that_join_late_become_what_they_are_alone(engine, name):
    own = engine.with_config(SconeConfig(particles=1, min_mass=0, top_k=4, lookahead=LOOKAHEADS[name]))
    assert_alone(own, written(own))


@pytest.mark.parametrize("name", LMS)
def test_with_positions_of_every_kind(positive, name):
    config = SconeConfig(particles=1, min_mass=0, top_k=4, lookahead=LOOKAHEADS["default"])
    own = Scone(LMS[name](), None, positive, config)
    assert_alone(own, written(own, join=(3, 0, 1)))


def test_a_text_that_is_cancelled_leaves_and_the_others_stay(engine):
    own = engine.with_config(SconeConfig(particles=1, min_mass=0, top_k=4, lookahead=LOOKAHEADS["paths"]))
    texts = written(own, cancel=(1, 4))
    assert len(texts[1].new_ids) == 2
    assert_alone(own, texts, which=(0, 2))


def test_those_who_are_equally_far_are_judged_together(engine, monkeypatch):
    """Three texts at different places cost one question a step, until one is near its end."""
    own = engine.with_config(SconeConfig(particles=1, min_mass=0, top_k=4, lookahead=Expectation(tokens=2)))
    asked, judge = [], Expectation.judge
    monkeypatch.setattr(
        Expectation, "judge", lambda self, query: (asked.append(len(query.written)), judge(self, query))[1]
    )
    batch, texts = Running(own.loop()), [opened(own, i)[0] for i in range(3)]
    for i, text in enumerate(texts):
        batch.join([text], LENGTHS[i])
        batch.step()
    assert max(asked) > 8 and len(asked) == 3


def test_room_of_texts_that_have_gone_is_given_back(engine):
    lm = CausalLM(*tiny.llama())
    short, long = lm.encode("the"), lm.encode("the movie was a great film")
    state = lm.prefill([long, short])
    assert lm.narrow(state) is state
    alone = lm.narrow(lm.select(state, torch.tensor([1])))
    assert alone.mask.shape == (1, len(short)) and alone.cache.get_seq_length() == len(short)
    torch.testing.assert_close(
        lm.step(alone, torch.tensor([5])).logits, lm.prefill([[*short, 5]]).logits, atol=1e-4, rtol=1e-4
    )
    batch = Running(engine.loop())
    batch.join(engine.open("the movie was a great film", max_new_tokens=2, seed=0), 2)
    batch.join(engine.open("the", max_new_tokens=6, seed=0), 6)
    widths = [taken.state.mask.shape[1] for taken in iter(batch.step, None)]
    assert widths[0] == widths[1] - 1 and widths[2] < widths[1]


def test_particles_are_refused(engine):
    own = engine.with_config(particles=2)
    loop = own.loop(texts=own.open("the", max_new_tokens=2, seed=0))
    with pytest.raises(InputError, match="particles must be 1 in a running batch, got 2"):
        Running(loop)
