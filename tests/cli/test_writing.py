"""From what was asked for to an engine: labels, wanted or not, strengths, and which models are loaded. Real verifiers."""

from __future__ import annotations

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import scone.loading
from scone.cli.attributes import Attribute
from scone.cli.writing import Models, Written
from scone.config import SconeConfig
from scone.lookahead import Masked

TOXIC, KIND = "You are a stupid idiot and nobody likes you.", "Thank you for the friendly letter."


@pytest.fixture
def loaded(monkeypatch):
    """What was loaded, in order; the LM is a tiny one with the masked LM's tokenizer."""
    log = []
    masked, classifier = scone.loading.load_masked_lm, scone.loading.load_classifier

    def load_lm(name, **options):
        log.append(("lm", name))
        tokenizer = classifier("embedded:sentiment")[1]
        size = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
        return LlamaForCausalLM(LlamaConfig(vocab_size=len(tokenizer), **size)), tokenizer

    def load_masked(name, **options):
        log.append(("masked lm", name))
        return masked(name, **options)

    monkeypatch.setattr(scone.loading, "load_causal_lm", load_lm)
    monkeypatch.setattr(scone.loading, "load_masked_lm", load_masked)
    return log


def wishes(*texts, avoid=()):
    return [*map(Attribute.parse, texts), *(Attribute.parse(text, avoid=True) for text in avoid)]


def test_strengths_reach_the_verifiers_terms(loaded):
    writer = Models("a", "embedded").writer(wishes("positive=3", avoid=["toxic"]), SconeConfig(strength=5))
    assert [term.strength for term in writer.engine.verifier.terms] == [3.0, 5.0]
    assert writer.engine.config.strength == 1.0  # else they would count twice


def test_what_is_to_be_avoided_is_steered_away_from(loaded):
    wanted = Models("a", "embedded").writer(wishes("toxic"), SconeConfig())
    unwanted = Models("a", "embedded").writer(wishes(avoid=["toxic"]), SconeConfig())
    towards, away = (writer.engine.verifier.score([TOXIC, KIND]) for writer in (wanted, unwanted))
    assert towards[0] > 0.9 > 0.1 > towards[1]
    torch.testing.assert_close(away, 1 - towards)


def test_other_options_are_kept(loaded):
    config = SconeConfig(top_k=4, lookahead=Masked(tokens=2))
    assert Models("a", "embedded").writer(wishes("positive"), config).engine.config == config.replace(strength=1.0)


def test_the_masked_lm_is_loaded_once_and_only_where_one_is_needed(loaded):
    models = Models("a", "embedded")
    models.writer(wishes("positive"), SconeConfig())
    assert loaded == [("lm", "a")]
    for _ in range(2):
        models.writer(wishes("positive"), SconeConfig(lookahead=Masked()))
    assert loaded == [("lm", "a"), ("masked lm", "embedded")]


def test_likelihood_is_that_of_the_continuation_under_the_language_model(loaded):
    writer = Models("a", "embedded").writer(wishes("positive"), SconeConfig())
    (text,) = writer.write("plain", ["the film was"], max_new_tokens=3)
    (judged,) = writer.judge([text])
    lm = writer.engine.parts.lm
    ids = torch.tensor([lm.tokenizer(text.text)["input_ids"]])
    with torch.inference_mode():
        log_p = lm.model(ids).logits[0].log_softmax(-1)
    end = ids.shape[1] - 1  # of the text: [SEP] follows
    expected = -sum(float(log_p[i - 1, ids[0, i]]) for i in range(end - judged.nll_tokens, end))
    assert judged.nll == pytest.approx(expected, rel=1e-4)
    assert 0 <= judged.independent["positive"] <= 1


def test_the_independent_judge_is_turned_round_too(loaded):
    writer = Models("a", "embedded").writer(wishes("positive", avoid=["toxic"]), SconeConfig())
    texts = [Written("", text, "plain", 0, 3, 1.0) for text in (TOXIC, KIND)]
    toxic, kind = (text.independent for text in writer.judge(texts))
    assert toxic["not toxic"] < 0.5 < kind["not toxic"] and toxic["positive"] < 0.5 < kind["positive"]


@pytest.mark.parametrize(
    ("options", "shown"),
    [
        ({}, "The film bad"),
        ({"verdict": "continuation"}, " bad"),
        ({"after": "bad"}, "The film"),
        ({"after": "no"}, ""),
    ],
)
def test_scores_are_of_what_is_judged(loaded, options, shown):
    """By the verifier that steers and by the independent judge; nothing that came is satisfied by nothing."""
    writer = Models("a", "embedded").writer(wishes("positive"), SconeConfig(particles=1, **options))
    (own,) = writer._scores(["The film"], [" bad"])["positive"]
    expected = float(writer.verifiers[0].score(shown)) if shown else 0.0
    assert own == pytest.approx(expected, abs=1e-6)
    if shown:
        text = Written("The film", " bad", "plain", 0, 1, 0.0)
        (judged,) = writer.judge([text])
        (judge,) = writer.judges.values()
        assert judged.independent["positive"] == pytest.approx(float(judge.score([shown], "positive")[0]))
