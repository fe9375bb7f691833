"""The ops are good citizens of torch: schemas, fakes, torch.compile, autograd."""

from __future__ import annotations

import pytest
import torch

import scone_kernels
from scone_kernels.testing import OPS, make_inputs

SMALL = {"rows": 5, "vocabulary": 20, "width": 4, "table_width": 3}


def _small(op):
    return make_inputs(op, **SMALL, sequences=2 if "dot" in op or "taylor" in op else None)


def _schema_arguments(op):
    """Arguments in the order of the custom op's schema."""
    given = dict(_small(op).arguments)
    if "seed" in given:
        given["seed"] = torch.full((SMALL["rows"],), given["seed"])
    given.setdefault("vocabulary", SMALL["vocabulary"])
    given.setdefault("form", "position")
    schema = getattr(torch.ops.scone_kernels, op).default._schema
    return tuple(given.get(argument.name) for argument in schema.arguments)


@pytest.mark.parametrize("op", OPS)
def test_opcheck(op):
    torch.library.opcheck(getattr(torch.ops.scone_kernels, op).default, _schema_arguments(op))


@pytest.mark.parametrize("op", OPS)
def test_compiles_fullgraph(op):
    inputs = _small(op)
    function = torch.compile(getattr(scone_kernels, op), fullgraph=True, backend="aot_eager")
    compiled, eager = function(**inputs.arguments), inputs.run()
    for left, right in zip(_parts(compiled), _parts(eager)):
        assert torch.equal(left, right)


@pytest.mark.parametrize("op", OPS)
def test_a_backward_says_that_there_is_none(op):
    """Were the results constants, a loss that is made of them would quietly lack its gradient."""
    inputs = _small(op).map(lambda tensor: tensor.clone().requires_grad_())
    for backend in (None, "reference"):
        parts = [part for part in _parts(inputs.run(backend)) if part.is_floating_point()]
        for part in parts:
            with pytest.raises(NotImplementedError, match=f"{op} has no gradient: call it under torch.no_grad"):
                part.sum().backward()
        with torch.no_grad():
            plain = [part for part in _parts(inputs.run(backend)) if part.is_floating_point()]
        assert parts and all(torch.equal(left, right) for left, right in zip(parts, plain, strict=True))
        assert not any(part.requires_grad for part in plain)


@pytest.mark.parametrize("op", OPS)
def test_results_of_constants_are_constants(op):
    assert not any(part.requires_grad for part in _parts(_small(op).run()))


@pytest.mark.parametrize("op", OPS)
def test_inputs_are_left_alone(op, backend):
    inputs = _small(op)
    tensors = [part for part in inputs.arguments.values() if isinstance(part, torch.Tensor | list)]
    before = [tensor.clone() for tensor in _parts(tensors)]
    inputs.run(backend)
    for value, now in zip(before, _parts(tensors), strict=True):
        assert torch.equal(value, now)


def _parts(result):
    """All tensors of a result, also those in a list of it."""
    if isinstance(result, torch.Tensor):
        return [result]
    return [tensor for part in result if part is not None for tensor in _parts(part)]
