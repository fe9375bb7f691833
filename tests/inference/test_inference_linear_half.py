"""`linear_half` is a linear layer on a weight in 16 bits, to the last bit of that weight."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from scone_kernels import to_panels
from scone_kernels._panels import from_panels
from scone_kernels.inference.ops.linear_half import linear_half

HALVES = (torch.float16, torch.bfloat16)
ROWS = (0, 1, 3, 4, 5, 8, 9, 12, 13, 20, 24, 25, 61)  # both sides of every block and of where panels are widened first
WIDTHS = ((5, 3), (64, 48), (33, 50), (577, 131), (0, 4), (1600, 49))  # (1600, 49): widened in several pieces


def _inputs(rows, depth, width, dtype=torch.bfloat16, bias=True):
    generator = torch.Generator().manual_seed(rows + depth + width)
    shapes = ((rows, depth), (width, depth), (width,))
    x, weight, shift = (torch.randn(shape, generator=generator) for shape in shapes)
    return x, weight.to(dtype).float(), shift if bias else None


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("depth, width", WIDTHS)
def test_matches_float64(depth, width, dtype, backend):
    for rows in ROWS:
        x, weight, bias = _inputs(rows, depth, width, dtype, bias=rows % 2 == 0)
        wide = [None if tensor is None else tensor.double() for tensor in (x, weight, bias)]
        magnitude = nn.functional.linear(*[None if tensor is None else tensor.abs() for tensor in wide])
        actual = linear_half(x, to_panels(weight), bias, width=width, backend=backend)
        assert actual.shape == (rows, width) and actual.dtype == torch.float32
        error = (actual.double() - nn.functional.linear(*wide)).abs()
        assert (error <= 4e-6 * magnitude + 1e-12).all()  # of the sum of the terms' sizes: each sum is one chain


@pytest.mark.parametrize("dtype", HALVES)
def test_every_number_of_16_bits_is_itself(dtype, backend):
    bits = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype).float()
    weight = bits[bits.isfinite()].view(-1, 64)  # also those below the smallest normal number
    panels = torch.nn.functional.pad(weight.to(dtype), (0, 0, 0, -len(weight) % 48))
    panels = panels.view(-1, 48, 64).transpose(1, 2).contiguous()
    for rows in (64, 8):  # widened first, and while it is read
        found = [linear_half(x, panels, width=len(weight), backend=backend) for x in torch.eye(64).split(rows)]
        assert torch.equal(torch.cat(found).T, weight)


@pytest.mark.parametrize("value", (torch.nan, torch.inf, -torch.inf))
def test_what_is_not_finite_stays(value, backend):
    weight = torch.ones(3, 2)
    weight[1, 0] = value
    for dtype in HALVES:
        panels = torch.nn.functional.pad(weight.to(dtype), (0, 0, 0, 45)).view(1, 48, 2).transpose(1, 2).contiguous()
        found = linear_half(torch.ones(30, 2), panels, width=3, backend=backend)
        torch.testing.assert_close(found, torch.tensor([2.0, 1 + value, 2.0]).expand(30, 3), equal_nan=True)


def test_panels_hold_what_can_be_held():
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(50, 7, generator=generator)
    assert to_panels(weight) is None
    for dtype in HALVES:
        panels = to_panels(weight.to(dtype).float())
        assert panels.dtype == dtype and panels.shape == (2, 7, 48) and panels.is_contiguous()
        assert torch.equal(from_panels(panels, 50), weight.to(dtype).float())
        assert torch.equal(to_panels(weight.to(dtype)), panels)
    assert to_panels(torch.full((2, 2), 1e-30)) is None  # neither: too fine for one, too small for the other
    assert to_panels(torch.tensor([[torch.nan]]).half()).isnan().any()  # as it is
    with pytest.raises(TypeError, match=r"weight must be float32, bfloat16 or float16, got torch\.float64"):
        to_panels(weight.double())


@pytest.mark.parametrize("dtype", HALVES)
def test_bits_do_not_depend_on_threads_or_on_other_rows(dtype, cpu_builds):
    x, weight, bias = _inputs(61, 1600, 131, dtype)
    panels, before = to_panels(weight), torch.get_num_threads()
    for build in cpu_builds:
        torch.ops.scone_kernels.use_cpu_build(build)
        expected = linear_half(x, panels, bias, width=131)
        try:
            for threads in (1, 2, 5):
                torch.set_num_threads(threads)
                assert torch.equal(linear_half(x, panels, bias, width=131), expected)
        finally:
            torch.set_num_threads(before)
        for rows in (1, 7, 24, 25, 40):
            assert torch.equal(linear_half(x[:rows], panels, bias, width=131), expected[:rows])


def test_views_and_half_precision():
    x, weight, bias = _inputs(9, 48, 20)
    panels = to_panels(weight)
    expected = linear_half(x, panels, bias, width=20)
    assert torch.equal(linear_half(x.T.contiguous().T, panels, bias, width=20), expected)
    assert torch.equal(linear_half(x, panels.transpose(1, 2).contiguous().transpose(1, 2), bias, width=20), expected)
    half = x.bfloat16()
    assert torch.equal(linear_half(half, panels, bias, width=20), linear_half(half.float(), panels, bias, width=20))


def test_bad_arguments_are_named():
    panels = to_panels(torch.ones(50, 4))
    with pytest.raises(ValueError, match=r"panels must have shape \(2, 5, 48\), got \(2, 4, 48\)"):
        linear_half(torch.ones(1, 5), panels, width=50)
    with pytest.raises(ValueError, match=r"panels must have shape \(3, 4, 48\), got \(2, 4, 48\)"):
        linear_half(torch.ones(1, 4), panels, width=97)
    with pytest.raises(TypeError, match=r"panels must be bfloat16 or float16, got torch\.float32"):
        linear_half(torch.ones(1, 4), panels.float(), width=50)
    with pytest.raises(ValueError, match=r"bias must have shape \(50,\), got \(49,\)"):
        linear_half(torch.ones(1, 4), panels, torch.ones(49), width=50)


def test_is_a_good_citizen_of_torch():
    x, weight, bias = _inputs(4, 6, 5)
    torch.library.opcheck(torch.ops.scone_kernels.linear_half.default, (x, to_panels(weight), bias, 5))
