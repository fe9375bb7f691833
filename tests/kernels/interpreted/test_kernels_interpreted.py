"""Run with TRITON_INTERPRET=1 by test_kernels_triton.py: small shapes, because the interpreter is slow."""

from __future__ import annotations

import pytest
import torch

from scone_kernels import gibbs_sample_from_logits, status
from scone_kernels.testing import OPS, assert_accurate, make_inputs

ODD = {"rows": 3, "vocabulary": 127, "width": 17, "table_width": 5}
BLOCKS = {"rows": 33, "vocabulary": 130, "width": 64}


def test_status():
    assert status().triton.live and "interpreted" in status().triton.why


@pytest.mark.parametrize("shape", [{"rows": 1, "vocabulary": 1, "width": 1}, ODD, {**ODD, "rows": 0}], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("op", OPS)
def test_matches_reference(op, dtype, shape):
    inputs = make_inputs(op, **shape, dtype=dtype, temperature=0.7)
    assert_accurate(inputs.run("triton"), inputs)


@pytest.mark.parametrize("op", OPS)
def test_several_blocks(op):
    inputs = make_inputs(op, **BLOCKS, sequences=3 if "dot" in op or "taylor" in op else None)
    assert_accurate(inputs.run("triton"), inputs)


def test_mean_form():
    inputs = make_inputs("taylor_estimate", rows=9, vocabulary=1, width=300, sequences=4)
    inputs.arguments.update({"form": "mean", "segment": torch.arange(9) % 3})
    assert_accurate(inputs.run("triton"), inputs)


def test_views():
    inputs = make_inputs("expected_dot", **ODD).map(lambda tensor: tensor.repeat_interleave(2, -1)[..., ::2])
    assert_accurate(inputs.run("triton"), inputs)


@pytest.mark.parametrize("vocabulary", [3, 514, 3000])
def test_tokens_are_bit_equal(vocabulary):
    inputs = make_inputs("gibbs_sample_from_logits", rows=20, vocabulary=vocabulary, width=1, temperature=0.8)
    inputs.arguments["seed"] = torch.arange(20) * 0x123456789ABCDEF - 2**62
    assert torch.equal(inputs.run("triton").tokens, inputs.run("reference").tokens)


def test_row_without_a_softmax_raises():
    logits = torch.zeros(3, 70)
    logits[1] = -torch.inf
    with pytest.raises(ValueError, match="row 1 has no token"):
        gibbs_sample_from_logits(logits, seed=0, counter=0, backend="triton")
