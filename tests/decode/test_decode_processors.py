"""Logits processors of other people in batches: they see what transformers would show them, and keep their state apart."""

from __future__ import annotations

from itertools import pairwise

import pytest
import tiny
import torch
from transformers import RepetitionPenaltyLogitsProcessor

from scone.decode import Scone, SconeConfig
from scone.errors import InputError
from scone.lookahead import Nothing
from scone.processors import OneByOne, PerText, may_change_places

PROMPTS = ["the movie was", "good food and a river in spring", "a"]
LETTERS = [40, 41, 42, 43]  # tokens of a letter each


@pytest.fixture(scope="module")
def quick(positive) -> Scone:
    return Scone(tiny.llama(), None, positive, SconeConfig(particles=1, min_mass=0, lookahead=Nothing()))


class InTurn:
    """Lets row b write LETTERS in turn, from the b-th on, and fails where a token is not the one that it let through."""

    def __init__(self) -> None:
        self.rows: list[int] = []
        self.shapes: list[tuple[int, ...]] = []

    def __call__(self, ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        self.shapes.append(tuple(ids.shape))
        self.rows = self.rows or [b - 1 for b in range(len(ids))]
        kept = torch.full_like(scores, -torch.inf)
        for b, row in enumerate(ids.tolist()):
            if len(self.shapes) > 1:
                assert row[-1] == LETTERS[self.rows[b] % 4], "a token that was not let through"
            self.rows[b] += 1
            kept[b, LETTERS[self.rows[b] % 4]] = 0
        return kept


def cycle(first: int, length: int) -> list[int]:
    return [LETTERS[(first + i) % 4] for i in range(length)]


def test_state_is_kept_row_by_row(quick: Scone) -> None:
    """One call a step for the whole batch, prompts padded on the left."""
    turn = InTurn()
    out = quick.generate(PROMPTS, max_new_tokens=6, num_return_sequences=2, logits_processor=[turn])
    assert out.token_ids == [cycle(b, 6) for b in range(6)]
    width = max(len(quick.parts.lm.encode(prompt)) for prompt in PROMPTS)
    assert turn.shapes == [(6, width + i) for i in range(6)]


def test_what_a_processor_sees_is_what_transformers_shows_it(quick: Scone) -> None:
    """Row by row the same ids as in transformers' own loop, padding behind a text that has ended included."""
    tok, eos = quick.lm_tokenizer, quick.lm_tokenizer.eos_token_id

    class EndsTheSecond:
        def __init__(self) -> None:
            self.seen: list[list[list[int]]] = []

        def __call__(self, ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
            self.seen.append(ids.tolist())
            changed = scores.clone()
            changed[:, eos] = -torch.inf
            if len(self.seen) == 2:
                changed[1] = -torch.inf
                changed[1, eos] = 0
            return changed

    ours, theirs = EndsTheSecond(), EndsTheSecond()
    free = quick.with_config(strength=0)
    before = tok.padding_side, tok.pad_token
    tok.padding_side, tok.pad_token = "left", tok.eos_token
    out = free.generate(PROMPTS, max_new_tokens=5, do_sample=False, logits_processor=[ours])
    batch = tok(PROMPTS, return_tensors="pt", padding=True)
    quick.lm.generate(**batch, max_new_tokens=5, do_sample=False, logits_processor=[theirs])
    tok.padding_side, tok.pad_token = before
    assert [len(ids) for ids in out.token_ids] == [5, 2, 5] and out.token_ids[1][-1] == eos
    assert ours.seen == theirs.seen and len(ours.seen) == 5


def test_scores_may_be_written_into(quick: Scone) -> None:
    """A processor that masks in place must not reach what the LM itself has said."""

    def in_place(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        scores[:, 40:] = -torch.inf
        return scores

    for processor in (in_place, OneByOne(in_place), PerText(lambda: in_place)):
        loop = quick.loop(processors=[processor])
        logits = torch.randn(1, quick.parts.lm.vocabulary)
        before = logits.clone()
        after = loop.process(quick.open(["the movie"], max_new_tokens=2, seed=0), logits)
        assert torch.equal(logits, before) and bool(after[:, 40:].isneginf().all())


def test_functions_of_a_row_see_no_padding(quick: Scone) -> None:
    """transformers' own and what is wrapped: a text is the same whatever else is in the batch."""
    seen: list[tuple[int, ...]] = []

    def watch(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        seen.append(tuple(ids.shape))
        return scores

    processors = [RepetitionPenaltyLogitsProcessor(3.0), OneByOne(watch)]
    together = quick.generate(PROMPTS, max_new_tokens=6, seed=2, logits_processor=processors).token_ids
    assert seen[:3] == [(1, len(quick.parts.lm.encode(prompt))) for prompt in PROMPTS]
    for prompt, ids in zip(PROMPTS, together):
        assert quick.generate([prompt], max_new_tokens=6, seed=2, logits_processor=processors).token_ids == [ids]


def test_a_processor_for_each_text(quick: Scone) -> None:
    made: list[InTurn] = []

    def factory() -> InTurn:
        made.append(InTurn())
        return made[-1]

    out = quick.generate(PROMPTS, max_new_tokens=5, logits_processor=[PerText(factory)])
    assert out.token_ids == [cycle(0, 5)] * 3 and len(made) == 3
    assert [turn.shapes[0][1] for turn in made] == [len(quick.parts.lm.encode(prompt)) for prompt in PROMPTS]
    pieces = "".join(quick.stream(PROMPTS[0], max_new_tokens=5, logits_processor=[PerText(factory)]))
    assert pieces == out.continuations[0]


class Alternates:
    """Lets nothing follow a token but what is not it, and fails where it was not shown every token of its text."""

    def __init__(self) -> None:
        self.seen: list[int] = []

    def __call__(self, ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        (row,) = ids.tolist()
        assert not self.seen or self.seen == row[:-1], "tokens of another text"
        self.seen = row
        kept = torch.full_like(scores, -torch.inf)
        kept[0, LETTERS] = scores[0, LETTERS]
        kept[0, row[-1]] = -torch.inf
        return kept


def test_particles_take_their_state_along(quick: Scone) -> None:
    engine = quick.with_config(particles=6, resample=1.0, keep="sample")
    processor = PerText(Alternates)
    out = engine.generate(PROMPTS, max_new_tokens=8, seed=1, logits_processor=[processor])
    assert any(step.resampled for steps in out.trace for step in steps)
    for ids in out.token_ids:
        assert set(ids) <= set(LETTERS) and all(a != b for a, b in pairwise(ids))
    inputs = engine.lm_tokenizer(PROMPTS[0], return_tensors="pt")
    options = {"custom_generate": engine.custom_generate, "max_new_tokens": 4, "do_sample": True, "temperature": 0.9}
    ids = engine.lm.generate(**inputs, **options, logits_processor=[processor])[0, inputs["input_ids"].shape[1] :]
    assert set(ids.tolist()) <= set(LETTERS)


def test_what_looks_at_one_row_at_a_time_lets_texts_change_places(quick: Scone) -> None:
    engine = quick.with_config(particles=3, resample=1.0)
    penalty = RepetitionPenaltyLogitsProcessor(1.2)
    assert (
        may_change_places([penalty]) and may_change_places([OneByOne(InTurn())]) and not may_change_places([InTurn()])
    )
    out = engine.generate(PROMPTS, max_new_tokens=8, seed=1, logits_processor=[penalty])
    assert any(step.resampled for steps in out.trace for step in steps)


def test_particles_keep_their_places_where_state_goes_by_rows(quick: Scone) -> None:
    engine = quick.with_config(particles=3, resample=1.0)
    out = engine.generate(PROMPTS, max_new_tokens=8, seed=1, logits_processor=[InTurn()])
    assert not any(step.resampled for steps in out.trace for step in steps)
    inputs = engine.lm_tokenizer(PROMPTS[0], return_tensors="pt")
    options = {"custom_generate": engine.custom_generate, "max_new_tokens": 10, "do_sample": True, "temperature": 0.9}
    engine.lm.generate(**inputs, **options, logits_processor=[InTurn()])  # which asserts that a row goes on from itself
    assert "".join(engine.stream(PROMPTS[0], max_new_tokens=10, logits_processor=[InTurn()]))


def test_beams_of_transformers_take_their_state_along(quick: Scone) -> None:
    tok, processor = quick.lm_tokenizer, PerText(Alternates)
    inputs = tok("the movie was", return_tensors="pt")
    for _ in range(2):
        out = quick.lm.generate(
            **inputs, logits_processor=[processor], max_new_tokens=8, num_beams=4, do_sample=False, length_penalty=0.0
        )
        new = out[0, inputs["input_ids"].shape[1] :].tolist()
        assert len(new) == 8 and all(a != b for a, b in pairwise(new))


@pytest.mark.parametrize(
    "wrap", [lambda p: p, OneByOne, lambda p: PerText(lambda: p)], ids=["batch", "one", "per text"]
)
@pytest.mark.parametrize(
    "broken, message",
    [
        (lambda ids, scores: scores[:, :-1], r"must return scores of shape \(\d, 337\), got \(\d, 336\)"),
        (lambda ids, scores: None, r"must return scores of shape \(\d, 337\), got NoneType"),
        (lambda ids, scores: scores + torch.nan, "must return numbers or -inf, got nan"),
        (lambda ids, scores: scores + torch.inf, "must return numbers or -inf, got inf"),
    ],
)
def test_what_a_processor_may_not_return(quick: Scone, wrap, broken, message: str) -> None:
    with pytest.raises(InputError, match=message):
        quick.generate(PROMPTS, max_new_tokens=2, logits_processor=[wrap(broken)])


def test_what_makes_no_processor() -> None:
    with pytest.raises(InputError, match="factory must be a function that makes a logits processor, got 3"):
        PerText(3)
    with pytest.raises(InputError, match="factory must make a logits processor, got None"):
        PerText(lambda: None)(torch.zeros(1, 2, dtype=torch.long), torch.zeros(1, 5))


def test_a_new_call_of_transformers_begins_anew(quick: Scone) -> None:
    processor = PerText(InTurn)
    for prompt in ("a", *PROMPTS):
        inputs = quick.lm_tokenizer(prompt, return_tensors="pt")
        out = quick.lm.generate(**inputs, logits_processor=[processor], max_new_tokens=5, do_sample=False)
        assert out[0, inputs["input_ids"].shape[1] :].tolist() == cycle(0, 5)
