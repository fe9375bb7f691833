"""`decoder_step` is the step that its reference defines, whatever the sizes, and leaves what it is given alone."""

from __future__ import annotations

import pytest
import torch

from scone_kernels import to_panels
from scone_kernels.inference.ops.decoder_step import DecoderLayer, decoder_step, reference

# rows, layers, heads, groups, depth, width, inner, length of the cache
SIZES = (
    (1, 1, 1, 1, 2, 4, 6, 0),
    (7, 2, 6, 2, 8, 48, 33, 13),
    (20, 2, 3, 3, 10, 30, 64, 31),
    (3, 1, 4, 1, 6, 17, 5, 90),
    (7, 2, 6, 2, 10, 270, 520, 5),  # weights of several tiles
    (61, 2, 6, 2, 10, 270, 520, 5),  # and several panels
    (50, 2, 6, 2, 10, 270, 520, 5),  # and two rows behind the last full one
    (0, 1, 2, 1, 4, 8, 8, 3),
)


def _inputs(rows, layers, heads, groups, depth, width, inner, length, bias=True, seed=0):
    generator = torch.Generator().manual_seed(seed)

    def random(*shape):
        return torch.randn(shape, generator=generator)

    def linear(out, size):
        return random(out, size) / size**0.5

    def product(out):
        return linear(out, width), random(out) if bias else None

    kept = groups * depth
    parts = [
        DecoderLayer(
            *(random(width), *product(heads * depth), *product(kept), *product(kept), linear(width, heads * depth)),
            *(random(width), linear(inner, width), linear(inner, width), linear(width, inner)),
        )
        for _ in range(layers)
    ]
    keys, values = ([random(rows, groups, length, depth) for _ in range(layers)] for _ in range(2))
    angle = random(rows, depth // 2).repeat(1, 2)
    return {"x": random(rows, width), "layers": parts, "keys": keys, "values": values, "cos": angle.cos(),
            "sin": angle.sin(), "heads": heads}  # fmt: skip


def _double(value):
    if isinstance(value, torch.Tensor):
        return value.double() if value.is_floating_point() else value
    return [_double(part) for part in value] if isinstance(value, list | tuple) else value


def _exact(seen=None, eps=1e-5, **given):
    wide = {name: _double(value) for name, value in given.items()}
    weights = [weight for layer in wide["layers"] for weight in layer]
    order = [wide[name] for name in ("keys", "values", "cos", "sin")]
    return reference(wide["x"], weights, *order, seen, given["heads"], eps)


@pytest.mark.parametrize("bias", (True, False))
@pytest.mark.parametrize("sizes", SIZES)
def test_matches_the_definition_in_float64(sizes, bias, backend):
    given = _inputs(*sizes, bias=bias)
    for actual, exact in zip(decoder_step(**given, backend=backend), _exact(**given)):
        assert actual.dtype == torch.float32 and actual.shape == exact.shape
        torch.testing.assert_close(actual.double(), exact, atol=2e-5, rtol=2e-5)


PRODUCTS = ("query", "key", "value", "mix", "gate", "up", "down")


def _rounded(given, dtype):
    """The same with weights of 16 bits, and with those in panels."""
    wide = [layer._replace(**{n: getattr(layer, n).to(dtype).float() for n in PRODUCTS}) for layer in given["layers"]]
    panels = [layer._replace(**{n: to_panels(getattr(layer, n)) for n in PRODUCTS}) for layer in wide]
    return given | {"layers": wide}, given | {"layers": panels}


@pytest.mark.parametrize("dtype", (torch.float16, torch.bfloat16))
@pytest.mark.parametrize("sizes", SIZES)
def test_weights_may_lie_in_panels_of_16_bits(sizes, dtype, backend):
    wide, panels = _rounded(_inputs(*sizes), dtype)
    found = decoder_step(**panels, backend=backend)
    for actual, exact in zip(found, _exact(**wide)):
        torch.testing.assert_close(actual.double(), exact, atol=2e-5, rtol=2e-5)
    mixed = panels | {"layers": [layer._replace(up=other.up) for layer, other in zip(panels["layers"], wide["layers"])]}
    for actual, before in zip(decoder_step(**mixed, backend=backend), found):
        torch.testing.assert_close(actual, before, atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize("dtype", (torch.float16, torch.bfloat16))
@pytest.mark.parametrize("sizes", SIZES)
def test_the_cache_may_be_of_16_bits(sizes, dtype, backend):
    given = _inputs(*sizes)
    given |= {name: [cached.to(dtype) for cached in given[name]] for name in ("keys", "values")}
    for actual, exact in zip(decoder_step(**given, backend=backend), _exact(**given)):
        assert actual.dtype == torch.float32
        torch.testing.assert_close(actual.double(), exact, atol=2e-5, rtol=2e-5)


def test_in_panels_a_text_has_the_same_bits_in_any_company(cpu_builds):
    for build in cpu_builds:
        torch.ops.scone_kernels.use_cpu_build(build)
        _, given = _rounded(_inputs(*SIZES[5]), torch.bfloat16)
        many = decoder_step(**given)[0]
        for count in (1, 5, 13, 30):
            some = {name: given[name][:count] for name in ("x", "cos", "sin")}
            some |= {name: [cached[:count] for cached in given[name]] for name in ("keys", "values")}
            assert torch.equal(decoder_step(**(given | some))[0], many[:count])


def test_padding_is_not_looked_at(backend):
    given = _inputs(*SIZES[1])
    seen = torch.arange(13)[None] >= torch.tensor([0, 1, 5, 12, 13, 2, 0])[:, None]  # of one text all is padding
    expected = decoder_step(**given, seen=seen, backend=backend)
    for exact, actual in zip(_exact(**given, seen=seen), expected):
        torch.testing.assert_close(actual.double(), exact, atol=2e-5, rtol=2e-5)
    for cached in (*given["keys"], *given["values"]):
        cached.masked_fill_(~seen[:, None, :, None], 1e30)
    for actual, before in zip(decoder_step(**given, seen=seen, backend=backend), expected):
        torch.testing.assert_close(actual, before)
    unmasked = decoder_step(**given, backend=backend)[0]
    assert not torch.allclose(unmasked, expected[0])


def test_arguments_stay_as_they_are_and_may_be_views():
    given = _inputs(*SIZES[1])
    before = {name: [t.clone() for t in given[name]] for name in ("keys", "values")} | {"x": given["x"].clone()}
    expected = decoder_step(**given)
    assert torch.equal(given["x"], before["x"])
    assert all(map(torch.equal, given["keys"], before["keys"])) and all(
        map(torch.equal, given["values"], before["values"])
    )
    views = given | {"x": given["x"].T.contiguous().T}
    for name in ("keys", "values"):  # as they lie after a prefill
        views[name] = [cached.transpose(1, 2).contiguous().transpose(1, 2) for cached in given[name]]
    assert all(map(torch.equal, decoder_step(**views), expected))


def test_bits_do_not_depend_on_threads_or_on_other_rows():
    given = _inputs(*SIZES[1])
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            found.append(decoder_step(**given)[0])
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(found[0], other) for other in found[1:])
    alone = {name: given[name][:1] for name in ("x", "cos", "sin")}
    alone |= {name: [cached[:1] for cached in given[name]] for name in ("keys", "values")}
    assert torch.equal(decoder_step(**(given | alone))[0], found[0][:1])


@pytest.mark.parametrize(
    ("change", "message"),
    (
        ({"layers": []}, "layers, keys and values must be equally many, got 0, 2 and 2"),
        ({"x": torch.ones(6, 48)}, r"keys\[0\] must have shape \(6, any, any, any\), got \(7, 2, 13, 8\)"),
        ({"heads": 5}, "heads must be a multiple of 2"),
        ({"cos": torch.ones(7, 4)}, r"cos must have shape \(7, 8\), got \(7, 4\)"),
        ({"seen": torch.ones(7, 12, dtype=torch.bool)}, r"seen must be bool of shape \(7, 13\)"),
        ({"x": torch.ones(7, 47)}, r"layers\[0\].first_norm must have shape \(47,\), got \(48,\)"),
    ),
)
def test_bad_arguments_are_named(change, message):
    with pytest.raises(ValueError, match=message):
        decoder_step(**(_inputs(*SIZES[1]) | change))
    _, panels = _rounded(_inputs(*SIZES[1]), torch.float16)
    panels["layers"][1] = panels["layers"][1]._replace(key=torch.zeros(2, 48, 48).half())
    with pytest.raises(ValueError, match=r"layers\[1\].key must have shape \(1, 48, 48\), got \(2, 48, 48\)"):
        decoder_step(**panels)
    half = _inputs(*SIZES[1]) | {"x": torch.ones(7, 48).bfloat16()}
    with pytest.raises(TypeError, match=r"x must be float32, got torch\.bfloat16"):
        decoder_step(**half)
    mixed = _inputs(*SIZES[1])
    mixed["values"][1] = mixed["values"][1].half()
    with pytest.raises(
        TypeError, match=r"values\[1\] must have the dtype of keys\[0\], torch\.float32, got torch\.float16"
    ):
        decoder_step(**mixed)


def test_is_a_good_citizen_of_torch():
    given = _inputs(*SIZES[1])
    weights = [weight for layer in given["layers"] for weight in layer]
    order = (given["x"], weights, *(given[name] for name in ("keys", "values", "cos", "sin")), None, 6, 1e-5)
    torch.library.opcheck(torch.ops.scone_kernels.decoder_step.default, order)


def test_a_backward_says_that_there_is_none(backend):
    given = _inputs(*SIZES[1])
    for weight in (given["x"], *(weight for layer in given["layers"] for weight in layer)):
        weight.requires_grad_()
    with pytest.raises(NotImplementedError, match="decoder_step has no gradient"):
        decoder_step(**given, backend=backend)[0].sum().backward()
    with torch.no_grad():
        assert not decoder_step(**given, backend=backend)[0].requires_grad
