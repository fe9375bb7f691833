"""The public face: names, docstrings, and examples that run."""

from __future__ import annotations

import dataclasses
import doctest
import functools
import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import scone

MODULES = [
    "bridge", "conditionals", "config", "control", "decode", "errors", "estimate", "hf", "lm", "loading", "lookahead",
    "output", "prompts", "reference", "replay", "sampling", "seeds", "text", "verifier", "workers",
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
    results = doctest.testmod(module)
    assert results.failed == 0


@pytest.mark.parametrize("name", MODULES)
def test_public_names_exist_and_are_documented(name: str) -> None:
    module = importlib.import_module(f"scone.{name}")
    for public in module.__all__:
        thing = getattr(module, public)
        if inspect.isclass(thing) or inspect.isfunction(thing):
            assert ">>>" in (inspect.getdoc(thing) or ""), f"{name}.{public} has no docstring with an example"
        if inspect.isclass(thing) and thing.__module__ == module.__name__:
            for attribute, member in vars(thing).items():
                if not attribute.startswith("_") and (inspect.isfunction(member) or isinstance(member, property)):
                    assert inspect.getdoc(member), f"{name}.{public}.{attribute} has no docstring"


def test_every_method_of_the_decoder_has_an_example() -> None:
    from scone import decode

    methods = [decode.Scone.generate, decode.Scone.stream, decode.Scone.next_token, decode.Scone.from_pretrained]
    methods += [decode.Scone.custom_generate, decode.Scone.logits_processor, decode.Scone.with_config]
    methods += [decode.Verifier.from_pretrained, decode.Verifier.from_module, decode.Verifier.from_callable]
    methods += [decode.SconeConfig.replace, decode.SconeConfig.paper, decode.SconeConfig.fast]
    for thing in methods:
        assert ">>>" in inspect.getdoc(thing), f"{thing.__qualname__} has no example"


def test_names_of_the_decoder() -> None:
    from scone import decode

    assert set(decode.__all__) == {"Output", "Scone", "SconeConfig", "Step", "Verifier"}
    assert scone.Scone is decode.Scone
    assert set(scone.__all__) == {"Scone", "SconeConfig", "SconeError", "Verifier", "__version__"}
    with pytest.raises(AttributeError, match="no attribute 'Engine'"):
        scone.Engine  # noqa: B018


@pytest.mark.parametrize("page", ["options.md", "transformers.md"])
def test_pages_run(page: str) -> None:
    """The Python blocks of a page about the decoder, in order, as one session."""
    text = (Path(__file__).parents[2] / "docs" / page).read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```", text, flags=re.S | re.M)
    assert blocks
    session: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, page, "exec"), session)


def test_the_table_of_options_is_complete_and_true() -> None:
    """docs/options.md has a row for each option, in order, with its default."""
    page = (Path(__file__).parents[2] / "docs" / "options.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `(\w+)` \| ([^|]+?) \|", page, flags=re.M))
    fields = dataclasses.fields(scone.SconeConfig)
    assert list(rows) == [field.name for field in fields]
    for field in fields:
        shown = f'`"{field.default}"`' if isinstance(field.default, str) else str(field.default)
        assert rows[field.name] == shown, field.name
