"""Errors name the argument, what was given and what was expected, before any model runs."""

from __future__ import annotations

import copy
import dataclasses
import re
from types import SimpleNamespace

import pytest
import tiny
import torch

from scone.decode import Scone, SconeConfig, Verifier
from scone.errors import (
    ConfigError,
    DeviceError,
    InputError,
    LabelError,
    ModelError,
    NumericalError,
    SconeError,
)
from scone.lookahead import (
    AtMean,
    AtSample,
    Carried,
    Expectation,
    Gibbs,
    Masked,
    Masks,
    Mix,
    Nothing,
    Paths,
    Rollout,
    Taylor,
)
from scone.options import Options


@pytest.fixture
def idle(engine: Scone, monkeypatch: pytest.MonkeyPatch) -> Scone:
    """An engine whose LM must not be run."""

    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError("a model ran before the arguments were checked")

    monkeypatch.setattr(engine.parts.lm, "read", refuse)
    return engine


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"prompts": []}, "prompts must hold at least one prompt, got an empty list"),
        ({"prompts": [3]}, "prompts must be strings or lists of messages, got 3"),
        ({"prompts": None}, "prompts must be strings or lists of messages, got None"),
        ({"prompts": {"role": "user", "content": "hi"}}, "prompts must be strings or lists of messages, got {'role'"),
        (
            {"prompts": [{"role": "user"}]},
            "prompts must have 'role' and 'content' in each message, got {'role': 'user'}",
        ),
        ({"prompts": ["a"], "max_new_tokens": 0}, "max_new_tokens must be an integer of at least 1, got 0"),
        ({"prompts": ["a"], "max_new_tokens": 2.5}, "max_new_tokens must be an integer of at least 1, got 2.5"),
        ({"prompts": ["a"], "num_return_sequences": 0}, "num_return_sequences must be an integer of at least 1, got 0"),
        ({"prompts": ["a"], "seed": "x"}, "seed must be an integer, got 'x'"),
        ({"prompts": ["a"], "stop": [""]}, "stop must be non-empty strings, got ['']"),
        ({"prompts": ["a"], "stop": 3}, "stop must be non-empty strings, got 3"),
        ({"prompts": ["a"], "stop_token_ids": 5}, "stop_token_ids must be a list of integers in [0, "),
        ({"prompts": ["a"], "stop_token_ids": [1 << 40]}, "), got [1099511627776]"),
        ({"prompts": ["a"], "do_sample": "no"}, "do_sample must be True or False, got 'no'"),
        ({"prompts": ["a"], "logits_processor": abs}, "logits_processor must be a list of callables, got <built-in"),
        ({"prompts": ["a"], "logits_processor": [3]}, "logits_processor must be a list of callables, got [3]"),
        ({"prompts": [""]}, "prompts must give at least one token each, got ''"),
        (
            {"prompts": ["the movie " * 200]},
            "max_new_tokens=25 in the LM's context of 256 tokens, got a prompt of",
        ),
        ({"prompts": [{"role": "user", "content": "hi"}]}, "no chat template"),
    ],
)
def test_arguments_of_generate(idle: Scone, arguments: dict, message: str) -> None:
    with pytest.raises(InputError) as caught:
        idle.generate(**arguments)
    assert message in str(caught.value)
    assert isinstance(caught.value, ValueError) and isinstance(caught.value, SconeError)


def test_stream_checks_before_the_first_piece(idle: Scone) -> None:
    with pytest.raises(InputError, match="max_new_tokens"):
        idle.stream("a", max_new_tokens=0)


def test_label_error_lists_the_labels() -> None:
    for target in ("angry", 2, -1, True):
        with pytest.raises(LabelError) as caught:
            Verifier(*tiny.classifier(), target=target)
        assert str(caught.value) == f"target must be one of 'negative' (0), 'positive' (1), got {target!r}"


def test_masked_lm_without_a_mask_token(positive: Verifier) -> None:
    with pytest.raises(ModelError, match="masked_lm must have a tokenizer with a mask token"):
        Scone(tiny.llama(), (tiny.masked_lm("bert")[0], tiny.byte_bpe()), positive)


def test_parts_that_cannot_play_their_role(positive: Verifier) -> None:
    headless = tiny.masked_lm("bert")[0].bert
    with pytest.raises(ModelError, match="masked_lm must be a masked LM with an output head, got BertModel"):
        Scone(tiny.llama(), (headless, tiny.wordpiece()), positive)
    with pytest.raises(ModelError, match="lm must be a causal LM"):
        Scone((torch.nn.Linear(2, 2), tiny.byte_bpe()), tiny.masked_lm("bert"), positive)
    with pytest.raises(ModelError, match=r"verifier must be a Verifier, .* got str"):
        Scone(tiny.llama(), tiny.masked_lm("bert"), "positive")
    with pytest.raises(ModelError, match="verifier must have input embeddings, got Linear without"):
        Verifier(torch.nn.Linear(2, 2), tiny.wordpiece(), target=0)
    with pytest.raises(InputError, match="config must be a SconeConfig, got dict"):
        Scone(tiny.llama(), tiny.masked_lm("bert"), positive, {"top_k": 3})
    with pytest.raises(InputError, match="config must be a SconeConfig, got dict"):
        Scone(tiny.llama(), tiny.masked_lm("bert"), positive).with_config({"top_k": 3})


def test_slow_tokenizer_cannot_be_bridged() -> None:
    slow = SimpleNamespace(**{n: getattr(tiny.byte_bpe(masked=True), n) for n in ("get_vocab", "pad_token_id")})

    class Slow:
        is_fast = False
        model_max_length = 512
        pad_token_id = slow.pad_token_id

        def get_vocab(self) -> dict[str, int]:
            return slow.get_vocab()

        def __call__(self, text: str, **kwargs: object) -> dict[str, list[int]]:
            return {"input_ids": [1]}

    verifier = Verifier.from_module(lambda e, m: e.mean((1, 2)), Slow(), torch.zeros(400, 4))
    with pytest.raises(ModelError, match="must have a fast tokenizer"):
        Scone(tiny.llama(), tiny.masked_lm("bert"), verifier, SconeConfig(particles=1, lookahead=Gibbs()))
    with pytest.raises(ModelError, match="must have a fast tokenizer"):
        Scone(tiny.llama(), None, verifier, SconeConfig(particles=1, lookahead=Expectation())).next_token("a")


@pytest.mark.parametrize("lookahead", [Gibbs(), Masked(), Mix(Nothing(), Masked())], ids=lambda way: type(way).__name__)
def test_devices_must_match(lookahead: object) -> None:
    verifier = Verifier.from_module(lambda e, m: e.mean((1, 2)), tiny.wordpiece(), torch.zeros(300, 4, device="meta"))
    with pytest.raises(DeviceError, match="must be on the masked LM's device cpu, got meta"):
        Scone(tiny.llama(), tiny.masked_lm("bert"), verifier, SconeConfig(particles=1, lookahead=lookahead))


@pytest.mark.parametrize("part", ["lm", "masked_lm", "verifier"])
def test_nan_names_the_model(positive: Verifier, part: str) -> None:
    models = {"lm": tiny.llama(), "masked_lm": tiny.masked_lm("bert"), "verifier": tiny.classifier()}
    broken = copy.deepcopy(models[part][0])
    with torch.no_grad():
        for parameter in broken.parameters():
            parameter.fill_(torch.nan)
    models[part] = (broken, models[part][1])
    verifier = Verifier(*models["verifier"], target="positive")
    config = SconeConfig(particles=1, lookahead=Gibbs(tokens=3, start=Carried()), min_mass=0)
    engine = Scone(models["lm"], models["masked_lm"], verifier, config)
    with pytest.raises(NumericalError, match=f"{type(broken).__name__} returned NaN"):
        engine.next_token("the movie was")


@pytest.mark.parametrize(
    ("kind", "field", "value", "expected"),
    [
        (SconeConfig, "top_k", 0, "an integer of at least 1"),
        (SconeConfig, "top_k", True, "an integer of at least 1"),
        (SconeConfig, "top_p", 0.0, "a number in (0, 1]"),
        (SconeConfig, "top_p", 1.5, "a number in (0, 1]"),
        (SconeConfig, "min_p", 1.1, "a number in [0, 1]"),
        (SconeConfig, "min_mass", -0.1, "a number in [0, 1]"),
        (SconeConfig, "temperature", 0, "a number in (0, inf)"),
        (SconeConfig, "temperature", float("nan"), "a number in (0, inf)"),
        (SconeConfig, "temperature", float("inf"), "a number in (0, inf)"),
        (SconeConfig, "strength", -1, "a number in [0, inf)"),
        (SconeConfig, "strength", "2", "a number in [0, inf)"),
        (SconeConfig, "epsilon", 0.6, "a number in (0, 0.5]"),
        (SconeConfig, "reweigh", "bayesian", "one of 'odds', 'bayes', 'softmax', 'logit'"),
        (SconeConfig, "context_window", 0, "an integer of at least 1 or None"),
        (Expectation, "tokens", 0, "an integer of at least 1"),
        (Expectation, "among", 0, "an integer from 1 to 64"),
        (Paths, "among", 65, "an integer from 1 to 64"),
        (Paths, "tokens", 0, "an integer of at least 1"),
        (Paths, "count", 0, "an integer of at least 1"),
        (Paths, "judged", "read", "one of 'expected', 'drawn'"),
        (Paths, "min_p", 2, "a number in [0, 1]"),
        (Paths, "coupled", 1, "True or False"),
        (Masked, "tokens", 0, "an integer of at least 1"),
        (Masked, "temperature", 0, "a number in (0, inf)"),
        (Gibbs, "tokens", -1, "an integer of at least 1"),
        (Gibbs, "start", "cold", "one of Rollout(), Masks(), Carried()"),
        (Gibbs, "estimate", Masks(), "one of AtSample(), AtMean(), Taylor()"),
        (Gibbs, "schedule", "random", "one of 'systematic', 'uniform'"),
        (Gibbs, "block", 0, "an integer of at least 1"),
        (Gibbs, "iterations", -1, "an integer of at least 0"),
        (Gibbs, "thin", 0, "an integer of at least 1 or None"),
        (Gibbs, "chains", 0, "an integer of at least 1"),
        (Gibbs, "workers", 0, "an integer of at least 1"),
        (Gibbs, "sync_every", 0, "an integer of at least 1"),
        (Gibbs, "temperature", 0, "a number in (0, inf)"),
        (Gibbs, "coupled", 1, "True or False"),
        (Rollout, "tokens", 0, "an integer of at least 1 or None"),
        (Rollout, "top_p", 0, "a number in (0, 1]"),
        (Rollout, "min_p", -1, "a number in [0, 1]"),
        (Masks, "warmup", -1, "an integer of at least 0"),
        (Carried, "warmup", 1.5, "an integer of at least 0"),
        (AtMean, "marginals", "all", "one of 'sweep', 'masked', 'unmasked'"),
        (Taylor, "marginals", "all", "one of 'sweep', 'masked', 'unmasked'"),
        (Taylor, "form", "sum", "one of 'position', 'mean'"),
        (Taylor, "linearise", "probability", "one of 'prob', 'logit'"),
        (Taylor, "scale", 0, "a number in (0, inf)"),
        (Taylor, "clamp", None, "True or False"),
    ],
)
def test_options_out_of_range(kind: type[Options], field: str, value: object, expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        kind(**{field: value})
    assert str(caught.value) == f"{field} must be {expected}, got {value!r}"
    with pytest.raises(ConfigError) as caught:
        kind().replace(**{field: value})
    assert str(caught.value) == f"{field} must be {expected}, got {value!r}"


def test_a_lookahead_is_an_object() -> None:
    for value in (3, "gibbs", Gibbs, Rollout(), None):
        with pytest.raises(ConfigError) as caught:
            SconeConfig(lookahead=value)
        assert str(caught.value).startswith("lookahead must be one of ")
        for name in ("Expectation()", "Gibbs()", "Masked()", "Mix()", "Nothing()", "Paths()"):
            assert name in str(caught.value)


def test_unknown_option() -> None:
    with pytest.raises(ConfigError, match=r"an option of SconeConfig must be one of top_k, .*, got 'topk'"):
        SconeConfig().replace(topk=3)
    with pytest.raises(ConfigError, match=r"an option of Expectation must be one of tokens, among, got 'chains'"):
        Expectation(chains=3)
    with pytest.raises(ConfigError, match=r"an option of Nothing must be none, for it has no options, got 'tokens'"):
        Nothing(tokens=3)


FORMER = [
    "blend", "block", "chains", "coupled", "expand", "init", "iterations", "linearise", "lm_lookahead",
    "lookahead_min_p", "lookahead_top_p", "marginals", "mlm_temperature", "schedule", "sync_every", "taylor",
    "taylor_scale", "thin", "warmup", "workers",
]  # fmt: skip


@pytest.mark.parametrize("name", FORMER)
def test_former_options_say_what_to_write_instead(name: str) -> None:
    """And what they say can be written."""
    for make in (SconeConfig, SconeConfig().replace, SconeConfig.paper, SconeConfig.fast):
        with pytest.raises(ConfigError, match=f"{name} is no option of SconeConfig: write lookahead=") as caught:
            make(**{name: 1})
    assert sorted(SconeConfig.retired) == FORMER
    classes = {kind.__name__: kind for kind in (AtMean, AtSample, Carried, Expectation, Gibbs, Masked, Masks, Mix)}
    classes |= {kind.__name__: kind for kind in (Nothing, Paths, Rollout, Taylor)}
    advice = str(caught.value).partition("lookahead=")[2]
    for kind, option in re.findall(r"(\w+)\((\w+)=", advice):
        assert option in {field.name for field in dataclasses.fields(classes[kind])}, (kind, option)
    assert all(kind in classes for kind in re.findall(r"\b([A-Z]\w+)\(", advice))


@pytest.mark.parametrize(
    ("parts", "options", "message"),
    [
        ((), {}, "parts of Mix must be two lookaheads or more, got ()"),
        ((Nothing(),), {}, "parts of Mix must be two lookaheads or more, got (Nothing(),)"),
        ((Nothing(), 0.5), {}, "parts of Mix must be two lookaheads or more, got (Nothing(), 0.5)"),
        ((Nothing(), Paths), {}, "parts of Mix must be two lookaheads or more, got (Nothing(), <class"),
        (
            (Nothing(), Masked()),
            {"weights": (1,)},
            "weights of Mix must be a number in (0, inf) for each of its 2 parts",
        ),
        ((Nothing(), Masked()), {"weights": (1, 0)}, "for each of its 2 parts, got (1, 0)"),
        ((Nothing(), Masked()), {"weights": (1, float("nan"))}, "for each of its 2 parts, got (1, nan)"),
        ((Nothing(), Masked()), {"weight": (1, 2)}, "an option of Mix must be one of parts, weights, got 'weight'"),
    ],
)
def test_mixtures_that_mean_nothing(parts: tuple, options: dict, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Mix(*parts, **options)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "lookahead", [Gibbs(), Masked(), Mix(Expectation(), Masked())], ids=lambda way: type(way).__name__
)
def test_a_lookahead_without_its_masked_lm(positive: Verifier, lookahead: object) -> None:
    with pytest.raises(ConfigError, match="needs a masked LM: pass masked_lm, got None"):
        Scone(tiny.llama(), None, positive, SconeConfig(particles=1, lookahead=lookahead))
    plain = Scone(tiny.llama(), None, positive)
    with pytest.raises(ConfigError, match="needs a masked LM: pass masked_lm, got None"):
        plain.with_config(lookahead=lookahead)
    assert plain.masked_lm is None and plain.masked_lm_tokenizer is None
    callable_ = Verifier.from_callable(lambda texts: [0.5] * len(texts))
    with pytest.raises(ConfigError, match="needs a masked LM: pass masked_lm, got None"):
        Scone(tiny.llama(), None, callable_, SconeConfig(particles=1, lookahead=lookahead))


def test_strength_and_scores_of_verifiers(positive: Verifier) -> None:
    with pytest.raises(ConfigError, match="strength must be a number of at least 0, got -1"):
        positive.with_strength(-1)
    with pytest.raises(InputError, match="texts must be strings, got int"):
        positive.score(["a", 3])
    with pytest.raises(InputError, match=r"expected shape \(2,\), got \(1,\)"):
        Verifier.from_callable(lambda texts: [0.5]).score(["a", "b"])
    with pytest.raises(TypeError):
        positive & 0.5


def test_target_belongs_to_a_name(positive: Verifier) -> None:
    with pytest.raises(InputError, match="target must be None where verifier is a ready object, got 'positive'"):
        Scone.from_pretrained(tiny.llama(), tiny.masked_lm("bert"), positive, target="positive")
    with pytest.raises(InputError, match="target must be a label of the verifier 'embedded:topic', got None"):
        Scone.from_pretrained(tiny.llama(), tiny.masked_lm("bert"), "embedded:topic")


def test_a_model_needs_its_tokenizer(positive: Verifier) -> None:
    with pytest.raises(
        InputError, match=r"lm must be a model with lm_tokenizer, or \(model, tokenizer\), got LlamaForCausalLM"
    ):
        Scone(tiny.llama()[0], tiny.masked_lm("bert"), positive)
    with pytest.raises(InputError, match=r"target must be a label of the verifier, one of .*, got None"):
        Scone.from_pretrained(tiny.llama(), tiny.masked_lm("bert"), tiny.classifier())


def test_processors_must_leave_a_token(engine: Scone) -> None:
    with pytest.raises(InputError, match="logits_processor must leave at least one token, got -inf for all"):
        engine.next_token("the movie was", logits_processor=[lambda ids, scores: scores - torch.inf])


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_callable_that_returns_no_number_is_named(value: float) -> None:
    def moody(texts: list[str]) -> list[float]:
        return [value] * len(texts)

    engine = Scone(
        tiny.llama(), None, Verifier.from_callable(moody), SconeConfig(particles=1, lookahead=Nothing(), min_mass=0)
    )
    with pytest.raises(NumericalError, match=r"the verifier moody returned (NaN|infinity) in"):
        engine.next_token("the movie was")
