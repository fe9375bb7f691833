"""Single calls for pytest-benchmark: `pytest bench --benchmark-only`, with --benchmark-json and --benchmark-compare."""

from __future__ import annotations

import pytest
import torch

from bench.cases import make_case, models_of
from scone_kernels.testing import OPS, assert_accurate

CASES = [(op, model) for op in OPS for model in models_of(op)]
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def _synchronised(function):
    def call():
        result = function()
        if DEVICE == "cuda":
            torch.cuda.synchronize()
        return result

    return call


@pytest.mark.parametrize(("op", "model"), CASES)
def test_op(benchmark, op, model):
    case = make_case(op, model, 100, device=DEVICE)
    small = case.first_rows()
    assert_accurate(small.run(), small)
    benchmark.group = f"{op} {model} N=100"
    benchmark(_synchronised(case.inputs.run))


@pytest.mark.parametrize(("op", "model"), CASES)
def test_plain_torch(benchmark, op, model):
    case = make_case(op, model, 100, device=DEVICE)
    benchmark.group = f"{op} {model} N=100"
    function, given = list(case.plain.values())[-1], case.rival_arguments()
    with torch.inference_mode():
        benchmark(_synchronised(lambda: function(*given)))
