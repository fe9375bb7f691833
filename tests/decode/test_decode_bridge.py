"""Three vocabularies: surfaces, alignment, bridge tables."""

from __future__ import annotations

import itertools

import pytest
import tiny
import torch
from tokenizers import Tokenizer, models

from scone.decode import Scone, SconeConfig, Verifier
from scone.lm import MaskedLM, same_vocabulary
from scone.lookahead import AtMean, AtSample, Expectation, Gibbs, Masked, Masks, Nothing, Taylor
from scone.lookahead.chains import begin
from scone.verifier import Bridge, Surfaces
from scone.verifier.bridge import overlaps

HARD = [
    "smile 🙂 and wave 👋🏽 !",
    "naïve café owners in Zürich don't like déjà vu",
    "def f(x):\n    return x_1 + 2  # code\n",
    "漢字 と かな",
    "the movie was a great film",
]
PAIRS = [p for p in itertools.product(tiny.TOKENIZERS, repeat=2) if p[0] != p[1]]


@pytest.mark.parametrize("text", HARD)
def test_byte_level_surfaces_write_the_text_back(text: str) -> None:
    """Whatever the bytes of a character are spread over, the text comes out as it went in."""
    tok = tiny.byte_bpe(masked=True)
    ids = tok(text, add_special_tokens=False)["input_ids"]
    written, spans = Surfaces(tok).write(ids)
    assert written == text
    assert spans[0][0] == 0 and spans[-1][1] == len(text)
    assert all(a[1] == b[0] for a, b in itertools.pairwise(spans))


@pytest.mark.parametrize("name", list(tiny.TOKENIZERS))
def test_surfaces_read_back_as_the_same_tokens(name: str) -> None:
    """A future that is written out as text and read again by the same tokenizer is the same future."""
    tok = tiny.TOKENIZERS[name]()
    surfaces = Surfaces(tok)
    for text in HARD[:3] + HARD[4:]:
        ids = [i for i in tok(text, add_special_tokens=False)["input_ids"] if i not in tok.all_special_ids]
        written, _ = surfaces.write(ids)
        again = [i for i in tok(written, add_special_tokens=False)["input_ids"] if i not in tok.all_special_ids]
        assert tok.decode(again).split() == tok.decode(ids).split()


def test_a_lone_byte_is_no_text() -> None:
    """A token that ends inside a character has no span of its own; bytes that never complete one vanish."""
    tok = tiny.byte_bpe(masked=True)
    ids = tok("🙂", add_special_tokens=False)["input_ids"]
    assert len(ids) > 1
    surfaces = Surfaces(tok)
    text, spans = surfaces.write(ids)
    assert text == "🙂" and spans[:-1] == [(0, 0)] * (len(ids) - 1) and spans[-1] == (0, 1)
    assert surfaces.write(ids[:1]) == ("", [(0, 0)])
    the = tok(" the", add_special_tokens=False)["input_ids"]
    assert surfaces.write([*ids[:1], *the])[0] == " the"


def test_special_tokens_have_no_surface() -> None:
    for make in tiny.TOKENIZERS.values():
        tok = make()
        assert all(Surfaces(tok)[i] == b"" for i in tok.all_special_ids)


def test_ids_that_no_token_uses_have_no_surface() -> None:
    vocab = {"[UNK]": 0, "the": 1, "movie": 7}
    tok = tiny._finish(Tokenizer(models.WordLevel(vocab, unk_token="[UNK]")), {"unk_token": "[UNK]"}, None)
    surfaces = Surfaces(tok)
    assert len(surfaces) == 8 and surfaces[4] == b"" and surfaces[7] == b" movie"
    assert surfaces.index == {b" the": 1, b" movie": 7}


def test_leading_spaces_show() -> None:
    for name in ("wordpiece", "byte_bpe", "unigram", "words"):
        tok = tiny.TOKENIZERS[name]()
        ids = tok("the movie", add_special_tokens=False)["input_ids"]
        written, _ = Surfaces(tok).write(ids)
        assert written.lstrip() == "the movie"


def test_overlaps_add_up_to_whole_tokens() -> None:
    spans, places = [(0, 3), (3, 7), (7, 12)], [(0, 1), (1, 5), (5, 12)]
    found = overlaps(spans, places)
    for j in range(len(places)):
        assert sum(share for _, k, share in found if k == j) == pytest.approx(1)


@pytest.mark.parametrize(("source", "target"), PAIRS, ids=[f"{a}-{b}" for a, b in PAIRS])
def test_bridge_between_families(source: str, target: str) -> None:
    """Every future position that is text is aligned, with shares that never pass one whole verifier token."""
    tok, other = tiny.TOKENIZERS[source](), tiny.TOKENIZERS[target]()
    assert not same_vocabulary(tok, other)
    mlm = MaskedLM(*tiny.masked_lm("bert", tok))
    verifier = Verifier.from_module(lambda e, m: e.mean((1, 2)).sigmoid(), other, torch.randn(len(other), 6))
    surfaces = Surfaces(tok)
    bridge = Bridge(tok, len(tok), surfaces, verifier)
    assert bridge.table.shape == (len(tok), 6) and bridge.table.isfinite().all()
    text = "the movie was"
    future = [
        i for i in tok(" a great film 🙂 naïve", add_special_tokens=False)["input_ids"] if i not in tok.all_special_ids
    ]
    state = begin(mlm, [text], [mlm.encode(text)], [future], torch.tensor([0]))
    row, col = (state.offset >= 0).nonzero(as_tuple=True)
    view = bridge.view(state.ids, state.mask, state.offset, row, col, state.texts)
    written, spans = surfaces.write(future)
    expected = other(text + written, add_special_tokens=False)["input_ids"]
    assert view.ids[0, len(verifier.opening) : len(verifier.opening) + len(expected)].tolist() == expected
    shares = torch.zeros(view.ids.shape[1]).index_add(0, view.position, view.share)
    assert (shares <= 1 + 1e-5).all() and shares.sum() > 0
    aligned = set(view.entry.tolist())
    visible = {i for i, (a, b) in enumerate(spans) if written[a:b].strip()}
    assert visible <= aligned


def test_a_bridge_to_a_verifier_that_pads_left() -> None:
    """Futures of several lengths, and a text that does not fit: each entry's position holds a token of the verifier's that overlaps it."""
    tok, other = tiny.wordpiece(), tiny.byte_bpe(masked=True)
    mlm = MaskedLM(*tiny.masked_lm("bert", tok))
    for left, limit in itertools.product((False, True), (512, 14)):
        verifier = Verifier.from_module(lambda e, m: e.mean((1, 2)).sigmoid(), other, torch.randn(len(other), 6))
        verifier.pads_left, verifier.max_length = left, limit
        texts, futures = ["the movie was a nice old picture", "a"], [mlm.encode("great film was"), mlm.encode("day")]
        state = begin(mlm, texts, mlm.encode_batch(texts), futures, torch.arange(2))
        row, col = (state.offset >= 0).nonzero(as_tuple=True)
        view = Bridge(tok, len(tok), Surfaces(tok), verifier).view(
            state.ids, state.mask, state.offset, row, col, state.texts
        )
        found: dict[int, str] = {}
        for entry, position in zip(view.entry.tolist(), view.position.tolist()):
            found[entry] = found.get(entry, "") + other.decode([int(view.ids[row[entry], position])])
        assert [found[i].strip() for i in range(len(row))] == [
            tok.decode([int(state.ids[r, c])]) for r, c in zip(row, col)
        ]
        assert bool(view.mask[row[view.entry], view.position].all())


def test_bridge_table_takes_the_same_word_for_the_same_word() -> None:
    tok, other = tiny.wordpiece(), tiny.byte_bpe(masked=True)
    table = torch.randn(len(other), 6)
    bridge = Bridge(tok, len(tok), Surfaces(tok), Verifier.from_module(lambda e, m: e.mean((1, 2)), other, table))
    movie, (theirs,) = tok.convert_tokens_to_ids("was"), other(" was", add_special_tokens=False)["input_ids"]
    assert torch.equal(bridge.table[movie], table[theirs])
    assert bridge.table[tok.mask_token_id].abs().sum() == 0
    pieces = other(" wonderful", add_special_tokens=False)["input_ids"]
    longer = tok(" wonderful", add_special_tokens=False)["input_ids"]
    if len(longer) == 1 and len(pieces) > 1:
        assert torch.allclose(bridge.table[longer[0]], table[pieces].mean(0), atol=1e-6)


def test_table_follows_a_padded_vocabulary() -> None:
    """Heads with more rows than the tokenizer has tokens, and with fewer."""
    tok = tiny.wordpiece()
    verifier = Verifier.from_module(lambda e, m: e.mean((1, 2)), tok, torch.randn(len(tok), 6))
    assert Bridge(tok, len(tok) + 7, Surfaces(tok), verifier).table.shape == (len(tok) + 7, 6)
    assert Bridge(tok, len(tok) - 3, Surfaces(tok), verifier).table.shape == (len(tok) - 3, 6)
    same = Bridge(tok, len(tok), Surfaces(tok), verifier).table
    assert same.data_ptr() == verifier.table.data_ptr()


THREE = {
    "position": Gibbs(tokens=5, chains=2, estimate=Taylor()),
    "mean form": Gibbs(tokens=5, chains=2, estimate=Taylor(form="mean", linearise="prob", marginals="unmasked")),
    "at the mean": Gibbs(tokens=5, start=Masks(), estimate=AtMean()),
    "at the sample": Gibbs(tokens=5, start=Masks(), estimate=AtSample()),
    "expected": Masked(tokens=5),
}


@pytest.mark.parametrize("way", THREE)
@pytest.mark.parametrize("target", ["byte_bpe", "unigram", "characters", "words"])
def test_engine_over_three_vocabularies(target: str, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The LM's, the masked LM's and the verifier's: what the masked LM draws or expects is read by the verifier."""
    read: list[torch.Tensor] = []
    view, hidden = Bridge.view, MaskedLM.hidden
    passes: list[int] = []

    def watch(*args: object) -> object:
        found = view(*args)
        read.append(found.share)
        return found

    monkeypatch.setattr(Bridge, "view", watch)
    monkeypatch.setattr(
        MaskedLM, "hidden", lambda mlm, ids, *rest: (passes.append(len(ids)), hidden(mlm, ids, *rest))[1]
    )
    verifier = Verifier(*tiny.classifier(tiny.TOKENIZERS[target]()), target="positive")
    engine = Scone(
        tiny.gpt2(),
        tiny.masked_lm("bert"),
        verifier,
        SconeConfig(particles=1, lookahead=THREE[way], top_k=4, min_mass=0),
    )
    assert not engine.parts.bridge(verifier).identical
    out = engine.generate(["naïve café 🙂", "the movie"], max_new_tokens=3, seed=1)
    assert out.scores.isfinite().all() and passes
    assert len(read) == (0 if way == "expected" else 2) and all(len(share) for share in read if way != "at the sample")
    assert engine.generate(["the movie"], max_new_tokens=3, seed=1).token_ids == out.token_ids[1:]
    now = engine.with_config(lookahead=Nothing()).generate(["naïve café 🙂", "the movie"], max_new_tokens=3, seed=1)
    assert not torch.allclose(out.trace[0][0].q, now.trace[0][0].q, atol=1e-4)


@pytest.mark.parametrize("target", ["byte_bpe", "unigram", "characters", "words"])
def test_the_lms_expectation_is_read_by_the_verifiers_embeddings(target: str) -> None:
    """The LM's own table into the verifier's vocabulary; no masked LM is there."""
    verifier = Verifier(*tiny.classifier(tiny.TOKENIZERS[target]()), target="positive")
    engine = Scone(
        tiny.gpt2(), None, verifier, SconeConfig(particles=1, lookahead=Expectation(tokens=2), top_k=4, min_mass=0)
    )
    (table,) = engine.parts.lm_tables
    assert table.shape == (engine.parts.lm.vocabulary, verifier.table.shape[1])
    (was,) = engine.lm_tokenizer(" was", add_special_tokens=False)["input_ids"]
    theirs = verifier.tokenizer(" was", add_special_tokens=False)["input_ids"]
    assert torch.allclose(table[was], verifier.table[theirs].mean(0), atol=1e-5)
    q = engine.next_token("the movie", max_new_tokens=5).q
    now = engine.with_config(lookahead=Nothing()).next_token("the movie", max_new_tokens=5).q
    assert q.isfinite().all() and not torch.allclose(q, now, atol=1e-4)
