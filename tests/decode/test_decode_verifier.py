"""Verifiers: kinds of classifiers, algebra, linearisation, limits."""

from __future__ import annotations

import pytest
import tiny
import torch
from transformers import GPT2Config, GPT2ForSequenceClassification

from scone.decode import Scone, Verifier

TEXTS = ["the movie was great", "a dull story", "what a nice day it is , with music"]


def logits_of(model: object, tokenizer: object, text: str) -> torch.Tensor:
    with torch.no_grad():
        return model(**tokenizer(text, return_tensors="pt")).logits[0]


def test_softmax_multi_label_and_single_logit() -> None:
    model, tok = tiny.classifier(labels=3)
    expected = torch.stack([logits_of(model, tok, t).softmax(-1) for t in TEXTS])
    for label in range(3):
        scores = Verifier(model, tok, target=label).score(TEXTS)
        assert torch.allclose(scores, expected[:, label], atol=1e-5)
    model, tok = tiny.classifier(labels=3, problem_type="multi_label_classification")
    expected = torch.stack([logits_of(model, tok, t).sigmoid() for t in TEXTS])
    assert torch.allclose(Verifier(model, tok, target="label2").score(TEXTS), expected[:, 2], atol=1e-5)
    model, tok = tiny.classifier(labels=1)
    expected = torch.stack([logits_of(model, tok, t).sigmoid() for t in TEXTS])
    assert torch.allclose(Verifier(model, tok, target=0).score(TEXTS), expected[:, 0], atol=1e-5)


def test_decoder_that_pools_at_the_last_token() -> None:
    tok = tiny.byte_bpe(masked=True)
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=len(tok), n_positions=64, n_embd=32, n_layer=2, n_head=2, num_labels=2, pad_token_id=tok.pad_token_id
    )
    model = GPT2ForSequenceClassification(config).eval()
    with torch.no_grad():
        model.score.weight.mul_(50)
    expected = torch.stack([logits_of(model, tok, t).softmax(-1)[1] for t in TEXTS])
    verifier = Verifier(model, tok, target=1)
    assert torch.allclose(verifier.score(TEXTS), expected, atol=1e-5)
    engine = Scone(tiny.llama(), tiny.masked_lm("roberta"), verifier)
    engine = engine.with_config(taylor_scale=1, min_mass=0, lookahead=4)
    assert engine.next_token("the movie was").q.isfinite().all()


@pytest.mark.parametrize("kind", ["prob", "logit"])
def test_linearise_is_the_derivative(positive: Verifier, kind: str) -> None:
    ids, mask = positive.frame(positive.tokenizer(TEXTS, add_special_tokens=False)["input_ids"])
    at = positive.linearise(ids, mask, kind=kind)
    direction = torch.randn(at.embeds.shape, generator=torch.Generator().manual_seed(0)) * mask[..., None]
    h = 1e-3
    with torch.no_grad():
        up, down = (positive.value(at.embeds + s * h * direction, mask, kind) for s in (1, -1))
    assert torch.allclose((up - down) / (2 * h), (at.grad * direction).sum((1, 2)), rtol=1e-2, atol=1e-3)
    assert torch.allclose(at.value, positive.value_of_ids(ids, mask, kind=kind), atol=1e-6)
    assert all(p.grad is None and not p.requires_grad for p in positive.model.parameters())


def test_algebra(positive: Verifier) -> None:
    other = Verifier(*tiny.classifier(seed=8), target="positive")
    a, b = positive.score(TEXTS), other.score(TEXTS)
    assert torch.allclose((positive & other).score(TEXTS), a * b)
    assert torch.allclose((~positive).score(TEXTS), 1 - a)
    assert torch.allclose((~(positive & ~other)).score(TEXTS), 1 - a * (1 - b))
    assert ~~positive is positive
    assert torch.equal((~~positive).score(TEXTS), a)
    assert len((positive & positive).leaves) == 1


def test_strengths_follow_their_verifier(positive: Verifier) -> None:
    other = Verifier(*tiny.classifier(seed=8), target="positive", strength=3)
    both = (positive.with_strength(2) & ~other).with_strength(0.5)
    assert [term.strength for term in both.terms] == [1.0, 1.5]
    assert torch.allclose(positive.with_strength(7).score(TEXTS), positive.score(TEXTS))
    assert (~~(~other)).strength == 3 and (~other.with_strength(4)).strength == 4


@pytest.mark.parametrize("rule", ["bayes", "odds"])
def test_controlled_product_is_the_product_of_controls(engine: Scone, positive: Verifier, rule: str) -> None:
    """p* of `a & b` is p times q_a times q_b, each to its strength, or times the odds of both together."""
    other, config = Verifier(*tiny.classifier(seed=8), target="positive"), engine.config.replace(reweigh=rule)
    parts = (tiny.llama(), tiny.masked_lm("bert"))
    a = Scone(*parts, positive, config).next_token("the movie was")
    b = Scone(*parts, other, config).next_token("the movie was")
    both = Scone(*parts, positive & (~other).with_strength(2), config).next_token("the movie was")
    assert torch.allclose(both.q, a.q * (1 - b.q) ** 2, atol=1e-5)
    bayes = a.q.log() + 2 * (1 - b.q).log()
    weight = bayes if rule == "bayes" else 2 * (a.q.sqrt() * (1 - b.q)).logit()
    assert torch.allclose(both.log_p_star, (a.log_p + config.strength * weight).log_softmax(-1), atol=1e-4)


def test_strength_zero_of_a_verifier_is_no_control(engine: Scone, positive: Verifier) -> None:
    parts = (tiny.llama(), tiny.masked_lm("bert"))
    idle = Scone(*parts, positive.with_strength(0), engine.config)
    plain = engine.with_config(strength=0)
    assert (
        idle.generate("a nice day", max_new_tokens=4).token_ids
        == plain.generate("a nice day", max_new_tokens=4).token_ids
    )


def test_callable_is_judged_on_the_text_it_would_read(engine: Scone) -> None:
    seen: list[str] = []

    def short_words(texts: list[str]) -> list[float]:
        seen.extend(texts)
        return [1 / (1 + len(t) / 10) for t in texts]

    verifier = Verifier.from_callable(short_words)
    controlled = Scone(tiny.llama(), tiny.masked_lm("bert"), verifier, engine.config.replace(blend=0))
    step = controlled.next_token("the movie was", max_new_tokens=6)
    assert len(seen) == len(step.tokens) and all(t.startswith("the movie was") for t in seen)
    assert step.q.tolist() == pytest.approx([1 / (1 + len(t) / 10) for t in seen])
    assert (verifier & verifier).score(["x" * 10]).tolist() == [0.25]


def test_texts_beyond_the_limit_are_judged_by_their_end(positive: Verifier) -> None:
    long = "dull " * 600 + "the movie was great"
    tail = positive.tokenizer(long, add_special_tokens=False)["input_ids"][-510:]
    ids, mask = positive.frame([tail])
    assert ids.shape[1] == 512
    assert torch.allclose(positive.score([long]), positive.value_of_ids(ids, mask))
    assert positive.score([]).shape == (0,)
    assert positive.score("the movie").shape == (1,)
