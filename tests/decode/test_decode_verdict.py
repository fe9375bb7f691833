"""What is judged of a text, from where on, and by whom: verdicts, markers, a verifier for each prompt or conversation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tiny
import torch

from scone.decode import Scone, SconeConfig, Verifier
from scone.errors import ConfigError, InputError
from scone.lookahead import Carried, Draft, Expectation, Gibbs, Lookahead, Mix, Nothing, Paths, Taylor
from scone.processors import OneByOne

PROMPT, OTHER = "the movie was", "what a wonderful old picture of the river it is"
CHAT = [{"role": "user", "content": "the movie"}]
CONFIG = SconeConfig(particles=1, min_mass=0, rest=0, top_k=4, lookahead=Nothing())


class Recorder:
    """A function of texts that remembers what it was asked about."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def __call__(self, texts: list[str]) -> list[float]:
        self.seen += texts
        return [1 / (1 + text.count("a")) for text in texts]


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


def engine_of(verifier: Any, **changes: Any) -> Scone:
    model, tokenizer = tiny.llama()
    tokenizer.chat_template = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}reply:"
    tokenizer.pad_token = tokenizer.eos_token
    return Scone((model, tokenizer), tiny.masked_lm("bert"), verifier, CONFIG.replace(**changes))


def through_transformers(engine: Scone, **options: Any) -> Any:
    inputs = engine.lm_tokenizer(PROMPT, return_tensors="pt")
    ids = engine.lm.generate(**inputs, max_new_tokens=4, top_k=0, **options)
    return ids[0, inputs["input_ids"].shape[1] :].tolist()


WAYS: dict[str, Callable[[Scone], Any]] = {
    "generate": lambda engine: engine.generate(PROMPT, max_new_tokens=4, seed=2),
    "stream": lambda engine: list(engine.stream(PROMPT, max_new_tokens=4, seed=2)),
    "next_token": lambda engine: engine.next_token(PROMPT, max_new_tokens=4, seed=2),
    "custom_generate": lambda engine: through_transformers(engine, custom_generate=engine.custom_generate),
    "logits_processor": lambda engine: through_transformers(engine, logits_processor=[engine.logits_processor()]),
}


@pytest.mark.parametrize("particles", [1, 3])
@pytest.mark.parametrize("way", WAYS)
def test_the_verdict_is_on_all_or_on_the_continuation(recorder: Recorder, way: str, particles: int) -> None:
    for verdict in ("text", "continuation"):
        recorder.seen.clear()
        WAYS[way](engine_of(recorder, verdict=verdict, particles=particles))
        assert recorder.seen
        assert all(text.startswith(PROMPT) == (verdict == "text") for text in recorder.seen)


@pytest.mark.parametrize(
    "lookahead", [Expectation(tokens=2), Paths(tokens=2, count=2), Gibbs(tokens=4, start=Carried())]
)
def test_a_judged_continuation_is_written_everywhere_the_same(positive: Verifier, lookahead: Lookahead) -> None:
    engine = engine_of(positive, verdict="continuation", lookahead=lookahead)
    out = engine.generate([PROMPT, OTHER], max_new_tokens=4, seed=2)
    assert out.texts == out.continuations
    assert torch.allclose(out.scores, positive.score(out.continuations), atol=1e-6)
    assert out.token_ids[0] == through_transformers(
        engine, custom_generate=engine.custom_generate, do_sample=True, seed=2
    )
    assert "".join(engine.stream(PROMPT, max_new_tokens=4, seed=2)) == out.continuations[0]
    whole = engine.with_config(verdict="text").next_token(PROMPT, max_new_tokens=4, seed=2)
    assert not torch.allclose(engine.next_token(PROMPT, max_new_tokens=4, seed=2).q, whole.q, atol=1e-3)


def test_of_a_conversation_the_reply_is_judged_either_way(positive: Verifier) -> None:
    one, other = (engine_of(positive, verdict=verdict) for verdict in ("text", "continuation"))
    assert one.generate(CHAT, max_new_tokens=4).token_ids == other.generate(CHAT, max_new_tokens=4).token_ids


# From a marker on

MARKER = " nice"


def forced(engine: Scone, words: str) -> dict[str, Any]:
    """Arguments of `generate` with which every text begins with these words, and goes on for six tokens."""
    start, first = len(engine.parts.lm.encode(PROMPT)), engine.parts.lm.encode(words)

    def force(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        at = ids.shape[1] - start
        return (
            scores
            if at >= len(first)
            else torch.full_like(scores, -torch.inf).index_fill(1, torch.tensor(first[at]), 0)
        )

    return {"logits_processor": [OneByOne(force)], "max_new_tokens": len(first) + 6}


@pytest.mark.parametrize("particles", [1, 3])
@pytest.mark.parametrize(("verdict", "lead"), [("text", PROMPT), ("continuation", "")])
def test_control_begins_behind_the_marker(recorder: Recorder, verdict: str, lead: str, particles: int) -> None:
    engine = engine_of(recorder, after=MARKER, verdict=verdict, particles=particles)
    out = engine.generate(PROMPT, **forced(engine, " music , music , music" + MARKER), explain=True)
    behind = out.continuations[0].partition(MARKER)[2]
    assert out.texts == [lead + behind] and behind
    assert recorder.seen and all(text.startswith(lead) and "music" not in text for text in recorder.seen)
    assert torch.equal(out.scores, torch.tensor(recorder(out.texts)))
    judged = [bool(step.judged.any()) for step in out.trace[0]]
    ends = [MARKER in out.continuations[0][: step.end] for step in out.trace[0]]
    assert judged == [False, *ends[:-1]]
    assert [step.score > 0 for step in out.trace[0]] == ends
    assert out.trace.to_json()


def test_before_the_marker_and_without_it_nothing_is_steered(positive: Verifier) -> None:
    engine = engine_of(positive, after="</never>", particles=3)
    out = engine.generate([PROMPT, OTHER], max_new_tokens=5, seed=4)
    plain = engine.with_config(strength=0, particles=1).generate([PROMPT, OTHER], max_new_tokens=5, seed=4)
    assert out.token_ids == plain.token_ids
    assert out.cost.verifier_rows == 0 and not any(step.judged.any() for steps in out.trace for step in steps)
    assert out.scores.tolist() == [0.0, 0.0]  # what is not there satisfies nothing


def test_of_particles_one_that_has_come_to_its_marker_is_kept() -> None:
    engine = engine_of(lambda texts: [0.3 for _ in texts], after="e", particles=6, top_k=10, strength=0.0)
    for seed in range(4):
        out = engine.generate(PROMPT, max_new_tokens=3, seed=seed)
        assert float(out.scores[0]) == pytest.approx(0.3 if "e" in out.continuations[0] else 0.0)
    assert any("e" in engine.generate(PROMPT, max_new_tokens=3, seed=seed).continuations[0] for seed in range(4))


def test_a_window_does_not_reach_back_behind_the_marker(recorder: Recorder) -> None:
    """What was thought before is longer than the window, and takes nothing from what is judged."""
    engine = engine_of(recorder, after=MARKER, verdict="continuation", context_window=3)
    out = engine.generate(PROMPT, **forced(engine, " music" * 12 + MARKER))
    behind = out.continuations[0].partition(MARKER)[2]
    assert behind and recorder.seen and all(recorder.seen)
    assert any(text and behind.startswith(text) for text in recorder.seen)  # the first is whole


# A verifier for each prompt


def kinds(positive: Verifier) -> list[Any]:
    other = Verifier(*tiny.classifier(seed=8), target="positive")
    return [
        positive,
        positive.with_strength(3) & ~other,
        (~positive).with_strength(2),
        positive.with_strength(0),
        positive | other,
    ]


PROMPTS = [PROMPT, OTHER, "a nice day", PROMPT, PROMPT]


@pytest.mark.parametrize("particles", [1, 3])
@pytest.mark.parametrize(
    "lookahead",
    [
        Expectation(tokens=2),
        Mix(Paths(tokens=2, count=2), Nothing()),
        Draft(tiny.llama(seed=5), Expectation(tokens=2)),
        Gibbs(tokens=4, start=Carried(), block=2, iterations=2, chains=2, estimate=Taylor()),
    ],
    ids=lambda lookahead: type(lookahead).__name__,
)
def test_each_prompt_is_written_as_by_its_verifier_alone(
    positive: Verifier, lookahead: Lookahead, particles: int
) -> None:
    engine, own = engine_of(positive, lookahead=lookahead, particles=particles), kinds(positive)
    together = engine.generate(PROMPTS, max_new_tokens=4, num_return_sequences=2, seed=6, verifiers=own, explain=True)
    rows = 0
    for i, (prompt, verifier) in enumerate(zip(PROMPTS, own)):
        mine = slice(2 * i, 2 * i + 2)
        alone = engine.with_verifier(verifier).generate(
            [prompt], max_new_tokens=4, num_return_sequences=2, seed=6, explain=True
        )
        assert alone.token_ids == together.token_ids[mine], i
        assert torch.allclose(alone.scores, together.scores[mine], atol=1e-5)
        assert alone.trace.told[0].settings == together.trace.told[mine][0].settings
        for one, other in zip(alone.trace[0], together.trace[2 * i]):
            assert torch.allclose(one.q, other.q, atol=1e-4) and one.score == pytest.approx(other.score, abs=1e-4)
        rows += alone.cost.verifier_rows
    assert rows == together.cost.verifier_rows


def test_texts_rest_by_their_own_verifier(positive: Verifier) -> None:
    engine = engine_of(positive, lookahead=Expectation(tokens=2), particles=3, safe=0.3, rest=2)
    own = kinds(positive)
    together = engine.generate(PROMPTS, max_new_tokens=8, seed=6, verifiers=own)
    alone = [engine.with_verifier(v).generate([p], max_new_tokens=8, seed=6) for p, v in zip(PROMPTS, own)]
    assert together.token_ids == [out.token_ids[0] for out in alone]
    assert together.cost.rested == sum(out.cost.rested for out in alone) > 0


def test_functions_and_classifiers_in_one_batch(positive: Verifier, recorder: Recorder) -> None:
    out = engine_of(positive).generate([PROMPT, OTHER], max_new_tokens=3, verifiers=[positive, recorder])
    assert all(text.startswith(OTHER) for text in recorder.seen)
    assert torch.allclose(
        out.scores, torch.stack([positive.score(out.texts[0])[0], torch.tensor(recorder(out.texts[1:])[0])])
    )


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([str.islower], "verifiers must be one for each of the 2 prompts, got 1"),
        ("positive", "verifiers must be a list with one for each prompt, got 'positive'"),
    ],
)
def test_verifiers_that_do_not_fit_are_refused(positive: Verifier, given: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        engine_of(positive).generate([PROMPT, OTHER], verifiers=given)


# A verifier that reads the conversation


class Talk:
    """A function of a prompt and replies that remembers both."""

    def __init__(self) -> None:
        self.seen: list[tuple[Any, str]] = []

    def __call__(self, prompt: Any, replies: list[str]) -> list[float]:
        self.seen += [(prompt, reply) for reply in replies]
        return [1 / (1 + reply.count(str(prompt)[-1])) for reply in replies]


@pytest.mark.parametrize("way", WAYS)
def test_a_conversation_is_told_apart(way: str) -> None:
    talk = Talk()
    WAYS[way](engine_of(Verifier.of_conversation(talk)))
    assert talk.seen and all(prompt == PROMPT and not reply.startswith(PROMPT) for prompt, reply in talk.seen)


@pytest.mark.parametrize(
    "lookahead", [Nothing(), Paths(tokens=2, count=2), Gibbs(tokens=4)], ids=lambda own: type(own).__name__
)
def test_each_conversation_is_judged_with_its_own_prompt(positive: Verifier, lookahead: Lookahead) -> None:
    talk = Talk()
    verifier = positive & (~Verifier.of_conversation(talk)).with_strength(2)
    engine = engine_of(verifier, lookahead=lookahead, particles=2)
    out = engine.generate([PROMPT, CHAT, OTHER], max_new_tokens=3, seed=1)
    assert {str(prompt) for prompt, _ in talk.seen} == {PROMPT, str(CHAT), OTHER}
    assert out.texts == out.continuations
    for prompt, text, score in zip([PROMPT, CHAT, OTHER], out.texts, out.scores):
        expected = positive.score(text) * (1 - torch.tensor(talk(prompt, [text])))
        assert torch.allclose(score, expected[0], atol=1e-6)
        alone = engine.generate([prompt], max_new_tokens=3, seed=1)
        assert alone.continuations == [text]


def test_a_conversation_composes_and_must_be_told_its_prompt() -> None:
    same = Verifier.of_conversation(lambda prompt, replies: [float(prompt == reply) for reply in replies])
    assert (same | ~same).about("a").score(["a", "b"]).tolist() == [1.0, 1.0]
    assert len((same & ~same).about("a").leaves) == 1
    first = same.with_strength(3).reading(lambda text: text[:1]).about("a")
    assert first.strength == 3 and first.score(["ab", "b"]).tolist() == [1.0, 0.0]
    with pytest.raises(InputError, match=r"must be told the prompt, as in verifier.about\(prompt\), got none"):
        (~same).score("a")
    with pytest.raises(InputError, match="must be told the prompt"):
        engine_of(same).value("a text")


def test_settings_name_verdict_and_marker() -> None:
    from scone.settings import parse_settings

    config = parse_settings("verdict=continuation,after=</think>")
    assert (config.verdict, config.after) == ("continuation", "</think>")
    with pytest.raises(ConfigError, match="verdict must be one of 'text', 'continuation', got 'reply'"):
        SconeConfig(verdict="reply")
    with pytest.raises(ConfigError, match="after must be a string, got None"):
        SconeConfig(after=None)
