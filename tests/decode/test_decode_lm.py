"""The causal LM with its cache: forks grow apart, and NaN is found."""

from __future__ import annotations

import pytest
import tiny
import torch

from scone.errors import NumericalError
from scone.lm import CausalLM, check_finite


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
    fine = torch.tensor([[1.0, -torch.inf, torch.inf]])
    check_finite(fine, "the LM", allow_infinite=True)
    check_finite(torch.empty(0, 3), "the LM", allow_infinite=True)
    with pytest.raises(NumericalError, match="the LM returned NaN in 1 of 4 values"):
        check_finite(torch.tensor([[torch.inf, torch.nan, -torch.inf, 2.0]]), "the LM", allow_infinite=True)
    with pytest.raises(NumericalError, match="the LM returned NaN in 2 of 3 values"):
        check_finite(fine, "the LM")
