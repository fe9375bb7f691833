"""Verifiers: kinds of classifiers, algebra, linearisation, limits."""

from __future__ import annotations

import pytest
import tiny
import torch
from transformers import GPT2Config, GPT2ForSequenceClassification

from scone.decode import Scone, SconeConfig, Verifier
from scone.errors import ConfigError, InputError
from scone.lookahead import AtSample, Expectation, Gibbs, Masked, Mix, Nothing, Paths, Taylor
from scone.verifier import EmbeddingVerifier

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


def test_decoder_that_pools_at_the_last_token(monkeypatch: pytest.MonkeyPatch) -> None:
    tok = tiny.byte_bpe(masked=True)
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=len(tok), n_positions=64, n_embd=32, n_layer=2, n_head=2, num_labels=2, pad_token_id=tok.pad_token_id
    )
    model = GPT2ForSequenceClassification(config).eval()
    with torch.no_grad():
        model.score.weight.mul_(10)
    expected = torch.stack([logits_of(model, tok, t).softmax(-1)[1] for t in TEXTS])
    verifier = Verifier(model, tok, target=1)
    assert torch.allclose(verifier.score(TEXTS), expected, atol=1e-5)
    config = SconeConfig(particles=1, lookahead=Gibbs(tokens=4, estimate=Taylor()), min_mass=0)
    engine = Scone(tiny.llama(), tiny.masked_lm("roberta"), verifier, config)
    gradients: list[torch.Tensor] = []
    linearise = EmbeddingVerifier.linearise

    def watch(*args: object, **kwargs: object) -> object:
        at = linearise(*args, **kwargs)
        gradients.append(at.grad)
        return at

    monkeypatch.setattr(EmbeddingVerifier, "linearise", watch)
    q = engine.next_token("the movie was", max_new_tokens=8).q
    drawn = engine.with_config(lookahead=Gibbs(tokens=4, estimate=AtSample()))
    assert q.std() > 0 and not torch.allclose(q, drawn.next_token("the movie was", max_new_tokens=8).q, atol=1e-4)
    assert len(gradients) == 1 and gradients[0].abs().sum() > 0


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
    assert all(p.grad is None and p.requires_grad for p in positive.model.parameters())


def test_algebra(positive: Verifier) -> None:
    other = Verifier(*tiny.classifier(seed=8), target="positive")
    a, b = positive.score(TEXTS), other.score(TEXTS)
    assert torch.allclose((positive & other).score(TEXTS), a * b)
    assert torch.allclose((~positive).score(TEXTS), 1 - a)
    assert torch.allclose((~(positive & ~other)).score(TEXTS), 1 - a * (1 - b))
    assert ~~positive is positive
    assert torch.equal((~~positive).score(TEXTS), a)
    assert len((positive & positive).leaves) == 1


def test_either_and_the_mean(positive: Verifier) -> None:
    other = Verifier(*tiny.classifier(seed=8), target="positive")
    a, b = positive.score(TEXTS), other.score(TEXTS)
    either, both = 1 - (1 - a) * (1 - b), (a + b) / 2
    assert torch.allclose((positive | other).score(TEXTS), either)
    assert torch.allclose((positive | other | ~positive).score(TEXTS), 1 - (1 - either) * a)
    assert torch.allclose(((positive & other) | ~other).score(TEXTS), 1 - (1 - a * b) * b)
    assert torch.allclose(Verifier.mean(positive, other).score(TEXTS), both)
    assert torch.allclose(Verifier.mean(positive, ~other, weights=(3, 1)).score(TEXTS), (3 * a + 1 - b) / 4)
    assert torch.allclose((~Verifier.mean(positive, other)).score(TEXTS), 1 - both)
    assert torch.allclose((positive | other).at_least(0.9).score(TEXTS), (either / 0.9).clamp(max=1))
    end = Verifier.mean(positive, other).reading(lambda text: text[-4:])
    ends = [text[-4:] for text in TEXTS]
    assert torch.allclose(end.score(TEXTS), (positive.score(ends) + other.score(ends)) / 2)
    assert len(Verifier.mean(positive, positive | other).leaves) == 2


def test_either_and_the_mean_are_one_term_with_one_strength(positive: Verifier) -> None:
    other = Verifier(*tiny.classifier(seed=8), target="positive")
    for whole in (positive | other, Verifier.mean(positive, other)):
        assert [term.strength for term in (whole.with_strength(3) & positive).terms] == [3.0, 1.0]
        assert whole.with_strength(3).reading(str.strip).strength == 3
    strong = positive.with_strength(2) | other.with_strength(2)
    assert strong.strength == 2 and [term.strength for term in (~strong).terms] == [2.0, 2.0]
    with pytest.raises(ConfigError, match=r"strength must be one for all of \| and of a mean, .* got 2, 1"):
        _ = positive.with_strength(2) | other
    with pytest.raises(ConfigError, match="strength must be one for all"):
        Verifier.mean(positive, other, positive.with_strength(2))
    with pytest.raises(ConfigError, match="weights must be a number above 0 for each of the 2 verifiers"):
        Verifier.mean(positive, other, weights=(1, 0))
    with pytest.raises(InputError, match="verifiers of a mean must be one Verifier or more"):
        Verifier.mean(positive, str.islower)
    with pytest.raises(TypeError):
        _ = positive | str.islower


@pytest.mark.parametrize("lookahead", [Expectation(tokens=2), Masked(tokens=3), Gibbs(tokens=4, estimate=Taylor())])
def test_either_and_the_mean_look_ahead_through_their_parts(positive: Verifier, lookahead: object) -> None:
    """Each part is estimated in expectation, through its own bridge, and then they are combined."""
    other = Verifier(*tiny.classifier(tiny.unigram(), seed=8), target="positive")
    config = SconeConfig(particles=1, min_mass=0, top_k=4, lookahead=lookahead)
    start = Scone(tiny.llama(), tiny.masked_lm("bert"), positive, config)
    q = {name: start.with_verifier(verifier).next_token("the movie was").q for name, verifier in (
        ("a", positive), ("b", other), ("or", positive | other), ("mean", Verifier.mean(positive, other)))}  # fmt: skip
    assert torch.allclose(q["or"], 1 - (1 - q["a"]) * (1 - q["b"]), atol=1e-5)
    assert torch.allclose(q["mean"], (q["a"] + q["b"]) / 2, atol=1e-5)


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
    controlled = Scone(tiny.llama(), tiny.masked_lm("bert"), verifier, engine.config)
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


@pytest.mark.parametrize("kind", ["prob", "logit"])
def test_a_decoders_gradient_is_the_derivative(kind: str) -> None:
    """Padding on the left: no gradient where a shorter text has none of its tokens."""
    tok = tiny.byte_bpe(masked=True)
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=len(tok), n_positions=64, n_embd=32, n_layer=2, n_head=2, num_labels=2, pad_token_id=tok.pad_token_id
    )
    model = GPT2ForSequenceClassification(config).eval()
    with torch.no_grad():
        model.score.weight.mul_(10)
    verifier = Verifier(model, tok, target=1)
    ids, mask = verifier.frame(tok(TEXTS, add_special_tokens=False)["input_ids"])
    at = verifier.linearise(ids, mask, kind=kind)
    direction = torch.randn(at.embeds.shape, generator=torch.Generator().manual_seed(0)) * mask[..., None]
    h = 1e-3
    with torch.no_grad():
        up, down = (verifier.value(at.embeds + s * h * direction, mask, kind) for s in (1, -1))
    assert torch.allclose((up - down) / (2 * h), (at.grad * direction).sum((1, 2)), rtol=2e-2, atol=2e-3)


@pytest.mark.parametrize("output", ["prob", "logit"])
def test_a_module_gives_probabilities_or_log_odds(output: str) -> None:
    tok = tiny.wordpiece()
    table = torch.randn(len(tok), 4, generator=torch.Generator().manual_seed(3)) / 9
    raw = lambda embeds, mask: 0.4 + (embeds * mask[..., None]).sum((1, 2)) / 9  # noqa: E731
    verifier = Verifier.from_module(raw, tok, table, output=output)
    ids, mask = verifier.frame(tok(TEXTS, add_special_tokens=False)["input_ids"])
    given = raw(table[ids], mask)
    expected = given if output == "prob" else given.sigmoid()
    assert torch.allclose(verifier.score(TEXTS), expected, atol=1e-6)
    assert torch.allclose(verifier.value_of_ids(ids, mask, kind="logit"), expected.logit(), atol=1e-4)
    with pytest.raises(ConfigError, match="output must be 'prob' or 'logit', got 'p'"):
        Verifier.from_module(raw, tok, table, output="p")


@pytest.mark.parametrize("left", [False, True], ids=["right", "left"])
def test_expected_embeddings_stand_where_the_tokens_would(left: bool) -> None:
    """φ of texts that go on with embeddings of real tokens is φ of the texts with these tokens, wherever padding is."""
    tok = tiny.byte_bpe(masked=True)
    if left:
        torch.manual_seed(0)
        config = GPT2Config(
            vocab_size=len(tok), n_positions=64, n_embd=32, n_layer=2, n_head=2, num_labels=2,
            pad_token_id=tok.pad_token_id,
        )  # fmt: skip
        verifier = Verifier(GPT2ForSequenceClassification(config).eval(), tok, target=1)
    else:
        verifier = Verifier(*tiny.classifier(tok), target="positive")
    more = torch.tensor(
        [tok(text, add_special_tokens=False)["input_ids"][:2] for text in (" was good", " music", " day")]
    )
    rows = [[*tok(text, add_special_tokens=False)["input_ids"], *ids] for text, ids in zip(TEXTS, more.tolist())]
    expected = verifier.value_of_ids(*verifier.frame(rows))
    assert torch.allclose(verifier.value_of_expected(TEXTS, verifier.table[more]), expected, atol=1e-5)


@pytest.mark.parametrize(
    ("asked", "served"),
    [
        (Expectation(tokens=4), Paths(tokens=4, judged="drawn")),
        (Paths(tokens=4, count=2), Paths(tokens=4, count=2, judged="drawn")),
        (Gibbs(tokens=4, chains=2), Gibbs(tokens=4, chains=2, estimate=AtSample())),
        (Masked(tokens=4, temperature=0.5), None),
        (Nothing(), Nothing()),
        (
            Mix(Expectation(tokens=4), Nothing(), weights=(3, 1)),
            Mix(Paths(tokens=4, judged="drawn"), Nothing(), weights=(3, 1)),
        ),
    ],
    ids=lambda way: type(way).__name__,
)
def test_a_verifier_that_reads_texts_gets_a_strategy_that_can_serve_it(asked: object, served: object) -> None:
    """Nothing of what was asked is lost but what cannot act: tokens, chains and temperature stay."""
    callable_ = Verifier.from_callable(lambda texts: [len(text) / 100 for text in texts])
    engine = Scone(tiny.llama(), tiny.masked_lm("bert"), callable_, SconeConfig(particles=1, lookahead=asked))
    assert engine.config.lookahead == asked
    if served is None:
        assert isinstance(engine.lookahead, Gibbs) and engine.lookahead.temperature == asked.temperature
        assert engine.lookahead.tokens == asked.tokens and engine.lookahead.estimate == AtSample()
    else:
        assert engine.lookahead == served
    mixed = Scone(
        tiny.llama(), tiny.masked_lm("bert"), callable_ & Verifier(*tiny.classifier(), target=1), engine.config
    )
    assert mixed.lookahead == engine.lookahead
    assert mixed.next_token("the movie was", max_new_tokens=3).q.isfinite().all()
