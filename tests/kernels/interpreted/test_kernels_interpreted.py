"""Run with TRITON_INTERPRET=1 by test_kernels_triton.py: small shapes, because the interpreter is slow."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl

from scone_kernels import (
    _noise,
    expected_dot,
    gibbs_sample_from_logits,
    likely_rows,
    likely_rows_from_logits,
    status,
    to_panels,
)
from scone_kernels.ops import _triton as common
from scone_kernels.testing import OPS, assert_accurate, make_inputs

ODD = {"rows": 3, "vocabulary": 127, "width": 17, "table_width": 5}
# Two blocks of rows, of the head's columns and of the table's; the last tile of tokens is partial for every configuration.
BLOCKS = {"rows": 67, "vocabulary": 300, "width": 70, "table_width": 260}
SOFTMAX = [op for op in OPS if op != "taylor_estimate"]
LARGE = 0x123456789ABCDEF  # both halves of its multiples matter


def blocks_of(op):
    """The sampler is slow to interpret and has smaller blocks of rows."""
    return {**BLOCKS, "rows": 20} if op.startswith("gibbs") else BLOCKS


@pytest.fixture
def three_tiles(monkeypatch):
    """Each program sweeps over three tiles, as it does in a large vocabulary; a small one has a program for each tile."""

    def splits(head, blocks):
        length = 3 * blocks["BLOCK_V"]
        return -(-head.vocabulary // length), length

    monkeypatch.setattr(common.Head, "splits", splits)


def with_empty_tiles(inputs):
    """No token counts in some tiles of 32 and of 64: in the middle of a program's range, and at the beginning of one."""
    inputs.arguments["keep"][64:128] = False
    inputs.arguments["keep"][192:256] = False
    return inputs


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
    """A program for each tile: their results are put together afterwards."""
    inputs = make_inputs(op, **blocks_of(op), sequences=3 if "dot" in op or "taylor" in op else None)
    assert_accurate(inputs.run("triton"), inputs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("op", SOFTMAX)
def test_several_tiles_in_a_program(op, dtype, three_tiles):
    """What a program carries from tile to tile: the maximum, the sum, the weighted sums, the best token."""
    inputs = with_empty_tiles(make_inputs(op, **blocks_of(op), temperature=0.7, dtype=dtype))
    assert_accurate(inputs.run("triton"), inputs)


@pytest.mark.parametrize("op", SOFTMAX)
def test_without_bias_and_mask(op, three_tiles):
    """Nothing but the end of the vocabulary keeps a token out."""
    inputs = make_inputs(op, rows=3, vocabulary=130, width=4, bias=False, keep=False)
    assert_accurate(inputs.run("triton"), inputs)


@pytest.mark.parametrize("sequences", [5, 40])
@pytest.mark.parametrize("op", ["expected_dot", "expected_dot_from_logits"])
def test_segments_in_any_order(op, sequences, three_tiles):
    """Few gradients, which the table is projected on beforehand, and many, which each row projects it on."""
    inputs = make_inputs(op, **{**BLOCKS, "table_width": 7}, sequences=sequences)
    inputs.arguments["segment"] = torch.arange(67) * 3 % (sequences - 1)  # the last sequence has no row
    inputs = with_empty_tiles(inputs)
    assert_accurate(inputs.run("triton"), inputs)


def test_rows_of_no_sequence_are_nan():
    """On a GPU nobody looks at the values of `segment` before."""
    inputs = make_inputs("expected_dot", **ODD, sequences=2)
    inputs.arguments["segment"] = torch.tensor([2, 1, -1])
    out = expected_dot(**inputs.arguments, backend="triton", check=False)
    assert out.isnan().tolist() == [True, False, True]


@pytest.mark.parametrize("form", ["position", "mean"])
def test_taylor_forms(form):
    """Columns in two blocks, rows in any order, and a sequence without rows, which keeps its score."""
    inputs = make_inputs("taylor_estimate", rows=9, vocabulary=1, width=300, sequences=4)
    inputs.arguments.update({"form": form, "segment": torch.arange(9) % 3})
    out = inputs.run("triton")
    assert_accurate(out, inputs)
    assert out[3] == inputs.arguments["score"][3]


@pytest.mark.parametrize("op", OPS)
def test_views(op):
    """Strides do not matter, neither those of floats nor those of indices."""
    inputs = make_inputs(op, **ODD, sequences=2 if "dot" in op or "taylor" in op else None)
    inputs = inputs.map(lambda tensor: tensor.repeat_interleave(2, -1)[..., ::2])
    for name in inputs.arguments.keys() & {"segment", "seed", "counter"}:
        given = torch.tensor([1, 0, 1])
        inputs.arguments[name] = torch.stack([given, 1 - given], -1)[:, 0]
    out = inputs.run("triton")
    assert_accurate(out, inputs)
    if op.startswith("gibbs_sample"):
        assert torch.equal(out.tokens, inputs.run("reference").tokens)


@pytest.mark.parametrize("op", ["gibbs_sample", "gibbs_sample_from_logits"])
def test_tokens_are_bit_equal(op, three_tiles):
    inputs = make_inputs(op, rows=20, vocabulary=200, width=1, temperature=0.8)
    inputs.arguments["seed"] = torch.arange(20) * LARGE - 2**62
    inputs.arguments["counter"] = 2**62 - torch.arange(20) * LARGE
    assert torch.equal(inputs.run("triton").tokens, inputs.run("reference").tokens)


@triton.jit
def gumbel_kernel(bits_ptr, out_ptr, N: tl.constexpr):
    """The noise of N words."""
    at = tl.arange(0, N)
    tl.store(out_ptr + at, common.gumbel(tl.load(bits_ptr + at).to(tl.uint32)))


def test_noise_is_bit_equal():
    """Draws hardly ever depend on the last bits: here they are compared themselves, with the extremes among them."""
    bits = torch.randint(2**32, (1024,), generator=torch.Generator().manual_seed(0))
    bits[:2] = torch.tensor([0, 2**32 - 1])
    out = torch.empty(1024)
    gumbel_kernel[(1,)](bits, out, N=1024)
    assert torch.equal(out, _noise.gumbel_of_bits(bits))


@pytest.mark.parametrize("vocabulary", [3, 130])
def test_tokens_of_short_programs_are_bit_equal(vocabulary):
    inputs = make_inputs("gibbs_sample_from_logits", rows=20, vocabulary=vocabulary, width=1)
    assert torch.equal(inputs.run("triton").tokens, inputs.run("reference").tokens)


@pytest.mark.parametrize("tied", [(5, 9), (40, 70), (40, 150)], ids=["tile", "program", "programs"])
def test_ties_go_to_the_lowest_token(tied, three_tiles):
    """Within a tile, between the tiles of a program, and between programs."""
    logits = torch.full((1, 200), -torch.inf)
    logits[0, list(tied)] = 1e30  # noise is below its rounding
    assert gibbs_sample_from_logits(logits, seed=0, counter=0, backend="triton").tokens.item() == tied[0]


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
