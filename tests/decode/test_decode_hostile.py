"""What cannot be used is refused by one of our errors that names it; what is extreme but lawful works."""

from __future__ import annotations

import copy
import pickle
import re
from collections.abc import Callable
from typing import Any

import pytest
import tiny
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as some

from scone.decode import Scone, SconeConfig, Verifier
from scone.errors import InputError, ModelError, NumericalError, SconeError
from scone.lm import propose
from scone.lookahead import Gibbs
from scone.reweigh import RULES, reweigh

FEW = settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
CONFIG = SconeConfig(min_mass=0, top_k=3)


@pytest.fixture(scope="module")
def small(positive: Verifier) -> Scone:
    return Scone(tiny.llama(), None, positive, CONFIG)


# ---- texts ------------------------------------------------------------------------------------------------------------

_CHARACTERS = some.text(some.characters(codec=None, exclude_categories=()), max_size=30)
ANY_TEXT = _CHARACTERS | some.builds(
    "{}{}".format, _CHARACTERS, some.sampled_from("\ud800\udfff\x00\x1b\u202e\U0010ffff")
)


@FEW
@given(prompt=ANY_TEXT)
def test_any_text_is_continued_or_refused(small: Scone, prompt: str) -> None:
    try:
        out = small.generate(prompt, max_new_tokens=2)
    except InputError as error:
        assert str(error).startswith("prompts must ")
        assert not prompt or any("\ud800" <= c <= "\udfff" for c in prompt)
        return
    assert out.texts[0].startswith(prompt) and 0 <= float(out.scores[0]) <= 1


@FEW
@given(text=ANY_TEXT)
def test_any_text_is_judged_or_refused(small: Scone, text: str) -> None:
    halved = any("\ud800" <= c <= "\udfff" for c in text)
    if halved:
        with pytest.raises(InputError, match=r"^texts must be valid Unicode, got a lone surrogate at character"):
            small.verifier.score(text)
    else:
        assert 0 <= float(small.verifier.score(text)[0]) <= 1


def test_texts_of_no_and_of_very_many_characters(small: Scone) -> None:
    assert small.verifier.score(["", "x" * 100_000]).isfinite().all()
    with pytest.raises(InputError, match=r"^prompts must leave room for max_new_tokens=2"):
        small.generate("the " * 25_000, max_new_tokens=2)
    with pytest.raises(InputError, match=r"^prompts must give at least one token each, got ''"):
        small.generate("", max_new_tokens=2)


def test_half_a_character_in_a_conversation(small: Scone) -> None:
    lm, tok = tiny.llama()
    tok = copy.deepcopy(tok)
    tok.chat_template = "{{ messages[0]['content'] }}"
    engine = Scone((lm, tok), None, small.verifier, CONFIG)
    with pytest.raises(InputError, match=r"^prompts must be valid Unicode"):
        engine.generate([[{"role": "user", "content": "half \ud83d"}]])


# ---- options and numbers ----------------------------------------------------------------------------------------------


@FEW
@given(
    temperature=some.floats(1e-300, 1e300),
    strength=some.floats(0, 1.7e308),
    own=some.floats(0, 1.7e308),
    epsilon=some.sampled_from([1e-300, 1e-30, 1e-4, 0.5]),
    rule=some.sampled_from(RULES),
)
def test_lawful_options_of_any_size_choose_a_candidate(small: Scone, temperature, strength, own, epsilon, rule) -> None:
    config = CONFIG.replace(temperature=temperature, strength=strength, epsilon=epsilon, reweigh=rule)
    verifier = small.verifier.with_strength(own) & ~small.verifier
    step = Scone(tiny.llama(), None, verifier, config).next_token("the movie", max_new_tokens=2)
    assert not step.log_p_star.isnan().any()
    assert float(step.log_p_star.exp().sum()) == pytest.approx(1, abs=1e-4)


@pytest.mark.parametrize("temperature", (1e-3, 1e-1, 1.0, 1e3))
@pytest.mark.parametrize("size", (1e-4, 1.0, 1e4))
def test_candidates_are_those_of_float64(temperature: float, size: float) -> None:
    logits = size * torch.randn(4, 200, generator=torch.Generator().manual_seed(0))
    found = propose(logits, top_k=10, temperature=temperature)
    log_p, tokens = (logits.double() / temperature).log_softmax(-1).topk(10)
    assert torch.equal(found.tokens, tokens)
    torch.testing.assert_close(found.log_p.double(), log_p, atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("rule", RULES)
def test_reweighing_is_finite_for_any_q(rule: str) -> None:
    q = torch.tensor([[[0.0, 1.0, 1e-45, 0.5]]])
    log_p = torch.tensor([[-1e4, -0.0, -torch.inf, -20.0]])
    for strength in (0, 1e-300, 24, 1e300):
        found = reweigh(log_p, q, rule, strength=strength, strengths=(1e300,), epsilon=1e-30)
        assert not found.isnan().any() and bool(found[0, 2].isneginf())


# ---- verifiers --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (lambda texts: [-1.0] * len(texts), "must return scores from 0 to 1, got -1"),
        (lambda texts: [2.0] * len(texts), "must return scores from 0 to 1, got 2"),
        (lambda texts: ["good"] * len(texts), "must return numbers, got ['good']"),
        (lambda texts: None, "must return numbers, got None"),
        (lambda texts: [0.5], "must return one score for each text, expected shape (2,), got (1,)"),
    ],
)
def test_a_function_that_returns_no_probabilities_is_refused(answer: Callable[[Any], Any], message: str) -> None:
    verifier = Verifier.from_callable(answer)
    with pytest.raises(InputError, match=re.escape(message)):
        verifier.score(["a", "b"] if "shape" in message else ["a"])


def test_a_score_beyond_one_by_rounding_is_one() -> None:
    assert Verifier.from_callable(lambda texts: [1.0000001] * len(texts)).score("a").tolist() == [1.0]


@pytest.mark.parametrize(
    ("answer", "kind", "message"),
    [
        (lambda embeds, mask: embeds.sum(2), ModelError, "must return one number for each text, expected shape (1,)"),
        (
            lambda embeds, mask: None,
            ModelError,
            "must return one number for each text, expected shape (1,), got NoneType",
        ),
        (lambda embeds, mask: embeds.sum((1, 2)) * 0 + 2, InputError, "must return scores from 0 to 1, got 2"),
        (lambda embeds, mask: embeds.sum((1, 2)) / 0, NumericalError, "returned infinity in 1 of 1 values"),
    ],
)
def test_a_module_that_returns_no_probabilities_is_refused(answer: Any, kind: type, message: str) -> None:
    model, tok = tiny.classifier()
    with pytest.raises(kind, match=re.escape(message)):
        Verifier.from_module(answer, tok, model.get_input_embeddings()).score("the movie")


# ---- models that do not fit -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("part", ("lm", "masked_lm", "verifier Bert"))
def test_a_tokenizer_larger_than_its_model_is_named(part: str) -> None:
    models = {"lm": tiny.llama(), "masked_lm": tiny.masked_lm("bert"), "verifier Bert": tiny.classifier()}
    model, tok = models[part]
    model = copy.deepcopy(model)
    model.resize_token_embeddings(30, mean_resizing=False)
    models[part] = model, tok
    verifier = Verifier(*models["verifier Bert"], target=1)
    with pytest.raises(
        ModelError, match=f"^{part}.* must have an embedding for each token of its tokenizer, got token"
    ):
        Scone(models["lm"], models["masked_lm"], verifier, SconeConfig(lookahead=Gibbs(tokens=2))).generate("the movie")


@pytest.mark.parametrize("value", (torch.nan, torch.inf))
def test_a_model_that_returns_no_numbers_is_named(value: float, small: Scone) -> None:
    lm, tok = tiny.llama()
    lm = copy.deepcopy(lm)
    lm.lm_head.register_forward_hook(lambda module, given, out: out.index_fill(-1, torch.tensor([5]), value))
    with pytest.raises(NumericalError, match=r"LlamaForCausalLM returned (NaN|infinity) in 1 of"):
        Scone((lm, tok), None, small.verifier, CONFIG).generate("the movie")


def test_engines_are_pickled_with_every_part() -> None:
    verifier = Verifier(*tiny.classifier(), target="positive")
    engine = Scone(tiny.llama(), tiny.masked_lm("bert"), verifier, SconeConfig(lookahead=Gibbs(tokens=3, iterations=2)))
    first = engine.generate("the movie", max_new_tokens=3).token_ids
    again = pickle.loads(pickle.dumps(engine))
    assert again.generate("the movie", max_new_tokens=3).token_ids == first


# ---- any value for any argument ---------------------------------------------------------------------------------------

ANYTHING = some.one_of(
    some.none(), some.booleans(), some.integers(), some.floats(), some.binary(max_size=3), ANY_TEXT,
    some.lists(some.one_of(some.integers(), ANY_TEXT, some.none()), max_size=2), some.just({}), some.just(torch.zeros(2)),
)  # fmt: skip
ARGUMENTS = (
    "prompts", "max_new_tokens", "num_return_sequences", "seed", "do_sample", "stop", "stop_token_ids", "logits_processor",
)  # fmt: skip


@settings(FEW, max_examples=60)
@given(name=some.sampled_from(ARGUMENTS), value=ANYTHING)
def test_any_argument_of_generate_works_or_is_named(small: Scone, name: str, value: Any) -> None:
    if name in ("max_new_tokens", "num_return_sequences") and isinstance(value, int) and value > 3:
        value = 3
    given_here = {"prompts": "the movie", "max_new_tokens": 2, name: value}
    try:
        small.generate(given_here.pop("prompts"), **given_here)
    except SconeError as error:
        assert name in str(error)


@settings(FEW, max_examples=60)
@given(name=some.sampled_from(sorted(SconeConfig.__dataclass_fields__)), value=ANYTHING)
def test_any_option_works_or_is_named(name: str, value: Any) -> None:
    try:
        config = SconeConfig(**{name: value})
    except SconeError as error:
        assert name in str(error)
    else:
        assert getattr(config, name) == value
