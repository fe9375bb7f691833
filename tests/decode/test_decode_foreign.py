"""What people have already is a verifier: functions, pipelines of scikit-learn and transformers, CrossEncoders."""

from __future__ import annotations

import pytest
import tiny
import torch

from scone.decode import Scone, SconeConfig, Verifier
from scone.errors import InputError, LabelError, ModelError
from scone.lookahead import Nothing, Paths

TEXTS = ["the movie was good", "a terrible picture"]
QUICK = SconeConfig(particles=1, min_mass=0, lookahead=Nothing())


def engine_of(verifier, **options) -> Scone:
    return Scone.from_pretrained(tiny.llama(), None, verifier, config=QUICK, **options)


def test_a_function_of_texts() -> None:
    def short(texts: list[str]) -> list[float]:
        return [1 / (1 + len(text)) for text in texts]

    for engine in (Scone(tiny.llama(), None, short, QUICK), engine_of(short)):
        assert torch.allclose(engine.verifier.score(TEXTS), torch.tensor(short(TEXTS)))
        assert len(engine.generate(TEXTS, max_new_tokens=2)) == 2
    assert isinstance(Scone(tiny.llama(), None, short).lookahead, Paths)  # what reads texts gets drawn tokens
    assert (Verifier.of(short) & ~Verifier.of(short)).score(TEXTS).shape == (2,)
    with pytest.raises(InputError, match="target must be None where verifier is a function, got 1"):
        engine_of(short, target=1)


def test_a_pipeline_of_scikit_learn() -> None:
    text = pytest.importorskip("sklearn.feature_extraction.text", reason="needs scikit-learn")
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.svm import LinearSVC

    train = ["good film", "nice river", "bad plot", "terrible food"]
    pipe = make_pipeline(text.TfidfVectorizer(), LogisticRegression()).fit(train, ["well", "well", "ill", "ill"])
    expected = torch.tensor(pipe.predict_proba(TEXTS), dtype=torch.float32)
    assert torch.allclose(engine_of(pipe).verifier.score(TEXTS), expected[:, 1])
    assert torch.allclose(engine_of(pipe, target="ill").verifier.score(TEXTS), expected[:, 0])
    assert len(engine_of(pipe).generate(TEXTS, max_new_tokens=2)) == 2
    three = make_pipeline(text.TfidfVectorizer(), LogisticRegression()).fit(train, [0, 1, 2, 2])
    assert Verifier.of(three, target=2).score(TEXTS).shape == (2,)
    with pytest.raises(LabelError, match="target must be one of 0, 1, 2, got None"):
        engine_of(three)
    with pytest.raises(ModelError, match="verifier must have predict_proba, got LinearSVC without"):
        engine_of(LinearSVC())
    with pytest.raises(ModelError, match="must have been fitted, got LogisticRegression without classes_"):
        engine_of(LogisticRegression())


def test_a_cross_encoder(tmp_path) -> None:
    library = pytest.importorskip("sentence_transformers", reason="needs sentence-transformers")
    for labels in (2, 1):
        model, tokenizer = tiny.classifier(labels=labels, seed=3)
        folder = str(tmp_path / str(labels))
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        encoder = library.CrossEncoder(folder, device="cpu")
        options = {"target": "positive"} if labels == 2 else {}
        engine = engine_of(encoder, **options)
        ours = Verifier(model, tokenizer, target=labels - 1)
        assert torch.allclose(engine.verifier.score(TEXTS), ours.score(TEXTS), atol=1e-5)
        assert engine.verifier.reads_embeddings
    with pytest.raises(InputError, match="one of 'negative', 'positive', got None"):
        Verifier.of(library.CrossEncoder(str(tmp_path / "2"), device="cpu"))


def test_a_pipeline_of_transformers() -> None:
    from transformers import pipeline

    model, tokenizer = tiny.classifier()
    pipe = pipeline("text-classification", model=model, tokenizer=tokenizer, device="cpu")
    expected = [next(e["score"] for e in one if e["label"] == "positive") for one in pipe(TEXTS, top_k=None)]
    assert torch.allclose(engine_of(pipe, target="positive").verifier.score(TEXTS), torch.tensor(expected), atol=1e-5)


def test_what_cannot_judge_texts() -> None:
    model, tokenizer = tiny.classifier()
    with pytest.raises(ModelError, match=r"must come with its tokenizer, as \(model, tokenizer\), got BertFor"):
        engine_of(model)
    for thing, name in ((3, "int"), (None, "NoneType"), (Verifier, "<class 'scone.verifier.kinds.Verifier'>")):
        with pytest.raises(ModelError, match=f"verifier must be a Verifier, .* got {name}"):
            Scone(tiny.llama(), None, thing)
    with pytest.raises(InputError, match="target must be None where verifier is a ready object, got 1"):
        engine_of(Verifier(model, tokenizer, target=0), target=1)
    with pytest.raises(InputError, match="one of 'negative', 'positive', got None"):
        engine_of((model, tokenizer))
