"""`encoder` is the pass that its reference defines, for texts of any lengths and any rows of them."""

from __future__ import annotations

import pytest
import torch

from scone_kernels.inference.ops.encoder import EncoderLayer, encoder, reference

# lengths of the texts, layers, heads, width, inner: fewer and more keys than a vector has lanes, depths that none divides
SIZES = (
    ((5,), 1, 1, 4, 6),
    ((3, 1, 30, 17), 2, 3, 24, 33),
    ((9, 0, 41), 2, 2, 64, 50),
    ((2, 2), 3, 4, 40, 16),
    ((8, 24, 7), 1, 1, 35, 8),
    ((120, 1, 99), 2, 3, 270, 520),  # more panels than go together, weights of several tiles and slices
    ((), 1, 2, 8, 8),
)


def _inputs(lengths, layers, heads, width, inner):
    generator = torch.Generator().manual_seed(sum(lengths))

    def linear(out, size):
        weight = torch.randn(out, size, generator=generator) / size**0.5
        return weight, torch.randn(out, generator=generator)

    def norm():
        return torch.randn(width, generator=generator), torch.randn(width, generator=generator)

    parts = [
        EncoderLayer(
            *(tensor for _ in range(4) for tensor in linear(width, width)),
            *(*norm(), *linear(inner, width), *linear(width, inner), *norm()),
        )
        for _ in range(layers)
    ]
    x = torch.randn(sum(lengths), width, generator=generator)
    return {"x": x, "starts": torch.tensor([0, *lengths]).cumsum(0), "layers": parts, "heads": heads}


def _exact(x, starts, layers, heads, rows):
    weights = [weight.double() for layer in layers for weight in layer]
    return reference(x.double(), starts, rows, weights, heads, 1e-12)


@pytest.mark.parametrize("sizes", SIZES)
def test_matches_the_definition_in_float64(sizes, backend):
    given = _inputs(*sizes)
    every = torch.arange(len(given["x"]))
    for rows in (None, every[::3], every[1:2].repeat(3), every[:0]):  # all, some, one several times, none
        exact = _exact(**given, rows=every if rows is None else rows)
        actual = encoder(**given, rows=rows, backend=backend)
        assert actual.dtype == torch.float32
        torch.testing.assert_close(actual.double(), exact, atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize("dtype", (torch.float16, torch.bfloat16))
@pytest.mark.parametrize("sizes", SIZES)
def test_products_may_be_of_16_bits(sizes, dtype, backend):
    given = _inputs(*sizes)
    given["layers"] = [EncoderLayer(*(w.to(dtype) if w.dim() == 2 else w for w in layer)) for layer in given["layers"]]
    exact = _exact(**given, rows=torch.arange(len(given["x"])))
    torch.testing.assert_close(encoder(**given, backend=backend).double(), exact, atol=2e-5, rtol=2e-5)


def test_a_text_knows_nothing_of_the_others(backend):
    given = _inputs(*SIZES[1])
    whole = encoder(**given, backend=backend)
    other = given["x"].clone()
    other[4:] = 7.0  # the third text and the fourth
    changed = encoder(**(given | {"x": other}), backend=backend)
    assert torch.equal(changed[:4], whole[:4])
    assert not torch.allclose(changed[4:], whole[4:])


def test_bits_do_not_depend_on_threads():
    given = _inputs(*SIZES[1])
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            found.append(encoder(**given))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(found[0], other) for other in found[1:])


def test_views_are_taken_as_they_are():
    given = _inputs(*SIZES[1])
    expected = encoder(**given)
    views = given | {"x": given["x"].T.contiguous().T}
    assert torch.equal(encoder(**views), expected)
    turned = [layer._replace(up=layer.up.T.contiguous().T) for layer in given["layers"]]
    torch.testing.assert_close(encoder(**(given | {"layers": turned})), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("change", "message"),
    (
        ({"layers": []}, r"layers must be a list of at least one layer, got \[\]"),
        ({"heads": 5}, "heads must be a positive divisor of 24"),
        ({"starts": torch.tensor([0, 3, 4, 34, 50])}, r"starts must end with 51, the rows of x, got \[50\]"),
        ({"starts": torch.tensor([0, 4, 3, 34, 51])}, "starts must go from 0 to 51, the rows of x, and not fall"),
        ({"rows": torch.tensor([3, 1])}, "rows must not fall"),
        ({"rows": torch.tensor([1, 51])}, r"rows must lie in \[0, 51\)"),
        ({"rows": torch.tensor([-1, 1])}, r"rows must lie in \[0, 51\)"),
        ({"x": torch.ones(51, 23)}, "heads must be a positive divisor of 23"),
        ({"x": torch.ones(51, 21)}, r"layers\[0\].up must have shape \(any, 21\), got \(33, 24\)"),
    ),
)
def test_bad_arguments_are_named(change, message):
    with pytest.raises(ValueError, match=message):
        encoder(**(_inputs(*SIZES[1]) | change))
    given = _inputs(*SIZES[1])
    given["layers"][1] = given["layers"][1]._replace(query=torch.zeros(24, 23))
    with pytest.raises(ValueError, match=r"layers\[1\].query must have shape \(24, 24\), got \(24, 23\)"):
        encoder(**given)
    with pytest.raises(TypeError, match=r"x must be float32, got torch\.float16"):
        encoder(**(_inputs(*SIZES[1]) | {"x": torch.ones(51, 24).half()}))


def test_is_a_good_citizen_of_torch():
    given = _inputs(*SIZES[1])
    weights = [weight for layer in given["layers"] for weight in layer]
    order = (given["x"], given["starts"], torch.tensor([0, 9]), weights, 3, 1e-12)
    torch.library.opcheck(torch.ops.scone_kernels.encoder.default, order)


def test_a_backward_says_that_there_is_none(backend):
    given = _inputs(*SIZES[1])
    for weight in (given["x"], *(weight for layer in given["layers"] for weight in layer)):
        weight.requires_grad_()
    with pytest.raises(NotImplementedError, match="encoder has no gradient"):
        encoder(**given, backend=backend).sum().backward()
    with torch.no_grad():
        assert not encoder(**given, backend=backend).requires_grad
