"""generate, stream and next_token: batches, seeds, ends of texts, chats, traces."""

from __future__ import annotations

import copy
import subprocess
import sys

import pytest
import tiny
import torch

from scone.decode import Scone, SconeConfig, Verifier
from scone.lm import CausalLM, MaskedLM
from scone.lookahead import (
    AtMean,
    AtSample,
    Carried,
    Expectation,
    Gibbs,
    Masked,
    Masks,
    Mix,
    Nothing,
    Rollout,
    Taylor,
)
from scone.loop import Decision
from scone.processors import OneByOne
from scone.verifier import EmbeddingVerifier

PROMPTS = ["the movie was", "a nice day", "what a wonderful old picture of the river it is"]


@pytest.mark.parametrize("lm", [tiny.llama, tiny.gpt2], ids=["rotary", "absolute"])
@pytest.mark.parametrize(
    ("start", "estimate"),
    [
        (Carried(), Taylor(scale=0.5)),
        (Carried(), AtMean()),
        (Rollout(), Taylor(scale=0.5)),
        (Rollout(), AtSample()),
        (Masks(), AtSample()),
    ],
    ids=lambda option: type(option).__name__,
)
def test_a_prompt_does_not_notice_its_batch(positive: Verifier, lm: object, start: object, estimate: object) -> None:
    lookahead = Gibbs(tokens=5, start=start, block=2, iterations=2, chains=2, estimate=estimate)
    config = SconeConfig(particles=1, lookahead=lookahead, min_mass=0, top_k=4)
    engine = Scone(lm(), tiny.masked_lm("bert"), positive, config)
    together = engine.generate(PROMPTS, max_new_tokens=4, num_return_sequences=2, seed=6)
    for i, prompt in enumerate(PROMPTS):
        alone = engine.generate([prompt], max_new_tokens=4, num_return_sequences=2, seed=6)
        assert alone.token_ids == together.token_ids[2 * i : 2 * i + 2]
        for a, b in zip(alone.trace[0], together.trace[2 * i]):
            assert torch.allclose(a.q, b.q, atol=1e-4)


@pytest.mark.parametrize("lm", [tiny.llama, tiny.gpt2], ids=["rotary", "absolute"])
def test_what_the_lookahead_read_is_not_read_again(
    positive: Verifier, lm: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the LM begins the lookahead it has read each candidate: the same texts, and fewer passes of the LM."""
    lookahead = Gibbs(tokens=4, start=Rollout(tokens=1), iterations=0)
    config = SconeConfig(particles=1, lookahead=lookahead, min_mass=0.15, top_k=4, strength=1)
    engine = Scone(lm(), tiny.masked_lm("bert"), positive, config)
    prompts = [*PROMPTS, *PROMPTS[:2]]
    read: list[int] = []  # rows of each pass that commits
    step = CausalLM.step
    monkeypatch.setattr(
        CausalLM,
        "step",
        lambda lm, state, tokens, **how: (read.append(len(tokens)), step(lm, state, tokens, **how))[1],
    )
    reused = engine.generate(prompts, max_new_tokens=6, seed=3)
    passes = sum(read)
    read.clear()
    monkeypatch.setattr(Decision, "row_after", lambda *args: None)
    again = engine.generate(prompts, max_new_tokens=6, seed=3)
    assert again.token_ids == reused.token_ids
    assert passes < sum(read)
    for one, other in zip(reused.trace, again.trace):
        for a, b in zip(one, other):
            torch.testing.assert_close(a.log_p, b.log_p, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(("tokens", "masks"), [(None, 0), (2, 3)])
def test_the_masked_lm_goes_on_where_the_lm_stops(
    engine: Scone, tokens: int | None, masks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With `iterations=0` the LM's words stay, and what it did not write is drawn by the masked LM."""
    lookahead = Gibbs(tokens=5, start=Rollout(tokens=tokens), iterations=0, estimate=AtSample())
    seen = []
    run = Gibbs._run

    def watch(gibbs, parts, start, step):
        samples = run(gibbs, parts, start, step)
        seen.append((start, samples))
        return samples

    monkeypatch.setattr(Gibbs, "_run", watch)
    engine.with_config(lookahead=lookahead).next_token("the movie was", max_new_tokens=12, seed=0)
    ((start, ((sample,), _)),) = seen
    mask_id = engine.parts.masked_lm.mask_id
    written = start.ids != mask_id
    assert bool((sample.ids != mask_id).all())
    assert torch.equal(sample.ids[written], start.ids[written])
    assert int((~written).sum(1).median()) == masks  # one token of the LM may be two of the masked LM


def test_copies_differ_and_seeds_repeat(engine: Scone) -> None:
    out = engine.generate(["the movie was"], max_new_tokens=5, num_return_sequences=3, seed=0)
    assert len({tuple(ids) for ids in out.token_ids}) == 3
    assert engine.generate(["the movie was"], max_new_tokens=5, num_return_sequences=3, seed=0).texts == out.texts
    assert engine.generate(["the movie was"], max_new_tokens=5, seed=0).texts == out.texts[:1]
    assert engine.generate(["the movie was"], max_new_tokens=5, seed=1).texts != out.texts[:1]


def test_seeds_repeat_across_processes_and_thread_counts(engine: Scone) -> None:
    program = """
import sys, torch
torch.set_num_threads(int(sys.argv[1]))
sys.path.insert(0, sys.argv[2])
import tiny
from scone.decode import Scone, SconeConfig, Verifier
from scone.lookahead import Carried, Gibbs, Taylor
chains = Gibbs(tokens=6, start=Carried(), block=3, iterations=2, estimate=Taylor())
config = SconeConfig(particles=1, min_mass=0, top_k=6, lookahead=chains)
engine = Scone(tiny.llama(), tiny.masked_lm("bert"), Verifier(*tiny.classifier(), target="positive"), config)
print(engine.generate(["the movie was"], max_new_tokens=3, seed=0).token_ids)
"""
    expected = str(engine.generate(["the movie was"], max_new_tokens=3, seed=0).token_ids)
    run = [sys.executable, "-c", program, "2", tiny.__file__.rpartition("/")[0]]
    assert subprocess.run(run, capture_output=True, text=True, check=True).stdout.strip().endswith(expected)


def test_output_is_complete(engine: Scone) -> None:
    out = engine.generate(PROMPTS[:2], max_new_tokens=3, num_return_sequences=2, seed=2)
    assert len(out) == len(out.continuations) == len(out.token_ids) == len(out.trace) == 4
    for text, continuation, prompt in zip(out.texts, out.continuations, [PROMPTS[0]] * 2 + [PROMPTS[1]] * 2):
        assert text == prompt + continuation
    assert torch.allclose(out.scores, engine.verifier.score(out.texts))
    for ids, steps in zip(out.token_ids, out.trace):
        assert [step.token for step in steps] == ids
        for step in steps:
            assert step.log_p_star.exp().sum() == pytest.approx(1, abs=1e-5)
            assert step.tokens.shape == step.log_p.shape == step.q.shape == step.log_p_star.shape
    assert {"prefill", "propose", "plan", "look ahead", "estimate", "reweigh", "sample", "commit"} <= set(out.seconds)
    assert all(value >= 0 for value in out.seconds.values())
    assert out.cost.masked_lm_rows > 0 and out.cost.verifier_rows > 0


def test_next_token_is_the_first_step_of_generate(engine: Scone) -> None:
    step = engine.next_token("the movie was", max_new_tokens=7, seed=9)
    first = engine.generate(["the movie was"], max_new_tokens=7, seed=9).trace[0][0]
    assert torch.equal(step.tokens, first.tokens)
    assert torch.allclose(step.q, first.q, atol=1e-6)


def test_stream_is_generate_in_pieces(engine: Scone) -> None:
    out = engine.generate(["the movie was"], max_new_tokens=8, seed=3)
    pieces = list(engine.stream("the movie was", max_new_tokens=8, seed=3))
    assert "".join(pieces) == out.continuations[0]
    assert len(pieces) > 1


def test_text_ends_at_the_stop_token(engine: Scone) -> None:
    """An end-of-text candidate needs no lookahead: its q is φ of what stands there already."""
    eos = engine.lm_tokenizer.eos_token_id

    def eos_or(other: int):
        def process(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
            kept = torch.full_like(scores, -torch.inf)
            kept[:, [eos, other]] = torch.tensor([1.0, 0.0])
            return kept

        return process

    step = engine.next_token("the movie was", logits_processor=[eos_or(20)])
    at = step.tokens.tolist().index(eos)
    assert step.q[at] == pytest.approx(float(engine.verifier.score("the movie was")), abs=1e-5)
    out = engine.generate(["the movie was"], max_new_tokens=6, do_sample=False, logits_processor=[eos_or(eos)])
    assert out.token_ids == [[eos]] and out.continuations == [""] and out.finish_reasons == ["stop"]


def test_texts_that_end_early_leave_the_batch_alone(engine: Scone) -> None:
    eos = engine.lm_tokenizer.eos_token_id
    short = len(engine.parts.lm.encode(PROMPTS[1]))

    def end_the_second(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        if ids[0, :short].tolist() != engine.parts.lm.encode(PROMPTS[1]) or ids.shape[1] != short + 2:
            return scores
        kept = torch.full_like(scores, -torch.inf)
        kept[:, eos] = 0
        return kept

    out = engine.generate(PROMPTS, max_new_tokens=5, seed=1, logits_processor=[OneByOne(end_the_second)])
    assert [len(ids) for ids in out.token_ids] == [5, 3, 5]
    alone = engine.generate(PROMPTS[2:], max_new_tokens=5, seed=1)
    assert out.token_ids[2] == alone.token_ids[0]


def test_stop_strings_are_cut_and_never_shown(engine: Scone) -> None:
    whole = engine.generate(["the movie was"], max_new_tokens=8, seed=3).continuations[0]
    stop = whole[3:5]
    out = engine.generate(["the movie was"], max_new_tokens=8, seed=3, stop=stop)
    assert stop not in out.continuations[0]
    pieces = list(engine.stream("the movie was", max_new_tokens=8, seed=3, stop=stop))
    assert "".join(pieces) == out.continuations[0]


def test_stop_string_ends_the_text(engine: Scone) -> None:
    plain = engine.with_config(strength=0)
    whole = plain.generate(["the movie was"], max_new_tokens=8, seed=3).continuations[0]
    out = plain.generate(["the movie was"], max_new_tokens=8, seed=3, stop=["never there", whole[2:4]])
    assert out.continuations[0] == whole[: whole.index(whole[2:4])]
    assert out.finish_reasons == ["stop"]


def test_last_step_is_exact(engine: Scone) -> None:
    step = engine.next_token("the movie was", max_new_tokens=1)
    texts = [engine.parts.lm.decode([*engine.parts.lm.encode("the movie was"), int(t)]) for t in step.tokens]
    assert torch.allclose(step.q, engine.verifier.score(texts), atol=1e-5)


def test_candidates_that_cannot_matter_get_no_lookahead(engine: Scone) -> None:
    def peaked(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        kept = torch.full_like(scores, -torch.inf)
        kept[:, [40, 41, 42]] = torch.tensor([5.0, 4.5, -6.0])
        return kept

    full = engine.next_token("the movie was", logits_processor=[peaked])
    some = engine.with_config(min_mass=0.01).next_token("the movie was", logits_processor=[peaked])
    assert torch.allclose(full.q[:2], some.q[:2], atol=1e-6)
    share = some.log_p[:2].softmax(0)
    assert some.q[2] == pytest.approx(float((share * some.q[:2]).sum()), abs=1e-5)
    settled = engine.with_config(min_mass=0.7).next_token("the movie was", logits_processor=[peaked])
    assert settled.q.tolist() == [1.0, 1.0, 1.0]
    one = engine.with_config(min_mass=0.5).next_token("the movie was", logits_processor=[peaked])
    assert one.q.tolist() == [1.0, 1.0, 1.0]


def test_chat(engine: Scone) -> None:
    tokenizer = engine.lm_tokenizer
    tokenizer.chat_template = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}{% if add_generation_prompt %}reply:{% endif %}"
    try:
        chat = [{"role": "user", "content": "the movie"}]
        out = engine.generate(chat, max_new_tokens=4, seed=2)
        assert out.texts == out.continuations and len(out.texts) == 1
        assert torch.allclose(out.scores, engine.verifier.score(out.continuations))
        both = engine.generate([chat, [{"role": "user", "content": "a nice day it is"}]], max_new_tokens=4, seed=2)
        assert both.token_ids[0] == out.token_ids[0]
        rendered = engine.with_config(strength=0).generate(["user: the movie\nreply:"], max_new_tokens=4, seed=2)
        assert engine.with_config(strength=0).generate(chat, max_new_tokens=4, seed=2).token_ids == rendered.token_ids
    finally:
        tokenizer.chat_template = None


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("form", ["position", "mean"])
def test_half_precision(dtype: torch.dtype, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every stage of the chains in 16 bits: the masked LM draws, and the verifier is linearised."""
    ran = count_calls(monkeypatch, (MaskedLM, "hidden"), (EmbeddingVerifier, "linearise"))
    lm, masked, judge = (
        (copy.deepcopy(model).to(dtype), tok)
        for model, tok in (tiny.llama(), tiny.masked_lm("bert"), tiny.classifier())
    )
    config = SconeConfig(particles=1, lookahead=Gibbs(tokens=5, estimate=Taylor(form=form)), top_k=4, min_mass=0)
    engine = Scone(lm, masked, Verifier(*judge, target="positive"), config)
    out = engine.generate(["the movie was"], max_new_tokens=3)
    assert out.scores.dtype == torch.float32 and len(out.token_ids[0]) == 3
    whole = Scone(tiny.llama(), tiny.masked_lm("bert"), Verifier(*tiny.classifier(), target="positive"), config)
    q, expected = (e.next_token("the movie was", max_new_tokens=3).q for e in (engine, whole))
    assert q.dtype == torch.float32 and bool(((q >= 0) & (q <= 1)).all()) and q.std() > 0
    assert abs(float(q.mean() - expected.mean())) < 0.25
    assert ran["hidden"] >= 3 and ran["linearise"] >= 3


def count_calls(monkeypatch: pytest.MonkeyPatch, *methods: tuple[type, str]) -> dict[str, int]:
    """How often methods are called from now on."""
    counts = {name: 0 for _, name in methods}
    for kind, name in methods:

        def counted(
            *args: object, _name: str = name, _method: object = getattr(kind, name), **kwargs: object
        ) -> object:
            counts[_name] += 1
            return _method(*args, **kwargs)

        monkeypatch.setattr(kind, name, counted)
    return counts


LONG = "the movie was a great film and the story was good . " * 50  # 650 words: more than masked LM and verifier hold


@pytest.mark.parametrize(
    "lookahead",
    [
        Masked(tokens=4),
        Gibbs(tokens=4, start=Masks(warmup=0), iterations=0, estimate=AtMean()),
        Gibbs(tokens=4, start=Masks(warmup=0), iterations=0, estimate=AtMean(marginals="masked")),
        Mix(Masked(tokens=4), Nothing()),
    ],
    ids=str,
)
@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_texts_beyond_512_tokens_are_judged_by_their_end(
    positive: Verifier, lookahead: object, family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What lies further back than masked LM and verifier can read changes nothing; they read as much as they can."""
    widths: list[int] = []
    hidden = MaskedLM.hidden
    watch = lambda mlm, ids, *rest: (widths.append(ids.shape[1]), hidden(mlm, ids, *rest))[1]  # noqa: E731
    monkeypatch.setattr(MaskedLM, "hidden", watch)
    config = SconeConfig(particles=1, lookahead=lookahead, min_mass=0, top_k=3, context_window=None)
    engine = Scone(tiny.llama(positions=4096), tiny.masked_lm(family), positive, config)

    def some(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        kept = torch.full_like(scores, -torch.inf)
        kept[:, [40, 41, 42]] = 0
        return kept

    def q(prompt: str) -> torch.Tensor:
        step = engine.next_token(prompt, max_new_tokens=9, logits_processor=[some])
        return step.q[step.tokens.argsort()]

    expected = q(LONG)
    assert max(widths) == 512 and min(widths) == 512
    assert torch.allclose(q("what a dull old picture . " * 3 + LONG), expected, atol=1e-5)
    assert not torch.allclose(q(LONG + "terrible music . "), expected, atol=1e-5)


@pytest.mark.parametrize("lookahead", [Gibbs(tokens=4, block=2), Expectation(tokens=2)], ids=str)
def test_texts_beyond_512_tokens_go_on(positive: Verifier, lookahead: object) -> None:
    config = SconeConfig(particles=1, lookahead=lookahead, min_mass=0, top_k=3, context_window=None)
    engine = Scone(tiny.llama(positions=4096), tiny.masked_lm("bert"), positive, config)
    out = engine.generate([LONG, "a day"], max_new_tokens=2)
    assert all(step.q.isfinite().all() and step.q.std() > 0 for steps in out.trace for step in steps)
    assert engine.generate([LONG], max_new_tokens=2).token_ids == out.token_ids[:1]


def test_models_from_folders(tmp_path, engine: Scone) -> None:
    """Saved and loaded again by name, in another precision, the engine writes the same or similar things."""
    folders = {}
    for name, (model, tok) in {
        "lm": tiny.llama(),
        "masked_lm": tiny.masked_lm("bert"),
        "verifier": tiny.classifier(),
    }.items():
        folders[name] = str(tmp_path / name)
        model.save_pretrained(folders[name])
        tok.save_pretrained(folders[name])
    loaded = Scone.from_pretrained(**folders, target="positive", config=engine.config)
    expected = engine.generate(["the movie was"], max_new_tokens=3)
    assert loaded.generate(["the movie was"], max_new_tokens=3).token_ids == expected.token_ids
    halved = Scone.from_pretrained(**folders, target="positive", config=engine.config, dtype="bfloat16", device="cpu")
    assert halved.lm.dtype == halved.masked_lm.dtype == halved.verifier.model.dtype == torch.bfloat16
    assert halved.next_token("the movie was").q.isfinite().all()


def test_ready_objects_in_every_form(engine: Scone) -> None:
    lm, masked, judge = tiny.llama(), tiny.masked_lm("bert"), tiny.classifier()
    expected = engine.next_token("the movie was").q
    verifier = Verifier(*judge, target=1)
    apart = Scone(
        lm=lm[0],
        lm_tokenizer=lm[1],
        masked_lm=masked[0],
        masked_lm_tokenizer=masked[1],
        verifier=verifier,
        config=engine.config,
    )
    assert torch.allclose(apart.next_token("the movie was").q, expected, atol=1e-6)
    paired = Scone.from_pretrained(lm, masked, judge, target="positive", config=engine.config)
    assert torch.allclose(paired.next_token("the movie was").q, expected, atol=1e-6)


@pytest.mark.parametrize("form", ["position", "mean"])
def test_parts_of_different_precision(engine: Scone, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ran = count_calls(monkeypatch, (MaskedLM, "hidden"), (EmbeddingVerifier, "linearise"))
    model, tok = tiny.classifier()
    verifier = Verifier(copy.deepcopy(model).to(torch.bfloat16), tok, target="positive")
    lookahead = engine.config.lookahead.replace(estimate=Taylor(form=form))
    mixed = Scone(tiny.llama(), tiny.masked_lm("bert"), verifier, engine.config.replace(lookahead=lookahead))
    q = mixed.next_token("the movie was").q
    expected = engine.with_config(lookahead=lookahead).next_token("the movie was").q
    assert torch.allclose(q, expected, atol=0.1) and q.std() > 0
    assert ran["hidden"] > 1 and ran["linearise"] > 1
