"""Grammars by xgrammar, together with control: every candidate is legal, and the verifier chooses among them."""

from __future__ import annotations

import json
import re

import jsonschema
import pytest
import tiny
import torch

from scone.decode import Scone, SconeConfig, Verifier
from scone.errors import InputError
from scone.grammar import Grammar, JsonField
from scone.lookahead import AtMean, Expectation, Gibbs, Masked, Mix, Nothing, Paths, Taylor
from scone.verifier import EmbeddingVerifier

xgrammar = pytest.importorskip("xgrammar", reason="needs xgrammar: pip install 'scone[grammar]'")

SCHEMA = {
    "type": "object",
    "properties": {
        "kind": {"enum": ["film", "river"]},
        "stars": {"type": "integer", "minimum": 1, "maximum": 5},
        "review": {"type": "string", "pattern": "^[a-z ]{4,9}$"},
    },
    "required": ["kind", "stars", "review"],
}
PROMPTS = [
    "the movie was",
    "a nice day",
    "good food and a river in spring",
    "a",
    "b",
    "café",
    "the plot is dull",
    "x y",
]


@pytest.fixture(scope="module")
def engine(positive) -> Scone:
    lookahead = Mix(Expectation(tokens=2), Nothing())
    return Scone(
        tiny.llama(),
        tiny.masked_lm("bert"),
        positive,
        SconeConfig(particles=1, min_mass=0, top_k=6, lookahead=lookahead),
    )


@pytest.fixture(scope="module")
def schema(engine: Scone) -> Grammar:
    return Grammar(engine, json_schema=SCHEMA)


def matcher(engine: Scone, compile_as: str, text: str):
    info = xgrammar.TokenizerInfo.from_huggingface(engine.lm_tokenizer, vocab_size=engine.parts.lm.vocabulary)
    return xgrammar.GrammarMatcher(getattr(xgrammar.GrammarCompiler(info), compile_as)(text, any_whitespace=False))


@pytest.mark.parametrize("count", [1, 8])
def test_json_by_a_schema_and_every_candidate_legal(engine: Scone, schema: Grammar, count: int) -> None:
    out = engine.generate(PROMPTS[:count], max_new_tokens=70, logits_processor=[schema], seed=1)
    assert out.finish_reasons == ["stop"] * count
    start = matcher(engine, "compile_json_schema", json.dumps(SCHEMA))
    for text, ids, steps in zip(out.continuations, out.token_ids, out.trace):
        jsonschema.validate(json.loads(text), SCHEMA)
        place = start.fork()
        for token, step in zip(ids, steps):
            assert all(place.fork().accept_token(int(candidate)) for candidate in step.tokens)
            assert place.accept_token(token)
    alone = engine.generate(PROMPTS[count - 1 : count], max_new_tokens=70, logits_processor=[schema], seed=1)
    assert alone.token_ids == out.token_ids[-1:]


def test_expressions_and_ebnf(engine: Scone) -> None:
    year = Grammar(engine, regex="(19|20)[0-9]{2}")
    for text in engine.generate(PROMPTS[:3], max_new_tokens=9, logits_processor=[year]).continuations:
        assert re.fullmatch("(19|20)[0-9]{2}", text)
    sums = Grammar(engine, ebnf='root ::= term ("+" term)*\nterm ::= "a" | "b" | "(" root ")"')
    out = engine.generate(PROMPTS[:3], max_new_tokens=30, logits_processor=[sums], seed=4)
    for text, reason in zip(out.continuations, out.finish_reasons):
        assert set(text) <= set("ab+()") and "++" not in text
        assert reason == "length" or text.count("(") == text.count(")")
    (cut,) = engine.generate(["a"], max_new_tokens=2, logits_processor=[year]).continuations
    assert re.match("(19|20)[0-9]*", cut + "19"[len(cut) :])


def test_a_foreign_processor_of_xgrammar_in_a_batch(engine: Scone) -> None:
    """xgrammar's own class keeps a matcher for each row and insists on being shown each token once."""
    from xgrammar.contrib.hf import LogitsProcessor

    info = xgrammar.TokenizerInfo.from_huggingface(engine.lm_tokenizer, vocab_size=engine.parts.lm.vocabulary)
    compiled = xgrammar.GrammarCompiler(info).compile_regex("(19|20)[0-9]{2}|never")
    out = engine.generate(PROMPTS, max_new_tokens=9, logits_processor=[LogitsProcessor(compiled)])
    assert all(re.fullmatch("(19|20)[0-9]{2}|never", text) for text in out.continuations)


def test_particles_and_beams(engine: Scone, schema: Grammar) -> None:
    some = engine.with_config(particles=4, resample=1.0, keep="sample", lookahead=Nothing())
    out = some.generate(PROMPTS[:2], max_new_tokens=70, logits_processor=[schema])
    for text in out.continuations:
        jsonschema.validate(json.loads(text), SCHEMA)
    inputs = engine.lm_tokenizer("the movie was", return_tensors="pt")
    options = {"max_new_tokens": 70, "num_beams": 3, "do_sample": False}
    ids = engine.lm.generate(**inputs, **options, logits_processor=[schema])[0, inputs["input_ids"].shape[1] :]
    jsonschema.validate(json.loads(engine.lm_tokenizer.decode(ids, skip_special_tokens=True)), SCHEMA)


def test_a_text_that_leaves_its_grammar_ends(engine: Scone) -> None:
    """Somebody after the grammar forces a token that is not legal."""
    year, wrong = Grammar(engine, regex="[0-9]{8}"), engine.parts.lm.encode("x")[-1]

    def force(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return (
            torch.full_like(scores, -torch.inf).index_fill(1, torch.tensor([wrong]), 0.0)
            if ids[0, -1] != wrong
            else scores
        )

    out = engine.generate(["a"], max_new_tokens=9, logits_processor=[year, force])
    assert out.continuations == ["x"] and out.finish_reasons == ["stop"]


@pytest.mark.parametrize(
    "given, message",
    [
        ({}, "one of json_schema, regex and ebnf must be given, got none"),
        ({"regex": "a", "ebnf": "b"}, "one of json_schema, regex and ebnf must be given, got regex, ebnf"),
        ({"regex": "(a"}, r"regex must be one that xgrammar can compile, got '\(a': "),
        ({"ebnf": "root ::= other"}, "ebnf must be one that xgrammar can compile, got "),
        ({"json_schema": "{"}, "json_schema must be one that xgrammar can compile, got "),
    ],
)
def test_what_is_no_grammar(engine: Scone, given: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Grammar(engine, **given)


def test_a_field_of_json() -> None:
    review = JsonField("review")
    assert review('{"stars": 1, "review":"so so", "by": "me"}') == "so so"
    assert review('like {"review": "dull"} write {"review": "g') == "g"
    assert review('{"review": "a \\u00e9\\n') == "a é\n"
    assert review('{"review": "a \\u00') == "a " and review('{"review": "a \\') == "a "
    assert review('{"preview": "no"') == "" and review("") == ""
    assert JsonField('a "b"')('{"a \\"b\\"": "c"') == "c"
    with pytest.raises(InputError, match="name must be that of a field, got ''"):
        JsonField("")


LOOKAHEADS = [
    Nothing(), Expectation(2), Paths(tokens=2, count=1), Masked(2), Gibbs(tokens=2, iterations=1),
    Gibbs(tokens=2, estimate=AtMean()), Gibbs(tokens=2, estimate=Taylor()),
]  # fmt: skip


@pytest.mark.parametrize("lookahead", LOOKAHEADS, ids=lambda way: repr(way)[:40])
def test_the_verifier_may_be_shown_one_field(engine: Scone, positive: Verifier, lookahead) -> None:
    """Before and after the field nothing is steered; within it q is that of the field alone."""
    field = positive.reading(JsonField("review"))
    shown = Scone(
        (engine.lm, engine.lm_tokenizer), tiny.masked_lm("bert"), field, engine.config.replace(lookahead=lookahead)
    )
    for settled in ('{"review": "good", "stars": ', '{"stars": '):
        step = shown.next_token(settled, max_new_tokens=9)
        assert torch.allclose(step.q, positive.score(JsonField("review")(settled)), atol=1e-5)
        assert torch.allclose(step.log_p_star, step.log_p.log_softmax(-1), atol=1e-4)
    inside = shown.next_token('{"review": "good', max_new_tokens=9)
    assert inside.q.std() > 1e-4
    if lookahead == Nothing():
        texts = ["good" + engine.lm_tokenizer.decode([int(token)]) for token in inside.tokens]
        assert torch.allclose(inside.q, positive.score(texts), atol=1e-5)


def test_readings_combine(positive: Verifier) -> None:
    texts = ["good film: the river", "a: b"]
    head = [text.partition(":")[0] for text in texts]
    view = lambda text: text.partition(":")[0]  # noqa: E731
    assert torch.allclose((~positive).reading(view).score(texts), 1 - positive.score(head))
    both = (positive & (~positive).with_strength(3)).reading(view)
    assert [term.strength for term in both.terms] == [1, 3]
    assert torch.allclose(both.score(texts), positive.score(head) * (1 - positive.score(head)))
    heavy = positive.with_strength(5).reading(view)
    assert heavy.strength == 5 and not isinstance(heavy, EmbeddingVerifier)
    plain = Verifier.from_callable(lambda texts: [len(text) / 99 for text in texts]).reading(view)
    assert not plain.reads_embeddings and torch.allclose(plain.score(texts), torch.tensor([len(h) / 99 for h in head]))
    with pytest.raises(InputError, match="view must be a function from a text to the part that is judged, got 3"):
        positive.reading(3)
    with pytest.raises(InputError, match="view must return a string, got None"):
        positive.reading(lambda text: None).score(["a"])
