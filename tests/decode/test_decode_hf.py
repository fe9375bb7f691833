"""Control inside transformers' own generate."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import pytest
import tiny
import torch
from transformers import LogitsProcessor, StoppingCriteria, StopStringCriteria, TextIteratorStreamer
from transformers.generation import BaseStreamer

from scone.decode import Scone, SconeConfig, Verifier
from scone.errors import InputError
from scone.lookahead import Carried, Gibbs, Rollout

PROMPTS = ["the movie was", "a nice", "what a wonderful day"]


@pytest.fixture
def batch(engine: Scone) -> Iterator[dict[str, torch.Tensor]]:
    tok = engine.lm_tokenizer
    before = tok.padding_side, tok.pad_token
    tok.padding_side, tok.pad_token = "left", tok.eos_token
    yield tok(PROMPTS, return_tensors="pt", padding=True)
    tok.padding_side, tok.pad_token = before


def new_tokens(batch: dict[str, torch.Tensor], ids: torch.Tensor) -> list[list[int]]:
    return ids[:, batch["input_ids"].shape[1] :].tolist()


@pytest.mark.parametrize("start", [Carried(), Rollout()], ids=lambda start: type(start).__name__)
def test_custom_generate_writes_what_the_engine_writes(engine: Scone, batch: dict, start: object) -> None:
    engine = engine.with_config(lookahead=Gibbs(tokens=4, start=start))
    expected = engine.generate(PROMPTS, max_new_tokens=4, seed=3).token_ids
    options = {"custom_generate": engine.custom_generate, "max_new_tokens": 4, "top_k": 0}
    assert new_tokens(batch, engine.lm.generate(**batch, **options, do_sample=True, seed=3)) == expected
    greedy = engine.generate(PROMPTS, max_new_tokens=4, do_sample=False).token_ids
    assert new_tokens(batch, engine.lm.generate(**batch, **options)) == greedy


def test_custom_generate_expands_return_sequences(engine: Scone, batch: dict) -> None:
    expected = engine.generate(PROMPTS, max_new_tokens=3, num_return_sequences=2, seed=3).token_ids
    ids = engine.lm.generate(
        **batch,
        custom_generate=engine.custom_generate,
        max_new_tokens=3,
        do_sample=True,
        top_k=0,
        seed=3,
        num_return_sequences=2,
    )
    assert new_tokens(batch, ids) == expected


def test_custom_generate_returns_a_dict(engine: Scone, batch: dict) -> None:
    out = engine.lm.generate(
        **batch, custom_generate=engine.custom_generate, max_new_tokens=3, return_dict_in_generate=True,
        output_scores=True, output_logits=True,
    )  # fmt: skip
    plain = engine.lm.generate(
        **batch, max_new_tokens=3, do_sample=False, return_dict_in_generate=True, output_scores=True, output_logits=True
    )
    assert type(out) is type(plain) and set(out) == set(plain)
    assert out.sequences.shape == plain.sequences.shape
    assert len(out.scores) == len(out.logits) == 3
    assert torch.allclose(out.logits[0], plain.logits[0], atol=1e-4)
    for i, scores in enumerate(out.scores):
        assert torch.equal(scores.argmax(-1), out.sequences[:, batch["input_ids"].shape[1] + i])
        assert torch.allclose(scores.exp().sum(-1), torch.ones(3), atol=1e-5)


def test_custom_generate_honours_processors_and_criteria(engine: Scone, batch: dict) -> None:
    allowed = [30, 31, 32, 33]

    class Only(LogitsProcessor):
        def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
            kept = torch.full_like(scores, -torch.inf)
            kept[:, allowed] = scores[:, allowed]
            return kept

    class SecondRowAfterTwo(StoppingCriteria):
        def __call__(self, input_ids: torch.Tensor, scores: object, **kwargs: object) -> torch.Tensor:
            done = torch.zeros(len(input_ids), dtype=torch.bool)
            done[1] = input_ids.shape[1] >= batch["input_ids"].shape[1] + 2
            return done

    ids = engine.lm.generate(
        **batch, custom_generate=engine.custom_generate, max_new_tokens=4, logits_processor=[Only()],
        stopping_criteria=[SecondRowAfterTwo()],
    )  # fmt: skip
    rows = new_tokens(batch, ids)
    assert all(t in allowed for t in rows[0] + rows[1][:2] + rows[2])
    assert rows[1][2:] == [engine.lm_tokenizer.pad_token_id] * 2


class Recorder(BaseStreamer):
    """Keeps what a streamer is shown."""

    def __init__(self) -> None:
        self.shown: list[object] = []

    def put(self, value: torch.Tensor) -> None:
        self.shown.append(value.tolist())

    def end(self) -> None:
        self.shown.append("end")


def test_custom_generate_streams_what_transformers_streams(engine: Scone, batch: dict) -> None:
    """Without control both loops write the same, so the prompt, each token and the end must come in the same way."""
    off = engine.with_config(strength=0).custom_generate
    ours, bound, theirs = Recorder(), Recorder(), Recorder()
    engine.lm.generate(**batch, custom_generate=off, max_new_tokens=4, streamer=ours)
    engine.lm.generate(**batch, custom_generate=functools.partial(off, streamer=bound), max_new_tokens=4)
    engine.lm.generate(**batch, max_new_tokens=4, do_sample=False, streamer=theirs)
    assert theirs.shown[0] == batch["input_ids"].tolist() and theirs.shown[-1] == "end"
    assert ours.shown == bound.shown == theirs.shown


def test_custom_generate_feeds_a_text_streamer(engine: Scone) -> None:
    tok = engine.lm_tokenizer
    streamer = TextIteratorStreamer(tok, skip_prompt=True, timeout=60)
    one = tok(PROMPTS[0], return_tensors="pt")
    ids = engine.lm.generate(**one, custom_generate=engine.custom_generate, max_new_tokens=4, streamer=streamer)
    assert "".join(streamer) == tok.decode(ids[0, one["input_ids"].shape[1] :])


def test_custom_generate_ends_at_stop_strings(engine: Scone) -> None:
    """transformers keeps `tokenizer` from custom loops and so refuses its own `stop_strings`; the criterion works."""
    tok = engine.lm_tokenizer
    one = tok(PROMPTS[0], return_tensors="pt")
    options = {"custom_generate": engine.custom_generate, "max_new_tokens": 8}
    length = one["input_ids"].shape[1]
    full = engine.lm.generate(**one, **options)[0]
    stop = tok.decode(full[length + 1])
    ids = engine.lm.generate(**one, **options, stopping_criteria=[StopStringCriteria(tok, [stop])])[0]
    assert torch.equal(ids, full[: len(ids)]) and length < len(ids) <= length + 2


def test_logits_processor_steers_greedy_decoding(engine: Scone, batch: dict) -> None:
    expected = engine.generate(PROMPTS, max_new_tokens=4, do_sample=False).token_ids
    processor = engine.logits_processor(max_new_tokens=4)
    for _ in range(2):  # the second call must not remember the first
        ids = engine.lm.generate(**batch, logits_processor=[processor], max_new_tokens=4, do_sample=False)
        assert new_tokens(batch, ids) == expected


def test_logits_processor_returns_new_scores(engine: Scone, batch: dict) -> None:
    scores = torch.randn(3, len(engine.lm_tokenizer))
    before = scores.clone()
    result = engine.logits_processor(max_new_tokens=4)(batch["input_ids"], scores)
    assert torch.equal(scores, before)
    assert torch.allclose(result.exp().sum(-1), torch.ones(3), atol=1e-5)
    assert (result.isfinite().sum(-1) == engine.config.top_k).all()


def test_logits_processor_works_under_beam_search_and_sampling(engine: Scone, batch: dict) -> None:
    for options in ({"num_beams": 2}, {"do_sample": True, "num_return_sequences": 2}):
        processor = engine.logits_processor(max_new_tokens=3)
        ids = engine.lm.generate(**batch, logits_processor=[processor], max_new_tokens=3, **options)
        assert ids.shape[1] <= batch["input_ids"].shape[1] + 3


def test_what_a_custom_loop_cannot_do_is_refused(engine: Scone, batch: dict) -> None:
    options = {"custom_generate": engine.custom_generate, "max_new_tokens": 2}
    with pytest.raises(InputError, match="num_beams must be 1"):
        engine.lm.generate(**batch, **options, num_beams=2)
    with pytest.raises(InputError, match="output_attentions must be False"):
        engine.lm.generate(**batch, **options, return_dict_in_generate=True, output_attentions=True)
    with pytest.raises(InputError, match="seed must be an integer, got 'x'"):
        engine.lm.generate(**batch, **options, seed="x")
    embeds = engine.lm.get_input_embeddings()(batch["input_ids"])
    for how in (options, {"logits_processor": [engine.logits_processor()], "max_new_tokens": 2}):
        with pytest.raises(InputError, match="input_ids must hold the prompt's tokens"):
            engine.lm.generate(inputs_embeds=embeds, **how)


@pytest.mark.parametrize("how", ["assistant_model", "prompt_lookup_num_tokens"])
def test_assisted_generation(how: str) -> None:
    """As a processor control writes what it writes without an assistant; as a loop it has no place for one."""
    engine = Scone(tiny.llama(), None, Verifier(*tiny.classifier(), target="positive"), SconeConfig(min_mass=0))
    inputs = engine.lm_tokenizer("the movie was", return_tensors="pt")
    helper = {"assistant_model": tiny.llama(seed=5)[0]} if how == "assistant_model" else {how: 3}
    options = {"max_new_tokens": 7, "do_sample": False}
    alone, assisted = (
        engine.lm.generate(**inputs, **options, **more, logits_processor=[engine.logits_processor()])
        for more in ({}, helper)
    )
    assert torch.equal(alone, assisted)
    with pytest.raises(InputError, match=f"{how} must be None with custom_generate, got "):
        engine.lm.generate(**inputs, **options, **helper, custom_generate=engine.custom_generate)


def test_logits_processor_checks_its_arguments(engine: Scone) -> None:
    with pytest.raises(InputError, match="max_new_tokens must be an integer of at least 1, got '3'"):
        engine.logits_processor(max_new_tokens="3")
    with pytest.raises(InputError, match="seed must be an integer, got None"):
        engine.logits_processor(seed=None)


def test_constant_control_is_transformers_greedy(batch: dict) -> None:
    flat = Verifier.from_callable(lambda texts: [0.5] * len(texts))
    engine = Scone(tiny.llama(), None, flat, SconeConfig(particles=1, min_mass=0))
    plain = engine.lm.generate(**batch, max_new_tokens=4, do_sample=False)
    assert torch.equal(engine.lm.generate(**batch, custom_generate=engine.custom_generate, max_new_tokens=4), plain)
