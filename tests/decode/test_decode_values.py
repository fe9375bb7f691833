"""engine.value: log-odds of unfinished texts, the same as q of the candidate that each ends with."""

from __future__ import annotations

import pytest
import tiny
import torch

from scone.decode import Scone, SconeConfig, Verifier
from scone.errors import InputError
from scone.lookahead import Expectation, Gibbs, Masked, Mix, Nothing, Paths, Rollout

PROMPTS = ["the movie was", "a nice day and the river", "good"]
WAYS = [
    Nothing(), Expectation(tokens=2), Paths(tokens=2, count=2), Paths(tokens=2, judged="drawn"), Masked(tokens=3),
    Gibbs(tokens=3, iterations=1, start=Rollout()), Mix(Expectation(tokens=3), Nothing()),
]  # fmt: skip


def engine_of(lookahead, verifier=None) -> Scone:
    verifier = verifier or Verifier(*tiny.classifier(), target="positive")
    return Scone(
        tiny.llama(), tiny.masked_lm("bert"), verifier, SconeConfig(particles=1, min_mass=0, lookahead=lookahead)
    )


@pytest.mark.parametrize("lookahead", [way for way in WAYS if not isinstance(way, Paths | Gibbs)], ids=repr)
def test_the_value_of_a_prefix_is_q_of_its_last_token(lookahead) -> None:
    """Where nothing is drawn: a step's candidates, put behind the prompt, are prefixes."""
    engine = engine_of(lookahead)
    prompt = engine.parts.lm.encode(PROMPTS[0])
    step = engine.next_token(PROMPTS[0], max_new_tokens=9)
    stops = engine.parts.lm.stop_ids
    tokens = [int(token) for token in step.tokens if int(token) not in stops]
    found = engine.value([[*prompt, token] for token in tokens], max_new_tokens=8)
    expected = step.q[[int(token) not in stops for token in step.tokens]].clamp(1e-6, 1 - 1e-6).logit()
    assert torch.allclose(found, expected, atol=1e-3)


@pytest.mark.parametrize("lookahead", WAYS, ids=repr)
def test_a_prefix_has_its_value_whatever_else_is_asked_for(lookahead) -> None:
    engine = engine_of(lookahead)
    together = engine.value(PROMPTS, max_new_tokens=6, seed=5)
    assert together.shape == (3,) and together.isfinite().all()
    alone = torch.cat([engine.value(prompt, max_new_tokens=6, seed=5) for prompt in PROMPTS])
    assert torch.allclose(together, alone, atol=1e-3)
    by_tokens = engine.value([engine.parts.lm.encode(prompt) for prompt in PROMPTS], max_new_tokens=6, seed=5)
    assert torch.equal(by_tokens, together)


def test_finished_texts_and_several_terms() -> None:
    positive = Verifier(*tiny.classifier(), target="positive")
    engine = engine_of(Nothing(), positive & (~positive).with_strength(2))
    phi = positive.score(PROMPTS)
    expected = (phi * (1 - phi) ** 2).logit()
    assert torch.allclose(engine.value(PROMPTS, max_new_tokens=0), expected, atol=1e-4)
    eos = engine.lm_tokenizer.eos_token_id
    ended = [[*engine.parts.lm.encode(prompt), eos] for prompt in PROMPTS]
    assert torch.allclose(engine_of(Expectation(2)).value(ended), phi.logit(), atol=1e-4)
    short = engine.with_config(context_window=2).value(["the movie was so good"], max_new_tokens=0)
    tail = engine.parts.lm.decode(engine.parts.lm.encode("the movie was so good")[-2:])
    assert torch.allclose(short, engine.value([tail], max_new_tokens=0), atol=1e-4)


def test_more_prefixes_than_one_batch_and_none() -> None:
    engine = engine_of(Expectation(tokens=1))
    many = engine.value(PROMPTS * 30, max_new_tokens=4)
    assert torch.allclose(many.view(30, 3), engine.value(PROMPTS, max_new_tokens=4).expand(30, 3), atol=1e-3)
    assert engine.value([]).shape == (0,)


@pytest.mark.parametrize(
    "prefixes, options, message",
    [
        ([3.5], {}, "prefixes must be strings or lists of token ids, got 3.5"),
        (7, {}, "prefixes must be strings or lists of token ids, got 7"),
        ([[1, 99999]], {}, r"prefixes must be strings or lists of token ids, got \[1, 99999\]"),
        ([""], {}, "prefixes must give at least one token each, got ''"),
        (["a"], {"max_new_tokens": -1}, "max_new_tokens must be an integer of at least 1, got -1"),
        (["a"], {"seed": "x"}, "seed must be an integer, got 'x'"),
        (["a"], {"max_new_tokens": 300}, "prefixes must leave room for max_new_tokens=300 in the LM's context of 256"),
    ],
)
def test_what_is_no_prefix(prefixes, options, message: str) -> None:
    with pytest.raises(InputError, match=message):
        engine_of(Nothing()).value(prefixes, **options)
