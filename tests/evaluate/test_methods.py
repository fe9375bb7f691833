"""Every method writes what it should, on tiny real models."""

import dataclasses
import json

import numpy as np
import pytest
import torch

from scone.config import SconeConfig
from scone.errors import ConfigError, InputError
from scone.evaluate import methods
from scone.evaluate.models import Models
from scone.lookahead import Expectation, Gibbs, Nothing

JOB = methods.Job("the film was", "positive", avoid=False, samples=4, max_new_tokens=6, seed=3)
ALL = (
    "random", "beamsearch", "bon:3", "topk10", "myopic", "scone:top_k=4", "scone:top_k=4,lookahead=masked",
    "scone:top_k=4,lookahead=gibbs+nothing,start=carried,tokens=3", "scone:lookahead=paths,count=2", "bon-matched:5",
)  # fmt: skip


@pytest.fixture(scope="module")
def models(names):
    return Models(names, "sentiment")


@pytest.mark.parametrize("name", ALL)
def test_writes_samples_and_repeats_itself(models, name):
    method = methods.parse_method(name)
    drawn = methods.generate(method, models, JOB)
    assert len(drawn) == 4
    assert all(len(row) <= 6 and not set(row) & models.lm.stop_ids for row in drawn)
    torch.manual_seed(99)  # ambient randomness plays no part
    assert methods.generate(method, models, JOB) == drawn


def test_methods_leave_the_ambient_generator_alone(models):
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    methods.generate(methods.parse_method("bon:2"), models, JOB)
    assert torch.equal(torch.rand(3), expected)


def test_best_of_n_returns_the_best_of_its_draws(models, monkeypatch):
    words = {word: models.lm.encode(word)[0] for word in ("good", "bad", "nice", "dull")}
    draws = [[words[w]] for w in ("good", "bad", "nice", "dull", "dull", "good")]
    monkeypatch.setattr(methods, "_sample", lambda models, job, rows, **settings: draws[:rows])
    phi = {"good": 0.5, "bad": 0.1, "nice": 0.9, "dull": 0.2}
    score = lambda texts: np.array([phi[text.split()[-1]] for text in texts])  # noqa: E731
    monkeypatch.setattr(models, "score", lambda target, avoid: score)
    job = methods.Job("the film was", "positive", False, samples=2, max_new_tokens=1, seed=0)
    assert methods.generate(methods.parse_method("bon:3"), models, job) == [[words["nice"]], [words["good"]]]


def test_myopic_with_great_strength_takes_the_best_candidate(models):
    job = methods.Job("the film was", "positive", False, samples=3, max_new_tokens=1, seed=0)
    (ids,) = {tuple(row) for row in methods.generate(methods.parse_method("myopic:1e7"), models, job)}
    candidates = models.lm.prefill([models.lm.encode("the film was")]).logits[0].topk(10).indices.tolist()
    phi = models.score("positive")([models.lm.decode([*models.lm.encode("the film was"), c]) for c in candidates])
    best = candidates[int(phi.argmax())]
    assert ids == (() if best in models.lm.stop_ids else (best,))


@pytest.mark.parametrize("name", ["bon:2", "myopic", "scone:top_k=4"])
def test_methods_judge_what_the_verdict_says(models, monkeypatch, name):
    """φ of continuations alone, where that is asked for; else of texts with their prompt."""
    seen = []

    real = models.score
    monkeypatch.setattr(models, "score", lambda *of: lambda texts: (seen.extend(texts), real(*of)(texts))[1])
    for verdict in ("text", "continuation"):
        seen.clear()
        job = dataclasses.replace(JOB, verdict=verdict)
        drawn = methods.generate(methods.parse_method(name), models, job)
        assert drawn and all(text.startswith("the film was") == (verdict == "text") for text in seen)
        assert bool(seen) == (not name.startswith("scone"))
        if name.startswith("scone"):
            config = methods.parse_method(name).config.replace(verdict=verdict)
            engine = models.engine("positive", False, config)
            assert drawn == engine.generate([JOB.prompt], max_new_tokens=6, num_return_sequences=4, seed=3).token_ids


def test_myopic_without_strength_is_topk10(models):
    job = methods.Job("the film was", "positive", False, samples=3000, max_new_tokens=1, seed=0)
    drawn = [tuple(row) for row in methods.generate(methods.parse_method("myopic:0"), models, job)]
    log_p = models.lm.prefill([models.lm.encode("the film was")]).logits[0].topk(10)
    share = log_p.values.softmax(0)[0].item()
    assert abs(drawn.count((int(log_p.indices[0]),)) / 3000 - share) < 4 * (share * (1 - share) / 3000) ** 0.5


def test_names_and_settings():
    assert methods.parse_method("scone:paper").config == SconeConfig.paper()
    assert methods.parse_method("scone:fast,strength=2").config == SconeConfig.fast(strength=2.0)
    assert methods.parse_method("scone:lookahead=expectation,tokens=10").config.lookahead == Expectation(10)
    assert methods.parse_method("scone").config == methods.parse_method("scone:default").config == SconeConfig()
    assert methods.parse_method("bon").tries == 10
    assert methods.parse_method("bon-matched").tries is None


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("greedy", InputError, "method must be one of random"),
        ("random:3", InputError, "method must be one of"),
        ("bon:many", InputError, "must be a number, got 'many'"),
        ("scone:quick", ConfigError, "preset must be one of default, fast, quality, paper, plain, got 'quick'"),
        ("scone:chainz=2", ConfigError, "an option must be one of .*, got 'chainz'"),
        ("scone:init=warm", ConfigError, "init is no option any more: write lookahead="),
        ("scone:chains=2", ConfigError, "chains is an option of lookahead gibbs"),
        ("scone:paper,chains=two", ConfigError, "chains must be an integer"),
    ],
)
def test_mistakes_are_named(text, error, message):
    with pytest.raises(error, match=message):
        methods.parse_method(text)


@pytest.mark.parametrize("name", [*ALL, "scone:paper", "scone:fast"])
def test_settings_are_plain_and_hold_every_option(name):
    method = methods.parse_method(name)
    settings = json.loads(json.dumps(method.settings))
    assert settings["kind"] == method.kind and "name" not in settings
    assert settings.get("tries") == method.tries and settings.get("strength") == method.strength
    assert settings.get("config") == (
        None if method.config is None else json.loads(json.dumps(method.config.as_dict()))
    )


def test_which_methods_use_the_masked_lm():
    used = {name for name in ALL if methods.parse_method(name).uses_masked_lm}
    assert used == {"scone:top_k=4,lookahead=masked", "scone:top_k=4,lookahead=gibbs+nothing,start=carried,tokens=3"}
    assert methods.Method("x", "scone", SconeConfig(lookahead=Gibbs())).uses_masked_lm
    assert not methods.Method("x", "scone", SconeConfig(lookahead=Nothing())).uses_masked_lm
