"""Every option of SconeConfig is on the command line, says what it does, and reaches the engine."""

from __future__ import annotations

import argparse
import dataclasses
import typing

import pytest

from scone.cli.attributes import SHORT_NAMES, Attribute
from scone.cli.options import HELP, PRESETS, add_config, read_config
from scone.config import SconeConfig

FIELDS = {field.name: field for field in dataclasses.fields(SconeConfig)}


def parse(*argv):
    parser = argparse.ArgumentParser()
    add_config(parser)
    return read_config(parser.parse_args(argv))


def other_value(name):
    """A legal value that is not the default."""
    hint, default = typing.get_type_hints(SconeConfig)[name], FIELDS[name].default
    if typing.get_origin(hint) is typing.Literal:
        return next(value for value in typing.get_args(hint) if value != default)
    if isinstance(default, bool):
        return not default
    if default is None:
        return 7
    return default + 1 if isinstance(default, int) else 0.25


def test_help_is_complete():
    assert set(HELP) == set(FIELDS)


@pytest.mark.parametrize("name", FIELDS)
def test_each_field_can_be_set(name):
    value, flag = other_value(name), name.replace("_", "-")
    argv = [f"--{flag}" if value else f"--no-{flag}"] if isinstance(value, bool) else [f"--{flag}", str(value)]
    config = parse(*argv)
    assert getattr(config, name) == value
    assert config == SconeConfig().replace(**{name: value})


def test_none_can_be_given():
    assert parse("--preset", "paper").thin == 5
    assert parse("--preset", "paper", "--thin", "none").thin is None


@pytest.mark.parametrize("preset", PRESETS)
def test_presets_keep_their_values(preset):
    assert parse("--preset", preset) == PRESETS[preset]()
    assert parse("--preset", preset, "--chains", "3") == PRESETS[preset]().replace(chains=3)


@pytest.mark.parametrize("name", SHORT_NAMES)
def test_short_names(name):
    wish = Attribute.parse(f"{name}=2.5")
    assert (wish.model, wish.label, wish.strength) == (f"embedded:{SHORT_NAMES[name]}", name, 2.5)
    assert wish.kind == SHORT_NAMES[name]


@pytest.mark.parametrize(
    ("text", "model", "label"),
    [
        ("org/model:LABEL_1", "org/model", "LABEL_1"),
        ("C:/models/mine:polite", "C:/models/mine", "polite"),
        ("embedded:topic:food", "embedded:topic", "food"),
    ],
)
def test_any_classifier(text, model, label):
    wish = Attribute.parse(text, avoid=True)
    assert (wish.model, wish.label, wish.strength, wish.name) == (model, label, None, f"not {label}")


@pytest.mark.parametrize(
    "text", ["", "posh", ":x", "x:", "embedded:food", "positive=", "positive=0", "positive=nan", "positive=inf"]
)
def test_what_is_no_attribute(text):
    with pytest.raises(argparse.ArgumentTypeError):
        Attribute.parse(text)
