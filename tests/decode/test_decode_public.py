"""The public face: names, docstrings, and examples that run."""

from __future__ import annotations

import doctest
import functools
import importlib
import inspect
from collections.abc import Iterator

import pytest

MODULES = [
    "bridge", "conditionals", "config", "control", "decode", "errors", "estimate", "hf", "lm", "loading", "lookahead",
    "output", "reference", "sampling", "seeds", "text", "verifier",
]  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def _load_models_once() -> Iterator[None]:
    """Examples load the embedded models again and again; here each is read from disk once."""
    from scone import embedded

    names = ("load_lm", "load_masked_lm", "load_classifier")
    originals = {name: getattr(embedded, name) for name in names}
    for name, load in originals.items():
        setattr(embedded, name, functools.cache(load))
    yield
    for name, load in originals.items():
        setattr(embedded, name, load)


@pytest.mark.parametrize("name", MODULES)
def test_examples_run(name: str) -> None:
    module = importlib.import_module(f"scone.{name}")
    results = doctest.testmod(module, optionflags=doctest.IGNORE_EXCEPTION_DETAIL | doctest.ELLIPSIS)
    assert results.failed == 0


@pytest.mark.parametrize("name", MODULES)
def test_public_names_exist_and_are_documented(name: str) -> None:
    module = importlib.import_module(f"scone.{name}")
    for public in module.__all__:
        thing = getattr(module, public)
        if inspect.isclass(thing) or inspect.isfunction(thing):
            assert inspect.getdoc(thing), f"{name}.{public} has no docstring"
        if inspect.isclass(thing) and thing.__module__ == module.__name__:
            for attribute, member in vars(thing).items():
                if not attribute.startswith("_") and (inspect.isfunction(member) or isinstance(member, property)):
                    assert inspect.getdoc(member), f"{name}.{public}.{attribute} has no docstring"


def test_names_of_the_decoder() -> None:
    import scone.decode

    assert set(scone.decode.__all__) == {"Output", "Scone", "SconeConfig", "Step", "Verifier"}
    assert scone.Scone is scone.decode.Scone
    assert set(scone.__all__) == {"Scone", "SconeConfig", "SconeError", "Verifier", "__version__"}
    with pytest.raises(AttributeError, match="no attribute 'Engine'"):
        scone.Engine  # noqa: B018
