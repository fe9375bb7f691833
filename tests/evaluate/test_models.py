"""The parts of an experiment: what each is asked, and what is loaded."""

import numpy as np
import pytest
import torch

from scone.config import SconeConfig
from scone.evaluate import models as module
from scone.evaluate.judges import load_judge
from scone.evaluate.models import Models
from scone.lookahead import Masked, Nothing

TEXTS = ["the film was good", "the food is awful and cold", "so very nice"]


@pytest.fixture
def models(names):
    return Models(names, "sentiment")


def test_avoiding_turns_the_verifier_round_everywhere(models):
    towards = models.verifier("positive").score(TEXTS)
    assert float(towards.std()) > 0.01  # it tells them apart
    config = SconeConfig(lookahead=Nothing())
    for away in (
        models.verifier("positive", avoid=True).score(TEXTS),
        torch.from_numpy(models.score("positive", avoid=True)(TEXTS)).float(),
        models.engine("positive", True, config).verifier.score(TEXTS),
    ):
        torch.testing.assert_close(away, 1 - towards)
    torch.testing.assert_close(models.engine("positive", False, config).verifier.score(TEXTS), towards)


def test_the_judge_is_an_independent_one(models):
    expected = load_judge("sentiment").score(TEXTS, "positive")
    np.testing.assert_allclose(models.judge_score("positive")(TEXTS), expected)
    np.testing.assert_allclose(models.judge_score("positive", avoid=True)(TEXTS), 1 - expected)
    assert not np.allclose(models.score("positive")(TEXTS), expected, atol=0.05)
    assert models.judge_name.startswith("bag of words and VADER ")


def test_targets_have_the_verifiers_own_names(names):
    renamed = Models(module.ModelNames(*names_of(names), labels=(("nasty", "negative"),)), "sentiment")
    torch.testing.assert_close(renamed.verifier("nasty").score(TEXTS), 1 - renamed.verifier("positive").score(TEXTS))


def names_of(names):
    return names.lm, names.masked_lm, names.verifier


def test_perplexity_is_under_the_lm_unless_another_is_named(names, other_lm):
    assert Models(names, "sentiment").perplexity_lm is Models(names, "sentiment").lm
    apart = Models(module.ModelNames(*names_of(names), perplexity=other_lm), "sentiment")
    assert apart.fingerprints.perplexity_lm != apart.fingerprints.lm


def test_the_masked_lm_is_loaded_where_a_lookahead_needs_it(models, monkeypatch):
    loaded, load = [], module._masked_lm
    monkeypatch.setattr(module, "_masked_lm", lambda name, **place: (loaded.append(name), load(name, **place))[1])
    models.engine("positive", False, SconeConfig())
    assert not loaded
    for target in ("positive", "negative"):
        models.engine(target, False, SconeConfig(lookahead=Masked()))
    assert loaded == [models.names.masked_lm]
