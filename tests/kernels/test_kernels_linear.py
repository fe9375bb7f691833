"""`linear` is as accurate as torch's, on every path of it, and `for_few_rows` gives it to a model without touching it."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import scone_kernels
from scone_kernels import for_few_rows, linear

# both sides of where the ways of computing change, and sizes that no block divides; (300, 500): several tiles a
# thread; (5500, 7): several slices of a panel on any CPU
ROWS = (0, 1, 2, 3, 5, 6, 7, 12, 13, 45, 50, 64, 80, 128, 129, 200, 201)
WIDTHS = ((5, 3), (64, 8), (33, 50), (577, 131), (1540, 7), (8, 0), (300, 500), (5500, 7))


def _inputs(rows, depth, width, bias=True):
    generator = torch.Generator().manual_seed(rows + depth + width)
    shapes = ((rows, depth), (width, depth), (width,))
    x, weight, shift = (torch.randn(shape, generator=generator) for shape in shapes)
    return x, weight, shift if bias else None


def _assert_close(actual, x, weight, bias):
    wide = [None if tensor is None else tensor.double() for tensor in (x, weight, bias)]
    magnitude = nn.functional.linear(*[None if tensor is None else tensor.abs() for tensor in wide])
    error = (actual.double() - nn.functional.linear(*wide)).abs()
    assert (error <= 2e-6 * magnitude + 1e-12).all()  # of the sum of the terms' sizes, some 16 roundings


@pytest.mark.parametrize("depth, width", WIDTHS)
@pytest.mark.parametrize("rows", ROWS)
def test_matches_float64(rows, depth, width, backend):
    for bias in (True, False):
        given = _inputs(rows, depth, width, bias)
        _assert_close(linear(*given, backend=backend), *given)


def test_the_tolerance_notices_a_small_error():
    given = _inputs(7, 577, 131)
    wrong = linear(*given)
    wrong.view(-1)[wrong.abs().argmax()] *= 1 + 1e-4
    with pytest.raises(AssertionError):
        _assert_close(wrong, *given)


@pytest.mark.parametrize("rows", (3, 40))
def test_views_and_half_precision(rows):
    x, weight, bias = _inputs(rows, 48, 20)
    expected = linear(x, weight, bias)
    assert torch.equal(linear(x.T.contiguous().T, weight.T.contiguous().T, bias), expected)
    larger = torch.full((22, 53), torch.nan)
    larger[1:-1, 2:-3] = weight
    assert torch.equal(linear(x, larger[1:-1, 2:-3], bias), expected)
    same = weight[:1].expand(20, -1)  # all rows in one place
    assert torch.equal(linear(x, same, bias), linear(x, same.contiguous(), bias))
    assert torch.equal(linear(x[:, :0], weight[:, :0], bias), bias.expand(rows, -1))
    half = [tensor.bfloat16() for tensor in (x, weight, bias)]
    _assert_close(linear(*half), *half)


@pytest.mark.parametrize("rows", (1, 7, 40))
def test_bits_do_not_depend_on_threads_or_on_other_rows(rows):
    given = _inputs(rows, 300, 1001)
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            found.append(linear(*given))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(found[0], other) for other in found[1:])
    x, weight, bias = given
    assert torch.equal(linear(x[: min(rows, 12)], weight, bias)[:1], linear(x[:1], weight, bias))


def test_is_a_good_citizen_of_torch():
    given = _inputs(4, 6, 5)
    torch.library.opcheck(torch.ops.scone_kernels.linear.default, given)
    compiled = torch.compile(linear, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(*given), linear(*given))


@pytest.mark.parametrize(
    "change, message",
    [
        ({"weight": torch.zeros(5, 7)}, r"weight must have shape .*6"),
        ({"bias": torch.zeros(4)}, r"bias must have shape .*5"),
        ({"x": torch.zeros(4, 6, dtype=torch.int64)}, "x must be float32"),
        ({"backend": "triton"}, "backend"),
    ],
)
def test_bad_arguments_are_named(change, message):
    x, weight, bias = _inputs(4, 6, 5)
    with pytest.raises((ValueError, TypeError, RuntimeError), match=message):
        linear(**({"x": x, "weight": weight, "bias": bias} | change))


needs_extension = pytest.mark.skipif(not scone_kernels.status().cpu.live, reason="needs the C++ extension")


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(12, 30)
        self.again = self.first
        self.norm = nn.BatchNorm1d(30)
        self.missing = None

    def forward(self, x):
        return self.norm(self.first(x) + self.again(x))


@needs_extension
def test_a_twin_shares_all_but_its_linear_layers():
    model = Block().eval()
    twin, x = for_few_rows(model), torch.randn(4, 12)
    assert type(twin.first) is not nn.Linear and twin.first is twin.again and type(model.first) is nn.Linear
    assert twin.norm.running_mean is model.norm.running_mean
    with torch.no_grad():
        torch.testing.assert_close(twin(x), model(x), atol=1e-5, rtol=1e-5)
        model.first.weight.mul_(2)
        model.first.bias = nn.Parameter(torch.ones(30))
        torch.testing.assert_close(twin(x), model(x), atol=1e-5, rtol=1e-5)
    seen = []
    handle = model.first.register_forward_hook(lambda *_: seen.append(1))
    twin(x)
    handle.remove()
    twin(x)
    assert len(seen) == 2


@needs_extension
def test_a_twin_leaves_gradients_and_other_dtypes_to_torch():
    model = Block().eval()
    twin, x = for_few_rows(model), torch.randn(4, 12, requires_grad=True)
    (ours,) = torch.autograd.grad(twin(x).sum(), x)
    (theirs,) = torch.autograd.grad(model(x).sum(), x)
    assert torch.equal(ours, theirs)
    with torch.no_grad():
        assert for_few_rows(nn.Linear(3, 2).bfloat16())(torch.ones(1, 3).bfloat16()).dtype == torch.bfloat16
        assert for_few_rows(nn.Linear(3, 2))(torch.ones(2, 5, 3)).shape == (2, 5, 2)


@needs_extension
def test_a_twin_uses_the_kernel():
    with torch.no_grad(), torch.profiler.profile() as recorded:
        for_few_rows(nn.Linear(3, 2))(torch.ones(1, 3))
    assert any(event.key == "scone_kernels::linear" for event in recorded.key_averages())
