"""What generation tells of itself: each candidate's text, what was read behind it, and φ as the text grew."""

from __future__ import annotations

import pytest
import tiny
import torch

from scone.decode import Scone, SconeConfig
from scone.lm import CausalLM
from scone.lookahead import AtSample, Expectation, Gibbs, Masked, Masks, Mix, Nothing, Paths
from scone.text import Writer

PROMPT = ["the movie was", "what a day"]
GIBBS = Gibbs(tokens=4, start=Masks(warmup=0), chains=2, iterations=2, thin=1, estimate=AtSample())
READ = {  # how many texts a lookahead reads behind a candidate
    "Expectation": (Expectation(tokens=3), 1),
    "Paths": (Paths(tokens=3, count=2), 2),
    "Masked": (Masked(tokens=3), 1),
    "Gibbs": (GIBBS, 4),
}


@pytest.fixture(scope="module")
def quiet(engine) -> Scone:
    return engine.with_config(SconeConfig(particles=1, min_mass=0, top_k=4, lookahead=Expectation(tokens=2)))


@pytest.mark.parametrize("name", READ)
def test_explained_steps_say_what_was_read_behind_each_candidate(engine, name):
    lookahead, count = READ[name]
    own = engine.with_config(SconeConfig(particles=1, min_mass=0, top_k=4, lookahead=Mix(lookahead, Nothing())))
    out = own.generate(PROMPT, max_new_tokens=4, explain=True)
    plain = own.generate(PROMPT, max_new_tokens=4)
    assert out.token_ids == plain.token_ids  # looking on changes nothing
    assert not any(step.futures for steps in plain.trace for step in steps)
    for steps in out.trace:
        for step in steps[:-1]:
            assert len(step.futures) == len(step.tokens) == len(step.pieces) == len(step.judged)
            for futures in step.futures:
                assert len(futures) in (0, count)  # none where the text would end
                assert all(future.by == name for future in futures)
        assert any(future.text.strip() for step in steps for futures in step.futures for future in futures)


def test_drawn_paths_are_told_to_the_candidate_they_follow(engine, monkeypatch):
    """What is told is what the verifier read: text, candidate and path."""
    read = []
    own = engine.with_config(
        SconeConfig(particles=1, min_mass=0, top_k=4, lookahead=Paths(tokens=3, count=2, judged="drawn", coupled=False))
    )
    score = type(own.parts).score
    monkeypatch.setattr(type(own.parts), "score", lambda parts, texts: (read.extend(texts), score(parts, texts))[1])
    out = own.generate(PROMPT[0], max_new_tokens=2, explain=True)
    step = out.trace[0][0]
    told = [PROMPT[0] + piece + future.text for piece, futures in zip(step.pieces, step.futures) for future in futures]
    assert told == read[:8] and len(set(told)) > 4  # the first question: two paths each for four candidates


def test_explained_steps_have_the_score_of_the_text_so_far(quiet):
    out = quiet.generate(PROMPT, max_new_tokens=5, explain=True)
    for prompt, continuation, steps, score in zip(PROMPT, out.continuations, out.trace, out.scores):
        grown = [prompt + continuation[: step.end] for step in steps]
        torch.testing.assert_close(torch.tensor([step.score for step in steps]), quiet.verifier.score(grown))
        assert steps[-1].score == pytest.approx(float(score), abs=1e-5)
    for told, text in zip(out.trace.told, out.trace.to_dict()["texts"]):
        assert "".join(step["text"] for step in text["steps"]) == told.continuation


def test_a_stop_string_is_cut_from_what_the_steps_add(quiet):
    plain = quiet.with_config(strength=0)  # otherwise the stop would be judged, and change the text
    stop = plain.generate(PROMPT[0], max_new_tokens=8, seed=3).continuations[0][4:7]
    out = plain.generate(PROMPT[0], max_new_tokens=8, seed=3, stop=stop, explain=True)
    assert out.finish_reasons == ["stop"]
    (text,) = out.trace.to_dict()["texts"]
    assert "".join(step["text"] for step in text["steps"]) == text["continuation"] == out.continuations[0]


def test_candidates_that_were_not_looked_at_say_so(engine):
    own = engine.with_config(SconeConfig(particles=1, min_mass=0.2, top_k=6, lookahead=Expectation(tokens=2)))
    found = [step for steps in own.generate(PROMPT, max_new_tokens=4, seed=1, explain=True).trace for step in steps]
    for step in found:
        share = step.log_p.softmax(-1)
        live = share >= 0.2
        expected = live if int(live.sum()) > 1 else torch.zeros_like(live)
        assert step.judged.equal(expected)
    assert any(step.judged.any() and not step.judged.all() for step in found)


def test_the_trace_of_particles_is_that_of_the_text_kept(quiet):
    out = quiet.with_config(particles=3).generate(PROMPT, max_new_tokens=5, explain=True)
    for ids, steps, told in zip(out.token_ids, out.trace, out.trace.told):
        assert [step.token for step in steps] == ids
        assert steps[-1].end == len(told.continuation)


def test_pieces_show_spaces_special_tokens_and_bytes():
    lm = CausalLM(*tiny.llama())
    writer, tokenizer = Writer(lm), tiny.byte_bpe()
    end, byte = tokenizer.eos_token_id, tokenizer.convert_tokens_to_ids("Ã")
    assert writer.pieces([end, byte]) == ("<|end|>", "Ã")
    spaced = next(
        token for kept, token in sorted(tokenizer.get_vocab().items()) if kept.startswith("Ġ") and len(kept) > 1
    )
    assert writer.pieces([spaced])[0].startswith(" ")
    pieced = tiny.unigram()
    lm.tokenizer = pieced
    words = [token for kept, token in pieced.get_vocab().items() if kept == "▁movie"]
    assert writer.pieces(words) == (" movie",)
    assert writer.pieces([10**6]) == ("",)  # a row of the head that no token has


def test_next_token_shows_its_candidates(quiet):
    shown = quiet.next_token("the movie was")._repr_html_()
    assert shown.count("<tr>") == 5 and "→" not in shown
