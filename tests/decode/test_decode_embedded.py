"""The examples of the design, word for word, on the models that come with scone."""

from __future__ import annotations

import pytest

from scone.decode import Scone, SconeConfig, Verifier
from scone.lm import MaskedLM
from scone.lookahead import AtMean, Carried, Gibbs, Lookahead, Masked, Masks, Taylor


@pytest.fixture(scope="module")
def engine() -> Scone:
    return Scone.from_pretrained(
        lm="embedded", masked_lm="embedded", verifier="embedded:sentiment", target="positive", config=SconeConfig()
    )


def test_the_design_runs(engine: Scone) -> None:
    out = engine.generate(["The movie was"], max_new_tokens=4, num_return_sequences=2, seed=0)
    assert len(out.texts) == len(out.continuations) == len(out.token_ids) == len(out.trace) == 2
    assert out.scores.tolist() == pytest.approx(engine.verifier.score(out.texts).tolist(), abs=1e-6)
    step = engine.next_token("The movie was", max_new_tokens=25, seed=0)
    assert step.tokens.shape == step.log_p.shape == step.q.shape == step.log_p_star.shape == (10,)
    assert "".join(engine.stream("The movie was", max_new_tokens=4, seed=0)) == out.continuations[0]
    lm, inputs = engine.lm, engine.lm_tokenizer("The movie was", return_tensors="pt")
    assert lm.generate(**inputs, custom_generate=engine.custom_generate, max_new_tokens=2).shape[0] == 1
    assert lm.generate(**inputs, logits_processor=[engine.logits_processor()], max_new_tokens=2).shape[0] == 1


def test_the_default_does_without_a_masked_lm(engine: Scone, monkeypatch: pytest.MonkeyPatch) -> None:
    """None is read from disk for it, and none is needed."""
    from scone import embedded

    monkeypatch.setattr(embedded, "load_masked_lm", lambda: pytest.fail("a masked LM that nobody needs"))
    none = Scone.from_pretrained((engine.lm, engine.lm_tokenizer), verifier=engine.verifier)
    assert none.next_token("The movie was", max_new_tokens=4).q.isfinite().all()
    assert Scone((engine.lm, engine.lm_tokenizer), None, engine.verifier).masked_lm is None


@pytest.mark.parametrize(
    "lookahead",
    [
        Gibbs(tokens=4, iterations=1, estimate=Taylor()),
        Gibbs(tokens=4, start=Carried(warmup=1), estimate=AtMean()),
        Gibbs(tokens=4, start=Masks(warmup=1), estimate=Taylor(form="mean", linearise="prob")),
        Masked(tokens=4),
    ],
    ids=["from a rollout", "carried on", "from masks", "expected"],
)
def test_the_masked_lm_has_its_say(engine: Scone, lookahead: Lookahead, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is run, and what it says of the future tells a kind beginning from an unkind one."""
    ran: list[int] = []
    hidden = MaskedLM.hidden
    monkeypatch.setattr(MaskedLM, "hidden", lambda mlm, ids, *rest: (ran.append(len(ids)), hidden(mlm, ids, *rest))[1])
    chains = engine.with_config(lookahead=lookahead)
    out = chains.generate(["The food was"], max_new_tokens=2, seed=0)
    assert len(out.token_ids[0]) == 2 and ran
    words = [engine.lm_tokenizer(word)["input_ids"][0] for word in (" delicious", " terrible")]

    def either(input_ids, scores):
        kept = scores.new_full(scores.shape, float("-inf"))
        kept[:, words] = scores.new_tensor([1.0, 0.0])
        return kept

    step = chains.next_token("The food was", max_new_tokens=9, logits_processor=[either])
    assert step.tokens.tolist() == words and step.q[0] > step.q[1] + 0.1


def test_verifiers_compose(engine: Scone) -> None:
    toxic = Verifier.from_pretrained("embedded:toxicity", target="toxic", strength=2)
    parts = (engine.lm, engine.lm_tokenizer), (engine.masked_lm, engine.masked_lm_tokenizer)
    both = Scone(*parts, engine.verifier & ~toxic)
    assert [term.strength for term in both.verifier.terms] == [1.0, 2.0]
    step = both.next_token("You are such a", max_new_tokens=6)
    assert ((step.q > 0) & (step.q < 1)).all()


def test_the_verifier_prefers_what_it_should(engine: Scone) -> None:
    """At a last step control takes the kind word where the LM could take either."""
    ids = {word: engine.lm_tokenizer(word)["input_ids"][0] for word in (" wonderful", " terrible")}

    def either(input_ids, scores):
        kept = scores.new_full(scores.shape, float("-inf"))
        kept[:, list(ids.values())] = 0.0
        return kept

    step = engine.next_token("The food was", max_new_tokens=1, logits_processor=[either])
    p = dict(zip(step.tokens.tolist(), step.log_p_star.exp().tolist()))
    assert p[ids[" wonderful"]] > 0.9
