"""A second LM that looks ahead: what it says, what it reads again, and what it is not asked."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import tiny
import torch
from transformers import MistralConfig, MistralForCausalLM

import scone.lookahead.draft as module
from scone.decode import Scone, SconeConfig, Verifier
from scone.errors import ConfigError, InputError
from scone.lm import CausalLM
from scone.lookahead import Draft, Expectation, Gibbs, Lookahead, Masked, Mix, Nothing, Paths
from scone.loop import prefill
from scone.settings import parse_settings

PROMPTS = ["the movie was", "a nice day", "what a wonderful old picture of the river it is"]
OTHERS = ["unigram", "characters", "words"]


def engine_of(lookahead: Lookahead, judge: Any = None, **options: object) -> Scone:
    config = SconeConfig(
        **{"particles": 1, "lookahead": lookahead, "min_mass": 0, "top_k": 4, "strength": 8, **options}
    )
    return Scone(tiny.llama(), None, judge or Verifier(*tiny.classifier(), target="positive"), config)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[CausalLM, int, int]]]:
    """(LM, rows, tokens of a row) of every pass."""
    seen: list[tuple[CausalLM, int, int]] = []
    read = CausalLM.read

    def noted(lm: CausalLM, ids: torch.Tensor, *rest: Any, **options: Any) -> Any:
        seen.append((lm, *ids.shape[:2]))
        return read(lm, ids, *rest, **options)

    monkeypatch.setattr(CausalLM, "read", noted)
    yield seen


@pytest.mark.parametrize("inner", [Expectation(tokens=3), Paths(tokens=3, count=2), Paths(tokens=2, judged="drawn")])
def test_the_lm_as_its_own_draft(inner: Lookahead) -> None:
    """Token by token what it says without a detour, with other texts in the batch, and in a mixture."""
    plain, draft = engine_of(inner), engine_of(Draft(lm=tiny.llama(), inner=inner))
    mixed = engine_of(Mix(Draft(lm=tiny.llama(), inner=inner), Nothing()))
    one, two = (e.generate(PROMPTS, max_new_tokens=6, num_return_sequences=2, seed=3) for e in (plain, draft))
    assert one.token_ids == two.token_ids
    for steps, others in zip(one.trace, two.trace):
        assert all(torch.allclose(a.q, b.q, atol=1e-4) for a, b in zip(steps, others))
    expected = engine_of(Mix(inner, Nothing())).generate(PROMPTS, max_new_tokens=6, seed=3)
    assert mixed.generate(PROMPTS, max_new_tokens=6, seed=3).token_ids == expected.token_ids


def sliding() -> tuple[Any, Any]:
    """An LM whose attention is to the last few tokens, so that its cache forgets."""
    _, tok = tiny.llama()
    torch.manual_seed(4)
    config = MistralConfig(
        vocab_size=len(tok), hidden_size=32, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1,
        intermediate_size=48, sliding_window=6, eos_token_id=tok.eos_token_id, bos_token_id=None,
    )  # fmt: skip
    return MistralForCausalLM(config), tok


DRAFTS = {
    "same tokens": lambda: tiny.llama(seed=5),
    **{name: lambda name=name: tiny.llama(seed=5, tokens=name) for name in OTHERS},
    "a cache that forgets": sliding,
}


@pytest.mark.parametrize("at_once", [1 << 15, 40], ids=["all at once", "few at once"])
@pytest.mark.parametrize("name", DRAFTS)
def test_what_is_kept_changes_nothing(name: str, at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """At every step q is that of a draft which has read nothing yet; "漢字" and "🙂" take several tokens."""
    monkeypatch.setattr(module, "_AT_ONCE", at_once)
    engine = engine_of(Draft(lm=DRAFTS[name](), inner=Expectation(tokens=2)))
    texts = engine.open([*PROMPTS, "smile 🙂 and 漢字 don't"], max_new_tokens=9, seed=0)
    loop, compared = engine.loop(), 0
    for taken in loop.run(texts, prefill(engine.parts.lm, texts), 8):
        living = [text for text in taken.texts if text.finish_reason is None]
        state = prefill(engine.parts.lm, living)
        kept, fresh = (loop.decide([replace(t, carried=c(t)) for t in living], state, 8).q
                       for c in (lambda t: t.carried, lambda t: None))  # fmt: skip
        assert torch.allclose(kept, fresh, atol=1e-4)
        compared += sum(text.carried is not None for text in living)
    assert compared > 8


@pytest.mark.parametrize("name", ["same tokens", *OTHERS])
def test_it_reads_the_text_in_its_own_tokens(name: str) -> None:
    """q is what the draft expects after text and candidate, read by its own tokenizer, as the verifier sees it."""
    engine = engine_of(Draft(lm=DRAFTS[name](), inner=Expectation(tokens=2)))
    step, parts = engine.next_token(PROMPTS[2], max_new_tokens=9), engine.parts.beside(engine.lookahead.lm)
    lm, own = parts.lm, engine.parts.lm
    texts = [own.decode([*own.encode(PROMPTS[2]), token]) for token in step.tokens.tolist()]
    opening = [lm.tokenizer.bos_token_id] if name == "unigram" else [lm.tokenizer.cls_token_id]
    ids = [[*opening * (name in OTHERS), *lm.tokenizer(text, add_special_tokens=False)["input_ids"]] for text in texts]
    means = lm.anticipate(lm.prefill(ids), 2, parts.lm_tables, among=10)
    assert torch.allclose(step.q, parts.score_expected(texts, means)[0], atol=1e-4)


@pytest.mark.parametrize("name", ["same tokens", *OTHERS])
def test_only_what_has_changed_is_read(name: str, reads: list[tuple[CausalLM, int, int]]) -> None:
    engine = engine_of(Draft(lm=DRAFTS[name](), inner=Expectation(tokens=1)))
    draft = engine.parts.beside(engine.lookahead.lm).lm
    prompt = "what a wonderful old picture of the river it is ; the movie was a great film"
    texts = engine.open([prompt], max_new_tokens=9, seed=0)
    widths: list[list[int]] = []
    for _ in engine.loop().run(texts, prefill(engine.parts.lm, texts), 8):
        widths.append([width for lm, _, width in reads if lm is draft])
        reads.clear()
    first, *others = widths
    assert max(first) >= 15  # the prompt
    assert all(max(one) <= 6 for one in others if one) and sum(map(len, others))
    if name == "same tokens":
        assert all(one in ([1], []) for one in others)  # the candidates: what was taken had been read as one


def test_a_window_moves_by_its_half(reads: list[tuple[CausalLM, int, int]]) -> None:
    """No more than the window is read, and it begins at the same place for many steps."""
    engine = engine_of(Draft(lm=tiny.llama(seed=5), inner=Expectation(tokens=1), window=16))
    draft = engine.parts.beside(engine.lookahead.lm).lm
    texts = engine.open([PROMPTS[2] * 3], max_new_tokens=40, seed=0)
    engine.generate([PROMPTS[2] * 3], max_new_tokens=20, seed=0)
    widths = [width for lm, _, width in reads if lm is draft]
    assert len(texts[0].prompt_ids) > 40 and max(widths) <= 16
    assert 1 <= sum(width > 1 for width in widths) <= 4


def test_of_the_lm_only_logits_are_needed(reads: list[tuple[CausalLM, int, int]]) -> None:
    """Inside transformers' own loop the processor runs the draft and never the LM."""
    engine = engine_of(Mix(Draft(lm=tiny.llama(seed=5)), Nothing()))
    ids = engine.lm_tokenizer(PROMPTS[0], return_tensors="pt")["input_ids"]
    out = engine.lm.generate(ids, logits_processor=[engine.logits_processor(max_new_tokens=5)], max_new_tokens=5)
    assert reads and all(lm is not engine.parts.lm for lm, _, _ in reads)
    expected = engine.generate(PROMPTS[:1], max_new_tokens=5, do_sample=False).token_ids[0]
    assert out[0, ids.shape[1] :].tolist() == expected
    assert engine.lookahead.needs == {"embeddings"}


def test_cost() -> None:
    """Rows that the draft read are its own, not the LM's."""
    engine = engine_of(Draft(lm=tiny.llama(seed=5), inner=Expectation(tokens=3)))
    cost = engine.next_token(PROMPTS[0], max_new_tokens=9).cost
    assert (cost.lm_rows, cost.lm_passes, cost.draft_rows) == (0, 0, 1 + 4 + 2 * 4)  # the text, then candidates


def test_settings() -> None:
    config = parse_settings("default,lookahead=draft+nothing,inner=paths,inner_count=2,lookahead_lm=some/model")
    assert config.lookahead == Mix(Draft(lm="some/model", inner=Paths(count=2)), Nothing())
    assert Draft(lm=tiny.llama()).as_dict()["lm"] == "LlamaForCausalLM"
    assert Draft().as_dict()["inner"]["kind"] == "Expectation"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lm": 3}, "lm must be 'embedded', a folder, an id of the Hub or .model, tokenizer., got 3"),
        ({"inner": Masked()}, r"inner must be one of Expectation\(\), Paths\(\), got Masked"),
        ({"inner": Gibbs()}, r"inner must be one of Expectation\(\), Paths\(\), got Gibbs"),
        ({"window": 0}, "window must be an integer of at least 16, got 0"),
    ],
)
def test_refusals(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Draft(**options)


def test_a_draft_that_is_not_there_is_said_at_once() -> None:
    with pytest.raises(InputError, match="there is no such folder"):
        engine_of(Draft(lm="/no/such/folder"))
