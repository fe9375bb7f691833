"""What fails under an engine: the error says which model and which token, keeps what was written, and harms nothing."""

from __future__ import annotations

import threading
from itertools import chain

import pytest
import tiny
import torch
from faulty import NAMES, Faulty, has_room_for, raises, spoils

from scone.blame import ran_out_of_memory
from scone.decode import Output, Scone, SconeConfig, Verifier
from scone.errors import ForwardError, InputError, NumericalError, StallError
from scone.lookahead import Expectation, Gibbs, Masked, Nothing, Paths

PROMPTS = ["the movie was", "the food", "a"]


@pytest.fixture(scope="module")
def faulty() -> Faulty:
    return Faulty()


FAULTS = {
    "raises": (raises(KeyError("wires")), ForwardError, ("raised KeyError: 'wires'",)),
    "NaN": (spoils(float("nan")), NumericalError, ("returned NaN",)),
    "infinity": (spoils(float("inf")), NumericalError, ("returned NaN", "returned infinity")),
    "memory": (raises(torch.OutOfMemoryError("none left")), ForwardError, ("ran out of memory: none left",)),
}


@pytest.mark.filterwarnings("ignore:memory ran out")
@pytest.mark.parametrize("model", NAMES)
@pytest.mark.parametrize("name", FAULTS)
def test_a_model_that_fails_is_named_with_the_token_and_what_was_written(faulty: Faulty, model: str, name: str) -> None:
    fault, kind, words = FAULTS[name]
    engine = faulty.engine(Masked(tokens=3))
    whole = engine.generate(PROMPTS, max_new_tokens=6, seed=3)
    # the verifier scores the finished texts, too
    calls = faulty.calls(model, lambda: engine.generate(PROMPTS, max_new_tokens=3, seed=3)) - (model == "verifier")
    with faulty.failing(model, fault, after=calls), pytest.raises(kind) as caught:
        engine.generate(PROMPTS, max_new_tokens=6, seed=3)
    message, written = str(caught.value), caught.value.partial
    assert NAMES[model] in message and any(word in message for word in words)
    token = int(message.rpartition(", at token ")[2])
    assert isinstance(written, Output) and bool(written.scores.isnan().all()) and len(written) == len(PROMPTS)
    assert token >= 3 and {len(ids) for ids in written.token_ids} == {token - 1}
    assert {len(steps) for steps in written.trace} == {token - 1}
    for ids, all_ids, text, all_text in zip(written.token_ids, whole.token_ids, written.texts, whole.texts):
        assert ids == all_ids[: len(ids)] and all_text.startswith(text)
    again = engine.generate(PROMPTS, max_new_tokens=6, seed=3)
    assert again.token_ids == whole.token_ids and torch.equal(again.scores, whole.scores)


def test_of_particles_the_best_so_far_is_what_was_written(faulty: Faulty) -> None:
    engine = faulty.engine(Nothing(), particles=3, resample=0)
    best = engine.generate(PROMPTS, max_new_tokens=3, seed=3)
    calls = faulty.calls("lm", lambda: engine.generate(PROMPTS, max_new_tokens=3, seed=3))
    with faulty.failing("lm", raises(OSError("gone")), after=calls), pytest.raises(ForwardError) as caught:
        engine.generate(PROMPTS, max_new_tokens=6, seed=3)
    assert caught.value.partial is not None and caught.value.partial.token_ids == best.token_ids
    first = engine.with_config(particles=1).generate(PROMPTS, max_new_tokens=3, seed=3)
    assert best.token_ids != first.token_ids


def test_what_was_written_is_kept_where_the_last_scores_fail(faulty: Faulty) -> None:
    engine = faulty.engine(Nothing())
    whole = engine.generate(PROMPTS, max_new_tokens=3)
    calls = faulty.calls("verifier", lambda: engine.generate(PROMPTS, max_new_tokens=3))
    with faulty.failing("verifier", spoils(float("nan")), after=calls - 1), pytest.raises(NumericalError) as caught:
        engine.generate(PROMPTS, max_new_tokens=3)
    assert str(caught.value).endswith(", after the last token")
    assert caught.value.partial is not None and caught.value.partial.texts == whole.texts


@pytest.mark.parametrize("particles", [1, 3])
def test_a_stream_that_fails_keeps_what_was_written(faulty: Faulty, particles: int) -> None:
    engine = faulty.engine(Nothing(), particles=particles)
    stream, pieces = engine.stream("the movie was", max_new_tokens=20), []
    calls = faulty.calls("lm", lambda: engine.generate("the movie was", max_new_tokens=12))
    with faulty.failing("lm", raises(OSError("gone")), after=calls), pytest.raises(ForwardError) as caught:
        pieces.extend(stream)
    assert "LlamaForCausalLM raised OSError: gone, at token 13" in str(caught.value)
    assert caught.value.partial is not None and caught.value.partial.continuations[0].startswith("".join(pieces))


def test_what_others_raise_is_theirs_and_has_what_was_written(faulty: Faulty) -> None:
    class Enough(Exception):
        pass

    def stop_at_the_third(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        if ids.shape[1] > start + 1:
            raise Enough("that will do")
        return scores

    engine = faulty.engine(Nothing())
    start = len(engine.lm_tokenizer("the food")["input_ids"])
    with pytest.raises(Enough, match=r"^that will do$") as caught:
        engine.generate("the food", max_new_tokens=5, logits_processor=[stop_at_the_third])
    assert [len(ids) for ids in caught.value.partial.token_ids] == [2]  # type: ignore[attr-defined]


def test_within_transformers_the_error_has_what_was_written(faulty: Faulty) -> None:
    engine = faulty.engine(Nothing())
    inputs = engine.lm_tokenizer("the food", return_tensors="pt")

    def write(new: int) -> None:
        engine.lm.generate(**inputs, custom_generate=engine.custom_generate, max_new_tokens=new)

    calls = faulty.calls("lm", lambda: write(3))
    with faulty.failing("lm", spoils(float("nan")), after=calls), pytest.raises(NumericalError) as caught:
        write(6)
    assert caught.value.partial is not None and len(caught.value.partial.token_ids[0]) == 3


LOOKAHEADS = {
    "lm": [Expectation(3), Paths(3, count=2)],
    "masked lm": [Masked(3), Gibbs(4, block=2, iterations=2)],
    "verifier": [Expectation(3), Gibbs(4, block=2, iterations=2), Nothing()],
}


@pytest.mark.parametrize(("model", "lookahead"), [(name, some) for name in LOOKAHEADS for some in LOOKAHEADS[name]])
def test_where_memory_runs_out_less_goes_through_at_once_with_one_warning(
    faulty: Faulty, model: str, lookahead
) -> None:
    engine = faulty.engine(lookahead)
    whole = engine.generate(PROMPTS, max_new_tokens=4, num_return_sequences=2, seed=1)
    tried: list[int] = []
    with faulty.failing(model, has_room_for(2, tried)), pytest.warns(RuntimeWarning) as warned:
        out = engine.generate(PROMPTS, max_new_tokens=4, num_return_sequences=2, seed=1)
    if model == "lm":
        first = "6 texts at once: going on with 3"
    elif lookahead.draws:
        first = "30 candidates at once: going on with 15"
    else:  # the two texts of a prompt are judged as one where they begin
        first = "15 candidates at once: going on with 8"
    assert len(warned) == 1 and first in str(warned[0].message) and NAMES[model] in str(warned[0].message)
    assert 0 < sum(rows > 2 for rows in tried) < 10  # what there is room for is remembered
    assert out.token_ids == whole.token_ids and [len(steps) for steps in out.trace] == [4] * 6
    torch.testing.assert_close(out.scores, whole.scores, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("keep", ["best", "sample"])
def test_particles_stay_together_where_memory_runs_out(faulty: Faulty, keep: str) -> None:
    engine = faulty.engine(Nothing(), particles=3, keep=keep, resample=1.0)
    whole = engine.generate(PROMPTS, max_new_tokens=8, seed=1)
    with faulty.failing("lm", has_room_for(3, []), after=3), pytest.warns(RuntimeWarning, match="3 texts at once"):
        out = engine.generate(PROMPTS, max_new_tokens=8, seed=1)
    assert out.token_ids == whole.token_ids
    if keep == "sample":
        assert out.log_evidence == pytest.approx(whole.log_evidence, abs=1e-4)


def test_texts_that_share_processors_stay_together(faulty: Faulty) -> None:
    """A processor may count on the rows that it knows; the candidates are fewer nonetheless."""
    engine = faulty.engine(Nothing())
    tried: list[int] = []
    with faulty.failing("lm", has_room_for(2, tried)), pytest.raises(ForwardError, match=r"memory.*3 rows, at token 1"):
        engine.generate(PROMPTS, max_new_tokens=4, logits_processor=[lambda ids, scores: scores])
    assert tried == [3]


def test_memory_that_does_not_suffice_for_one_is_an_error(faulty: Faulty) -> None:
    engine = faulty.engine(Nothing())
    words = f"{NAMES['verifier']} ran out of memory: no room for 1 rows"
    with (
        faulty.failing("verifier", has_room_for(0, [])),
        pytest.warns(RuntimeWarning) as warned,
        pytest.raises(ForwardError, match=words),
    ):
        engine.generate(PROMPTS, max_new_tokens=4)
    assert len(warned) == 1


@pytest.mark.parametrize(
    ("problem", "expected"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate"), True),
        (
            RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory: you tried to"),
            True,
        ),
        (RuntimeError("cuBLAS error: CUBLAS_STATUS_ALLOC_FAILED when calling"), True),
        (RuntimeError("The size of tensor a (3) must match the size of tensor b (4)"), False),
        (ValueError("out of memory of yesterday"), False),
        (None, False),
    ],
)
def test_what_counts_as_memory_that_ran_out(problem: Exception | None, expected: bool) -> None:
    assert ran_out_of_memory(problem) is expected


def test_a_model_that_stalls_is_given_up(faulty: Faulty) -> None:
    engine, released = faulty.engine(Nothing()), threading.Event()
    whole = engine.generate("a", max_new_tokens=10)
    with faulty.failing("verifier", lambda forward, rows: released.wait(60) and forward(), after=3):
        with pytest.raises(StallError, match=rf"{NAMES['verifier']} did not answer within 1 s, at token ") as caught:
            engine.generate("a", max_new_tokens=10, timeout=1)
        token = int(str(caught.value).rpartition(" ")[2])
        assert caught.value.partial is not None and caught.value.partial.token_ids[0] == whole.token_ids[0][: token - 1]
        with pytest.raises(TimeoutError):
            list(engine.stream("a", max_new_tokens=10, timeout=1))
        released.set()
    assert engine.generate("a", max_new_tokens=10).token_ids == whole.token_ids


def test_with_a_limit_the_texts_are_the_same_and_no_thread_stays(faulty: Faulty) -> None:
    engine = faulty.engine(Expectation(2))
    before = set(threading.enumerate())
    whole = engine.generate(PROMPTS, max_new_tokens=4, seed=2)
    limited = engine.generate(PROMPTS, max_new_tokens=4, seed=2, timeout=600)
    assert limited.token_ids == whole.token_ids and torch.equal(limited.scores, whole.scores)
    stream = engine.stream("a", max_new_tokens=9, timeout=600)
    next(stream)
    stream.close()
    for thread in set(threading.enumerate()) - before:
        thread.join(60)
        assert not thread.is_alive()
    for wrong in (0, -1, "soon", True, float("nan")):
        with pytest.raises(InputError, match="timeout must be a number of seconds above 0 or None, got"):
            engine.generate("a", timeout=wrong)


@pytest.mark.parametrize("rule", ["odds", "bayes", "logit", "softmax"])
def test_a_verifier_that_is_never_satisfied_leaves_the_lm_alone_and_the_trace_says_so(rule: str) -> None:
    never = Verifier.from_callable(lambda texts: [0.0] * len(texts))
    config = SconeConfig(lookahead=Nothing(), min_mass=0, reweigh=rule)
    engine = Scone(tiny.llama(), None, never, config)
    out, plain = (
        engine.generate(PROMPTS, max_new_tokens=5),
        engine.with_config(strength=0).generate(PROMPTS, max_new_tokens=5),
    )
    assert out.token_ids == plain.token_ids
    for step, other in zip(*(chain(*some.trace) for some in (out, plain))):
        torch.testing.assert_close(step.log_p_star, other.log_p_star)
        assert step.hopeless and not other.hopeless
    sometimes = Scone(tiny.llama(), None, Verifier.from_callable(lambda texts: ["e" in t[-1] for t in texts]), config)
    assert not all(step.hopeless for step in chain(*sometimes.generate(PROMPTS, max_new_tokens=5).trace))
