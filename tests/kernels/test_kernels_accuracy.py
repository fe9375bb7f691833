"""Every op on every backend that runs here is as accurate as plain torch in the same dtype."""

from __future__ import annotations

import pytest
import torch
from shapes import REAL_VOCABULARIES, SHAPES

from scone_kernels.testing import OPS, assert_accurate, make_inputs


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("op", OPS)
def test_matches_reference(op, shape, dtype, backend):
    inputs = make_inputs(op, **shape, dtype=dtype, temperature=0.7)
    assert_accurate(inputs.run(backend), inputs)


@pytest.mark.parametrize("op", OPS)
def test_the_tolerance_notices_a_small_error(op):
    """All of the above says little if this passes: one part in 30,000, at the element with the least cancellation."""
    inputs = make_inputs(op, rows=24, vocabulary=512, width=32, temperature=0.7)
    out = inputs.run()
    result = out.logprob if op.startswith("gibbs_sample") else out.rows[1] if op.startswith("likely_rows") else out
    assert_accurate(out, inputs)
    result.view(-1)[result.abs().argmax()] *= 1 + 1 / 30_000
    with pytest.raises(AssertionError, match="is above"):
        assert_accurate(out, inputs)


@pytest.mark.parametrize("sequences", [1, 2, 7, 40])
@pytest.mark.parametrize("op", ["expected_dot", "expected_dot_from_logits", "taylor_estimate"])
def test_sequences_share_gradients_in_any_order(op, sequences, backend):
    """From one gradient for all rows to more gradients than rows; rows of a sequence need not be neighbours."""
    inputs = make_inputs(op, rows=61, vocabulary=1030, width=20, table_width=30, sequences=sequences)
    generator = torch.Generator().manual_seed(1)
    inputs.arguments["segment"] = torch.randint(sequences, (61,), generator=generator)
    assert_accurate(inputs.run(backend), inputs)


def test_shuffled_segments_of_half_precision_logits(backend):
    """Ready logits that need both a conversion and a new order of rows."""
    inputs = make_inputs(
        "expected_dot_from_logits", rows=50, vocabulary=700, width=1, table_width=9, sequences=4, dtype=torch.bfloat16
    )
    inputs.arguments["segment"] = torch.arange(50) % 4
    assert_accurate(inputs.run(backend), inputs)


@pytest.mark.parametrize("form", ["position", "mean"])
def test_taylor_forms(form, backend):
    inputs = make_inputs("taylor_estimate", rows=30, vocabulary=1, width=77, sequences=4)
    inputs.arguments.update({"form": form, "segment": torch.arange(30) % 3})  # sequence 3 has no rows
    out = inputs.run(backend)
    assert_accurate(out, inputs)
    assert out[3] == inputs.arguments["score"][3]


@pytest.mark.parametrize("vocabulary", REAL_VOCABULARIES)
@pytest.mark.parametrize("op", [op for op in OPS if op != "taylor_estimate"])
def test_real_vocabularies(op, vocabulary, backend):
    inputs = make_inputs(op, rows=2, vocabulary=vocabulary, width=8)
    assert_accurate(inputs.run(backend), inputs)


def _every_second_column(tensor):
    return torch.stack([tensor, torch.full_like(tensor, torch.nan)], dim=-1).flatten(-2)[..., ::2]


def _transposed(tensor):
    return tensor.T.contiguous().T if tensor.dim() == 2 else tensor


def _inside_a_larger_tensor(tensor):
    if tensor.dim() < 2:
        return tensor
    larger = torch.full((tensor.shape[0] + 2, tensor.shape[1] + 3), torch.nan, dtype=tensor.dtype)
    larger[1:-1, 2:-1] = tensor
    return larger[1:-1, 2:-1]


@pytest.mark.parametrize("view", [_every_second_column, _transposed, _inside_a_larger_tensor])
@pytest.mark.parametrize("op", OPS)
def test_views(op, view, backend):
    """Strides do not matter, and nothing outside a view is read."""
    inputs = make_inputs(op, rows=9, vocabulary=600, width=12, table_width=10).map(view)
    assert_accurate(inputs.run(backend), inputs)


@pytest.mark.parametrize("op", ["expected_embedding", "expected_dot", "gibbs_sample"])
def test_without_bias_and_mask(op, backend):
    inputs = make_inputs(op, rows=5, vocabulary=90, width=6, bias=False, keep=False)
    assert_accurate(inputs.run(backend), inputs)


def _assert_same_bits_for_any_threads(inputs, build):
    torch.ops.scone_kernels.use_cpu_build(build)
    before = torch.get_num_threads()
    results = []
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            results.append(inputs.run())
    finally:
        torch.set_num_threads(before)
    for other in results[1:]:
        for left, right in zip(_parts(results[0]), _parts(other)):
            assert torch.equal(left, right)


@pytest.mark.parametrize("op", OPS)
def test_bits_do_not_depend_on_threads(op, cpu_builds):
    sequences = 9 if "dot" in op or "taylor" in op else None
    inputs = make_inputs(op, rows=70, vocabulary=3000, width=40, sequences=sequences)
    for build in cpu_builds:
        _assert_same_bits_for_any_threads(inputs, build)


def test_bits_do_not_depend_on_the_groups_of_rows(cpu_builds):
    """With this many rows and tokens, 1, 2 and 5 threads share them out in groups of different sizes."""
    inputs = make_inputs("expected_embedding", rows=600, vocabulary=8200, width=8)
    for build in cpu_builds:
        _assert_same_bits_for_any_threads(inputs, build)


def _parts(result):
    """All tensors of a result, also those in a list of it."""
    if isinstance(result, torch.Tensor):
        return [result]
    return [tensor for part in result if part is not None for tensor in _parts(part)]


def test_large_logits_do_not_overflow(backend):
    inputs = make_inputs("expected_embedding_from_logits", rows=4, vocabulary=800, width=1, table_width=3)
    inputs.arguments["logits"] = inputs.arguments["logits"] * 1e4
    assert_accurate(inputs.run(backend), inputs)


def test_minus_infinity_is_a_mask(backend):
    """Tokens at -inf have no weight, also where a whole tile is masked before the first token that counts."""
    inputs = make_inputs("expected_dot_from_logits", rows=3, vocabulary=1100, width=1, table_width=4, keep=False)
    inputs.arguments["logits"][:, :1050] = -torch.inf
    assert_accurate(inputs.run(backend), inputs)


def test_tables_may_have_another_dtype(backend):
    inputs = make_inputs("expected_embedding", rows=5, vocabulary=300, width=16, dtype=torch.bfloat16)
    wide = make_inputs("expected_embedding", rows=5, vocabulary=300, width=16)
    inputs.arguments["table"] = wide.arguments["table"]
    out, exact = inputs.run(backend), inputs.exact()
    assert (out - exact).abs().max() < 1e-4
