"""Errors name the argument, what was given and what was expected, before any model runs."""

from __future__ import annotations

import copy
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


@pytest.fixture
def idle(engine: Scone, monkeypatch: pytest.MonkeyPatch) -> Scone:
    """An engine whose LM must not be run."""

    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError("a model ran before the arguments were checked")

    monkeypatch.setattr(engine.causal_lm, "read", refuse)
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
    with pytest.raises(ModelError, match="verifier must be a Verifier, got str"):
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
        Scone(tiny.llama(), tiny.masked_lm("bert"), verifier)


def test_devices_must_match() -> None:
    verifier = Verifier.from_module(lambda e, m: e.mean((1, 2)), tiny.wordpiece(), torch.zeros(300, 4, device="meta"))
    with pytest.raises(DeviceError, match="must be on the masked LM's device cpu, got meta"):
        Scone(tiny.llama(), tiny.masked_lm("bert"), verifier)


@pytest.mark.parametrize("part", ["lm", "masked_lm", "verifier"])
def test_nan_names_the_model(positive: Verifier, part: str) -> None:
    models = {"lm": tiny.llama(), "masked_lm": tiny.masked_lm("bert"), "verifier": tiny.classifier()}
    broken = copy.deepcopy(models[part][0])
    with torch.no_grad():
        for parameter in broken.parameters():
            parameter.fill_(torch.nan)
    models[part] = (broken, models[part][1])
    verifier = Verifier(*models["verifier"], target="positive")
    config = SconeConfig(init="warm", lookahead=3, min_mass=0)
    engine = Scone(models["lm"], models["masked_lm"], verifier, config)
    with pytest.raises(NumericalError, match=f"{type(broken).__name__} returned NaN"):
        engine.next_token("the movie was")


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("top_k", 0, "an integer of at least 1"),
        ("top_k", True, "an integer of at least 1"),
        ("top_p", 0.0, "a number in (0, 1]"),
        ("top_p", 1.5, "a number in (0, 1]"),
        ("min_mass", -0.1, "a number in [0, 1]"),
        ("temperature", 0, "a number in (0, inf)"),
        ("temperature", float("nan"), "a number in (0, inf)"),
        ("strength", -1, "a number in [0, inf)"),
        ("epsilon", 0.6, "a number in (0, 0.5]"),
        ("reweigh", "bayesian", "one of 'bayes', 'odds', 'softmax', 'logit'"),
        ("init", "cold", "one of 'warm', 'lm', 'mask'"),
        ("marginals", "all", "one of 'sweep', 'masked', 'unmasked'"),
        ("schedule", "random", "one of 'systematic', 'uniform'"),
        ("taylor", "sum", "one of 'position', 'mean'"),
        ("linearise", "probability", "one of 'prob', 'logit'"),
        ("blend", 1.5, "a number in [0, 1]"),
        ("lookahead", -1, "an integer of at least 0 or None"),
        ("block", 0, "an integer of at least 1"),
        ("iterations", -1, "an integer of at least 0"),
        ("lm_lookahead", 0, "an integer of at least 1 or None"),
        ("thin", 0, "an integer of at least 1 or None"),
        ("workers", 0, "an integer of at least 1"),
        ("coupled", 1, "True or False"),
        ("context_window", 0, "an integer of at least 1 or None"),
    ],
)
def test_options_out_of_range(field: str, value: object, expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        SconeConfig(**{field: value})
    assert str(caught.value) == f"{field} must be {expected}, got {value!r}"


def test_unknown_option() -> None:
    with pytest.raises(ConfigError, match=r"topk must be one of .*top_k"):
        SconeConfig().replace(topk=3)


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
    with pytest.raises(InputError, match="target must be a label of the verifier, got None"):
        Scone.from_pretrained(tiny.llama(), tiny.masked_lm("bert"), tiny.classifier())


def test_processors_must_leave_a_token(engine: Scone) -> None:
    with pytest.raises(InputError, match="logits_processor must leave at least one token, got -inf for all"):
        engine.next_token("the movie was", logits_processor=[lambda ids, scores: scores - torch.inf])
