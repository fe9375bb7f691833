"""The predicted figures: counted, not timed, so they can be checked by hand."""

from __future__ import annotations

import importlib.util

import pytest

from scone_kernels.testing import OPS

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs the package triton")


def test_a_product_is_counted_by_hand():
    """(100, 8) @ (8, 600) in tiles of 64 x 256: two blocks of rows read all columns, three of columns all rows."""
    from bench.roofline import Work, _product

    assert _product(100, 600, 8, (64, 256)) == Work(2 * 100 * 600 * 8, 700 * 16, (2 * 600 + 3 * 100) * 16 - 700 * 16)


def test_the_longest_of_three_counts():
    from bench.roofline import Gpu, Work

    gpu = Gpu("one", bandwidth=1.0, flops=10.0, target="sm_80")
    assert Work(5e12, 1e12, 3e12).seconds(gpu) == {"flops": 0.5, "bytes": 1.0, "cache": 2.0}


def test_ready_logits_are_read_once_and_eager_torch_moves_them_seven_times():
    """gibbs_sample: softmax (2), noise (1), quotient (3), argmax (1)."""
    from bench.roofline import eager, ours

    logits = 64 * 1000 * 2
    assert ours("gibbs_sample_from_logits", 64, 1000, 8, "sm_80").bytes - logits == 64 * 28
    assert eager("gibbs_sample_from_logits", 64, 1000, 8).bytes - 7 * logits == 64 * 8


def test_every_op_and_gpu_has_a_line_and_says_that_it_is_predicted(capsys):
    from bench import roofline

    assert roofline.main(["--gpu", "H100 SXM"]) == 0
    printed = capsys.readouterr().out
    assert "Nothing here was timed" in printed and "## H100 SXM, predicted" in printed and "A100" not in printed
    assert all(f"| `{op}` " in printed for op in OPS)


def test_a_gpu_with_larger_tiles_reads_less_again():
    from bench.roofline import ours

    ampere, hopper = (ours("likely_rows", 200, 5000, 64, target).again for target in ("sm_80", "sm_90"))
    assert hopper < ampere
