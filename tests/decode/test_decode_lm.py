"""The causal LM with its cache: forks grow apart, and NaN is found."""

from __future__ import annotations

import copy
from types import SimpleNamespace

import pytest
import tiny
import torch

from scone.errors import NumericalError
from scone.lm import CausalLM, check_finite, position_limit
from scone.loop import commit


@pytest.mark.parametrize("rows", [[0, 1], [1, 0], [1, 1, 0]], ids=str)
def test_a_selection_grows_apart_from_its_source(rows):
    lm = CausalLM(*tiny.llama())
    prompts = [lm.encode("the film was"), lm.encode("a good day")]
    state = lm.prefill(prompts)
    token = torch.tensor([5, 7, 9])[: len(rows)]
    forked = lm.step(lm.select(state, torch.tensor(rows)), token)
    assert forked.mask.shape[1] == state.mask.shape[1] + 1
    assert state.cache.get_seq_length() == state.mask.shape[1]
    alone = [lm.prefill([[*prompts[row], int(new)]]).logits[0] for row, new in zip(rows, token)]
    torch.testing.assert_close(forked.logits, torch.stack(alone), atol=1e-5, rtol=1e-5)


def test_nan_is_found_among_infinities():
    fine = torch.tensor([[1.0, -torch.inf, -torch.inf]])
    check_finite(fine, "the LM", allow_infinite=True)
    check_finite(torch.empty(0, 3), "the LM", allow_infinite=True)
    with pytest.raises(NumericalError, match="the LM returned NaN in 1 of 4 values"):
        check_finite(torch.tensor([[torch.inf, torch.nan, -torch.inf, 2.0]]), "the LM", allow_infinite=True)
    with pytest.raises(NumericalError, match="the LM returned infinity in 2 of 3 values"):
        check_finite(fine, "the LM")
    with pytest.raises(NumericalError, match="the LM returned infinity in 1 of 2 values"):
        check_finite(torch.tensor([[torch.inf, 2.0]]), "the LM", allow_infinite=True)
    with pytest.raises(NumericalError, match="the LM returned -infinity alone in 1 of 2 rows"):
        check_finite(torch.tensor([[-torch.inf], [2.0]]), "the LM", allow_infinite=True)


def test_a_rollout_ends_at_the_end_of_the_text():
    """Each row by itself; what is drawn after an end is not of the text, and when all have ended nothing is run."""
    lm = copy.copy(CausalLM(*tiny.llama()))
    (eos,) = lm.stop_ids
    script = torch.tensor([[5, eos, 7, 8], [6, 7, 8, 9], [eos, 5, 5, 5]])
    state = lm.prefill([lm.encode("the film was")] * 3)
    asked = []

    def draw(logits, i):
        asked.append(i)
        return script[:, i]

    assert lm.rollout(lm.select(state, torch.arange(3)), 4, draw) == [[5], [6, 7, 8, 9], []]
    assert asked == [0, 1, 2, 3]
    asked.clear()
    assert lm.rollout(lm.select(state, torch.tensor([0, 2])), 4, lambda logits, i: draw(logits, i)[[0, 2]]) == [[5], []]
    assert asked == [0, 1]
    assert lm.rollout(state, 0, draw) == [[], [], []]


def test_a_rollout_reads_what_it_drew():
    lm = CausalLM(*tiny.llama())
    prompts = [lm.encode("the film was"), lm.encode("a good")]
    seen = []

    def draw(logits, i):
        seen.append(logits)
        return torch.tensor([30 + i, 40 + i])

    lm.rollout(lm.prefill(prompts), 3, draw)
    for i, logits in enumerate(seen):
        drawn = [[*prompts[0], *range(30, 30 + i)], [*prompts[1], *range(40, 40 + i)]]
        alone = torch.stack([lm.prefill([ids]).logits[0] for ids in drawn])
        torch.testing.assert_close(logits, alone, atol=1e-4, rtol=1e-4)


def test_an_expectation_is_of_texts_that_go_on():
    """However likely the end is, it is not among the tokens that are expected."""
    model, tok = tiny.llama()
    ends = copy.deepcopy(model)
    head = torch.tensor([tok.eos_token_id])
    ends.lm_head.register_forward_hook(lambda module, given, out: out.index_fill(-1, head, 1e4))
    plain, ending = CausalLM(model, tok), CausalLM(ends, tok)
    table = torch.eye(plain.vocabulary)
    for length in (1, 2, 3):
        (found,) = ending.anticipate(ending.prefill([plain.encode("the film")]), length, [table], among=5)
        (expected,) = plain.anticipate(plain.prefill([plain.encode("the film")]), length, [table], among=5)
        assert found.shape == (1, length, plain.vocabulary) and bool((found[..., tok.eos_token_id] == 0).all())
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
        assert bool(((found > 0).sum(-1) == 5).all())


@pytest.mark.parametrize("before", ["", "the movie was a great film and the actors were good , the story was bad "])
@pytest.mark.parametrize("more", ["but the food", " naïve café 🙂 !"])
def test_what_tokens_add_to_a_text(before, more):
    lm = CausalLM(*tiny.llama())
    ids = lm.encode(before + more)
    for at in range(len(ids) + 1):
        lead = lm.decode(ids[:at])
        assert lead + lm.added(ids[:at], ids[at:]) == before + more


def test_joined_texts_are_those_of_both_states_in_the_order_given():
    lm = CausalLM(*tiny.llama())
    prompts = [lm.encode(text) for text in ("the film was", "a good", "the")]
    state = lm.prefill(prompts)
    first = lm.step(lm.select(state, torch.tensor([2, 0])), torch.tensor([30, 31]))
    second = lm.step(lm.select(state, torch.tensor([1])), torch.tensor([32]))
    after = lm.step(lm.join(first, second, [1, 2, 0]), torch.tensor([40, 41, 42]))
    written = [[*prompts[0], 31, 40], [*prompts[1], 32, 41], [*prompts[2], 30, 42]]
    alone = torch.stack([lm.prefill([ids]).logits[0] for ids in written])
    torch.testing.assert_close(after.logits, alone, atol=1e-4, rtol=1e-4)


def test_positions_that_a_model_has():
    free = SimpleNamespace(model_max_length=1 << 40)
    for family, limit in (("bert", 512), ("roberta", 512)):
        assert position_limit(tiny.masked_lm(family)[0], free) == limit
    assert position_limit(tiny.masked_lm("roberta")[0], SimpleNamespace(model_max_length=100)) == 100
    assert position_limit(None, SimpleNamespace(model_max_length=None)) == 1 << 30


def test_what_was_read_and_what_was_not_come_in_the_order_of_the_texts():
    """The loop's commit: of three texts the lookahead has read the second one's token only."""
    lm = CausalLM(*tiny.llama())
    prompts = [lm.encode(text) for text in ("the film was", "a good", "the")]
    state = lm.prefill(prompts)
    read = lm.step(lm.select(state, torch.tensor([0, 1])), torch.tensor([50, 31]))
    known = SimpleNamespace(row_after=lambda b, token: 1 if b == 1 else None, judged=SimpleNamespace(read=read))
    after = commit(lm, state, [0, 1, 2], [30, 31, 32], known)
    alone = torch.stack([lm.prefill([[*ids, 30 + i]]).logits[0] for i, ids in enumerate(prompts)])
    torch.testing.assert_close(after.logits, alone, atol=1e-4, rtol=1e-4)
