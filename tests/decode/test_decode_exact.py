"""Cases in which the right q can be enumerated."""

from __future__ import annotations

import copy
import itertools
from typing import Any

import pytest
import tiny
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import BertConfig, BertForMaskedLM, MinPLogitsWarper, TopPLogitsWarper

from scone.decode import Scone, SconeConfig, Verifier
from scone.lm import truncate
from scone.lookahead import AtMean, AtSample, Carried, Expectation, Gibbs, Masks, Taylor

WORDS = ["aba", "bab", "caa", "bcc", "abc"]
TAYLOR = Taylor(linearise="prob")
CHAINS = Gibbs(start=Carried(), block=6, estimate=TAYLOR)
PAPER_WAY = SconeConfig(particles=1, min_mass=0, lookahead=CHAINS)


def word_tokenizer(words: list[str]) -> Any:
    vocab = {token: i for i, token in enumerate([*tiny.BERT_SPECIAL.values(), *words])}
    tok = Tokenizer(models.WordLevel(vocab, unk_token="[UNK]"))
    tok.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return tiny._finish(tok, tiny.BERT_SPECIAL, ("[CLS]", "[SEP]"))


def letter_tokenizer() -> Any:
    vocab = {token: i for i, token in enumerate([*tiny.BERT_SPECIAL.values(), *" cab"])}
    tok = Tokenizer(models.WordLevel(vocab, unk_token="[UNK]"))
    tok.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tok.decoder = decoders.Fuse()
    return tiny._finish(tok, tiny.BERT_SPECIAL, ("[CLS]", "[SEP]"))


def piece_tokenizer() -> Any:
    """WordPiece that cuts each of WORDS in two."""
    starts, ends = sorted({w[:1] for w in WORDS}), sorted({"##" + w[1:] for w in WORDS})
    vocab = {token: i for i, token in enumerate([*tiny.BERT_SPECIAL.values(), *starts, *ends])}
    tok = Tokenizer(models.WordPiece(vocab, unk_token="[UNK]"))
    tok.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tok.decoder = decoders.WordPiece(prefix="##")
    return tiny._finish(tok, tiny.BERT_SPECIAL, ("[CLS]", "[SEP]"))


def byte_tokenizer() -> Any:
    """Every byte a token, spaces included."""
    vocab = {c: i + 5 for i, c in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    vocab |= {token: i for i, token in enumerate(tiny.BERT_SPECIAL.values())}
    tok = Tokenizer(models.BPE(vocab, []))
    tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tok.decoder = decoders.ByteLevel()
    return tiny._finish(tok, tiny.BERT_SPECIAL, ("[CLS]", "[SEP]"))


def factorised_masked_lm(tokenizer: Any) -> Any:
    """Without layers, what stands at a masked position depends on the position alone: conditionals factorise."""
    torch.manual_seed(5)
    config = BertConfig(
        vocab_size=len(tokenizer), num_hidden_layers=0, hidden_size=16, num_attention_heads=2, tie_word_embeddings=False
    )
    model = BertForMaskedLM(config).eval()
    with torch.no_grad():
        model.cls.predictions.decoder.weight.normal_(std=1.0)
        model.bert.embeddings.position_embeddings.weight.normal_(std=1.0)
    return model


def linear_verifier(tokenizer: Any, *, weigh_positions: bool) -> Any:
    """φ = 0.5 + Σ_t a_t w · emb_t; a_t falls with the position or is 1."""
    generator = torch.Generator().manual_seed(9)
    table = torch.randn(len(tokenizer), 8, generator=generator)
    w = torch.randn(8, generator=generator) / 400

    def judge(embeds: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        places = torch.arange(embeds.shape[1], device=embeds.device)
        a = 1 / (1 + places) if weigh_positions else torch.ones(embeds.shape[1])
        return 0.5 + ((embeds @ w) * a * mask).sum(1)

    return Verifier.from_module(judge, tokenizer, table, output="prob")


@torch.no_grad()
def enumerated(engine: Scone, text: str, length: int) -> float:
    """E[φ] over every future of `length` tokens, weighted by the product of the conditionals."""
    mlm, surfaces = engine.parts.masked_lm, engine.parts.surfaces
    fixed = mlm.encode(text)
    ids = torch.tensor([[*mlm.opening, *fixed, *[mlm.mask_id] * length, *mlm.closing]])
    logits = mlm.model(input_ids=ids).logits[0, len(mlm.opening) + len(fixed) :][:length]
    p = logits.masked_fill(~mlm.keep, -torch.inf).softmax(-1).double()
    futures = list(itertools.product(mlm.keep.nonzero()[:, 0].tolist(), repeat=length))
    weights = torch.stack([torch.stack([p[t, y] for t, y in enumerate(f)]).prod() for f in futures])
    scores = engine.verifier.score([text + surfaces.write(f)[0] for f in futures]).double()
    assert abs(weights.sum().item() - 1) < 1e-6
    return float((weights * scores).sum())


@pytest.mark.parametrize("marginals", ["sweep", "masked"])
@pytest.mark.parametrize(
    ("verifier_tokenizer", "weigh_positions"),
    [
        (lambda: None, True),  # the same tokenizer: ids pass straight through
        (lambda: word_tokenizer(WORDS[::-1]), True),
        (letter_tokenizer, False),
        (piece_tokenizer, False),
        (byte_tokenizer, False),
    ],
    ids=["same", "words", "letters", "pieces", "bytes"],
)
def test_estimate_is_exact_for_a_linear_verifier(
    verifier_tokenizer: Any, weigh_positions: bool, marginals: str
) -> None:
    tokenizer = word_tokenizer(WORDS)
    verifier = linear_verifier(verifier_tokenizer() or tokenizer, weigh_positions=weigh_positions)
    config = PAPER_WAY.replace(
        lookahead=CHAINS.replace(tokens=3, estimate=TAYLOR.replace(marginals=marginals)), top_k=4
    )
    engine = Scone(tiny.llama(), (factorised_masked_lm(tokenizer), tokenizer), verifier, config)
    # A grammar that leaves words of three letters, so that each candidate is a whole word for every tokenizer.
    allowed = [engine.lm_tokenizer(f" {c}", add_special_tokens=False)["input_ids"][-1] for c in "abc"]

    def letters_only(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        kept = torch.full_like(scores, -torch.inf)
        kept[:, allowed] = scores[:, allowed]
        return kept

    step = engine.next_token("aba ab", max_new_tokens=20, seed=3, logits_processor=[letters_only])
    assert len(step.tokens) == 3
    for token, q in zip(step.tokens.tolist(), step.q.tolist()):
        text = "aba ab" + engine.lm_tokenizer.decode([token])
        assert q == pytest.approx(enumerated(engine, text, 3), abs=1e-5)


def test_position_and_mean_forms_agree_where_the_gradient_is_the_same_everywhere() -> None:
    """With one future position the paper's mean form and the position form are the same number."""
    tokenizer = word_tokenizer(WORDS)
    chains = CHAINS.replace(tokens=1, estimate=TAYLOR.replace(marginals="masked"))
    engine = Scone(
        tiny.llama(),
        (factorised_masked_lm(tokenizer), tokenizer),
        linear_verifier(tokenizer, weigh_positions=True),
        PAPER_WAY.replace(lookahead=chains),
    )
    position = engine.next_token("aba", max_new_tokens=9)
    paper = chains.replace(estimate=chains.estimate.replace(form="mean"))
    mean = engine.with_config(lookahead=paper).next_token("aba", max_new_tokens=9)
    assert torch.allclose(position.q, mean.q, atol=1e-6)
    assert position.q.std() > 1e-6


def test_the_scale_of_the_taylor_term_interpolates_between_sample_and_expectation() -> None:
    tokenizer = word_tokenizer(WORDS)
    taylor = TAYLOR.replace(marginals="masked")
    parts = (
        tiny.llama(),
        (factorised_masked_lm(tokenizer), tokenizer),
        linear_verifier(tokenizer, weigh_positions=True),
    )
    ways = [AtSample(), taylor.replace(scale=0.5), taylor]
    configs = [PAPER_WAY.replace(lookahead=CHAINS.replace(tokens=4, estimate=way)) for way in ways]
    q = [Scone(*parts, config).next_token("aba", max_new_tokens=9).q for config in configs]
    assert torch.allclose(q[1], (q[0] + q[2]) / 2, atol=1e-6)
    assert not torch.allclose(q[0], q[2], atol=1e-4)


def test_expanding_about_the_mean_is_exact_for_a_linear_verifier() -> None:
    """φ of the expected embeddings equals the enumerated expectation, and there is nothing random in it."""
    tokenizer = word_tokenizer(WORDS)
    lookahead = Gibbs(tokens=3, start=Masks(warmup=0), block=3, estimate=AtMean())
    config = SconeConfig(particles=1, lookahead=lookahead, min_mass=0, top_k=4)
    verifier = linear_verifier(piece_tokenizer(), weigh_positions=False)
    engine = Scone(tiny.llama(), (factorised_masked_lm(tokenizer), tokenizer), verifier, config)
    step = engine.next_token("aba ab", max_new_tokens=20, seed=3)
    assert torch.allclose(engine.next_token("aba ab", max_new_tokens=20, seed=4).q, step.q, atol=1e-6)
    for token, q in zip(step.tokens.tolist(), step.q.tolist()):
        text = "aba ab" + engine.lm_tokenizer.decode([token])
        assert q == pytest.approx(enumerated(engine, text, 3), abs=1e-5)


@pytest.mark.parametrize("make", [tiny.llama, tiny.gpt2], ids=["rotary", "absolute"])
def test_the_lms_next_token_in_expectation_is_exact_for_a_linear_verifier(make: Any) -> None:
    """One token of lookahead, the LM's own: q is the mean of φ over the candidates' likely successors."""
    lm, tokenizer = make()
    verifier = linear_verifier(tokenizer, weigh_positions=True)
    config = SconeConfig(particles=1, lookahead=Expectation(tokens=1, among=5), min_mass=0, top_k=5)
    engine = Scone((lm, tokenizer), None, verifier, config)
    prompt = "the movie was"
    step = engine.next_token(prompt, max_new_tokens=9)
    prefix = engine.parts.lm.encode(prompt)
    for token, q in zip(step.tokens.tolist(), step.q.tolist()):
        with torch.no_grad():
            logits = lm(torch.tensor([[*prefix, token]])).logits[0, -1]
        logits[sorted(engine.parts.lm.stop_ids)] = -torch.inf
        log_p, following = logits.topk(5)
        text = prompt + engine.lm_tokenizer.decode([token])
        read = verifier.tokenizer(text, add_special_tokens=False)["input_ids"]
        rows = [[*read, x] for x in following.tolist()]
        phi = verifier.value_of_ids(*verifier.frame(rows))
        assert q == pytest.approx(float((log_p.softmax(-1) * phi).sum()), abs=1e-5)


def test_the_lm_goes_on_from_its_expected_embeddings(engine: Scone) -> None:
    """Two tokens in expectation, against the LM run anew on the embeddings of the whole text."""
    lm = engine.parts.lm
    table = lm.model.get_input_embeddings().weight
    prompts = [lm.encode("the movie was"), lm.encode("what a nice day")]
    (means,) = lm.anticipate(lm.prefill(prompts), 2, [table], among=4)
    for prompt, found in zip(prompts, means):
        embeds = table[torch.tensor(prompt)]
        for place in range(2):
            with torch.no_grad():
                logits = lm.model(inputs_embeds=embeds[None]).logits[0, -1]
            logits[sorted(lm.stop_ids)] = -torch.inf
            log_p, tokens = logits.topk(4)
            mean = log_p.softmax(-1) @ table[tokens]
            torch.testing.assert_close(found[place], mean, atol=1e-5, rtol=1e-4)
            embeds = torch.cat([embeds, mean[None]])


def test_expectation_without_end_tokens_is_over_the_likeliest(engine: Scone) -> None:
    lm = copy.copy(engine.parts.lm)
    lm.stop_ids = frozenset()
    table = torch.eye(lm.vocabulary)
    state = lm.prefill([lm.encode("the movie was")])
    least = state.logits.topk(64).values[:, -1:]
    p = state.logits.masked_fill(state.logits < least, -torch.inf).softmax(-1)
    (means,) = lm.anticipate(state, 1, [table], among=64)
    torch.testing.assert_close(means[:, 0], p)
    with pytest.raises(ValueError, match="among must be"):
        lm.anticipate(state, 1, [table], among=65)


@pytest.mark.parametrize("top_p", (0.3, 0.9, 1.0))
@pytest.mark.parametrize("min_p", (0.0, 0.1, 0.5))
def test_truncation_keeps_what_transformers_keeps(top_p: float, min_p: float) -> None:
    logits = 3 * torch.randn(20, 500, generator=torch.Generator().manual_seed(0))
    logits[3, 40:] = -torch.inf
    expected = logits
    if top_p < 1:
        expected = TopPLogitsWarper(top_p)(None, expected)
    if min_p > 0:
        expected = MinPLogitsWarper(min_p)(None, expected)
    assert torch.equal(truncate(logits, top_p=top_p, min_p=min_p), expected)
