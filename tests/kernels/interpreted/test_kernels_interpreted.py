"""Run with TRITON_INTERPRET=1 by test_kernels_triton.py: small shapes, because the interpreter is slow."""

from __future__ import annotations

import pytest
import torch

from scone_kernels import gibbs_sample_from_logits, likely_rows, likely_rows_from_logits, status, to_panels
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


@pytest.mark.parametrize("among, min_p", [(1, 0.0), (20, 0.1), (64, 0.0)])
def test_likely_tokens_and_draws_are_equal(among, min_p):
    """Also where there are ties, and where fewer tokens are kept than asked for."""
    logits = torch.randn(5, 600, generator=torch.Generator().manual_seed(0))
    logits[1] = (logits[1] * 2).round()
    keep = torch.arange(600) % 10 == 3
    options = {"keep": keep, "among": among, "min_p": min_p, "seed": 2**63 + 5, "counter": torch.arange(5) - 2**40}
    found, expected = (likely_rows_from_logits(logits, **options, backend=name) for name in ("triton", "reference"))
    assert torch.equal(found.tokens, expected.tokens) and torch.equal(found.drawn, expected.drawn)


def test_likely_rows_takes_panels_and_other_tables():
    """Padding meets a table's row that is NaN; the second table is wider than a block."""
    hidden, weight = torch.randn(3, 8), torch.randn(70, 8).bfloat16().float()
    tables = [torch.randn(70, 4).half(), torch.randn(600, 70).T]
    tables[0][0] = torch.nan
    keep = (torch.arange(70) % 30) == 7
    found = likely_rows(hidden, to_panels(weight), tables, keep=keep, backend="triton")
    expected = likely_rows(hidden, weight, tables, keep=keep, backend="reference")
    assert torch.equal(found.tokens, expected.tokens) and found.drawn is None
    for left, right in zip(found.rows, expected.rows, strict=True):
        torch.testing.assert_close(left, right, atol=1e-4, rtol=1e-4)


def test_row_without_a_softmax_raises():
    logits = torch.zeros(3, 70)
    logits[1] = -torch.inf
    with pytest.raises(ValueError, match="row 1 has no token"):
        gibbs_sample_from_logits(logits, seed=0, counter=0, backend="triton")
    with pytest.raises(ValueError, match="row 1 has no token"):
        likely_rows_from_logits(logits, seed=0, counter=0, backend="triton")
