"""Every option of the method is on the command line once, says what it does, and reaches the engine's options."""

from __future__ import annotations

import argparse
import re

import pytest

from scone import lookahead
from scone.cli.attributes import SHORT_NAMES, Attribute
from scone.cli.options import add_config, flag_of, read_config
from scone.config import SconeConfig
from scone.errors import ConfigError
from scone.settings import PRESETS, Flat, flat_options

OURS = {"", *(name.lower() for name in lookahead.__all__)}  # other tests may define lookaheads of their own
FLAT = [flat for flat in flat_options() if flat.owner.partition(" ")[0] in OURS]


def parser():
    made = argparse.ArgumentParser()
    add_config(made)
    return made


def parse(*argv):
    return read_config(parser().parse_args(argv))


def other_value(flat: Flat):
    """A legal value that is not the default, as one types it."""
    if isinstance(flat.default, bool):
        return not flat.default
    if flat.rule.kind is not None:
        return {"start": "carried", "inner": "paths"}.get(flat.name, "atmean")
    for text in ("7", "64", "0.25", *flat.rule.expected.removeprefix("one of ").replace("'", "").split(", ")):
        try:
            value = flat.rule.read(text)
        except ValueError:
            continue
        if flat.rule.allows(value) and value != flat.default:
            return value
    raise AssertionError(f"no other value for {flat.name}")


def with_owner(flat: Flat):
    """Flags that choose the lookahead, start or estimate that has an option, and its place in the options as a dict."""
    if not flat.owner:
        return [], lambda config: config.as_dict()[flat.name]
    lookahead, _, where = flat.owner.partition(" with ")
    flags = ["--lookahead", lookahead]
    if not where:
        field = flat.name.removeprefix("lookahead_")
        return flags, lambda config: config.as_dict()["lookahead"][field]
    part, kind = where.split()
    field = flat.name.removeprefix(f"{part}_")
    return [*flags, f"--{part}", kind], lambda config: config.as_dict()["lookahead"][part][field]


@pytest.mark.parametrize(
    "flat", [flat for flat in FLAT if flat.name != "lookahead"], ids=lambda flat: f"{flat.owner} {flat.name}".strip()
)
def test_each_option_can_be_set_and_nothing_else_changes(flat):
    flags, found = with_owner(flat)
    value = other_value(flat)
    typed = [flag_of(flat.name), str(value)]
    if isinstance(value, bool):
        typed = [flag_of(flat.name) if value else flag_of(f"no_{flat.name}")]
    before, after = parse(*flags), parse(*flags, *typed)
    if flat.rule.kind is not None:
        assert found(after)["kind"].lower() == value
    else:
        assert found(before) == flat.default and found(after) == value
        assert read_back(before, after) == 1


def read_back(before, after):
    """How many options differ."""

    def leaves(value, path=()):
        if isinstance(value, dict):
            for name, inner in value.items():
                yield from leaves(inner, (*path, name))
        else:
            yield path, value

    first, second = dict(leaves(before.as_dict())), dict(leaves(after.as_dict()))
    return sum(first.get(path) != second.get(path) for path in first | second)


def test_help_has_one_flag_for_each_name_and_says_who_has_it():
    text = parser().format_help()
    for name in {flat.name for flat in FLAT}:
        assert text.count(f"\n  {flag_of(name)} ") + text.count(f"\n  {flag_of(name)},") == 1, name
    words = " ".join(text.split())
    assert "tokens to look ahead (expectation: 3, paths: 6)" in words
    assert "tokens of the masked LM to look ahead (gibbs: 25, masked: 6)" in words
    assert "where the chains begin: rollout, masks, carried (default: rollout)" in words
    assert "(default: expectation)" in words


def test_help_is_grouped_shared_options_first_then_by_lookahead():
    titles = ["method:", "several lookaheads:", "lookahead gibbs:", "lookahead paths:"]
    text = parser().format_help()
    places = [text.index(f"\n{title}") for title in titles]
    assert places == sorted(places)
    shared, several, *_, paths = (text[a:b] for a, b in zip(places, [*places[1:], len(text)]))
    assert "--top-k" in shared and "--lookahead" in shared and "--tokens" not in shared
    assert all(flag in several for flag in ("--tokens", "--among", "--coupled"))
    assert "--count" in paths and "--lookahead-min-p" in paths


def test_lookaheads_are_mixed_and_options_reach_every_part_that_has_them():
    lookahead = parse("--lookahead", "expectation+paths", "--tokens", "2", "--count", "3").lookahead
    assert [type(part).__name__ for part in lookahead.parts] == ["Expectation", "Paths"]
    assert [part.tokens for part in lookahead.parts] == [2, 2] and lookahead.parts[1].count == 3


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--chains", "2"], "--chains is an option of lookahead gibbs, and the lookahead is expectation"),
        (["--lookahead", "nothing", "--tokens", "2"], "--tokens is an option of lookahead expectation and gibbs"),
        (["--preset", "paper", "--no-coupled", "--count", "2"], "--count is an option of lookahead paths"),
        (["--lookahead", "gibbs", "--start-warmup", "2"], "--start-warmup is an option of lookahead gibbs with start"),
        (["--lookahead", "far"], "--lookahead must be of draft, expectation, gibbs, masked, nothing, paths"),
        (["--lookahead", "gibbs", "--start", "cold"], "--start must be one of rollout, masks, carried, got 'cold'"),
        (["--lookahead", "gibbs", "--thin", "some"], "--thin must be an integer of at least 1 or None, got 'some'"),
        (["--lookahead", "gibbs", "--estimate-scale", "0"], "--estimate-scale must be a number in (0, inf), got 0"),
        (["--min-mass", "2"], "--min-mass must be a number in [0, 1], got 2"),
        (["--reweigh", "hard"], "--reweigh must be one of 'odds'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_mistake_names_the_flag(argv, words):
    with pytest.raises(ConfigError, match=f"^{re.escape(words)}"):
        parse(*argv)


def test_none_can_be_given():
    assert parse("--preset", "paper").lookahead.thin == 5
    assert parse("--preset", "paper", "--thin", "none").lookahead.thin is None


@pytest.mark.parametrize("preset", PRESETS)
def test_presets_keep_their_values(preset):
    assert parse("--preset", preset) == PRESETS[preset]()
    assert parse("--preset", preset, "--top-k", "3") == PRESETS[preset]().replace(top_k=3)


def test_the_papers_chains_can_be_changed():
    changed = parse("--preset", "paper", "--chains", "3")
    paper = SconeConfig.paper()
    assert changed == paper.replace(lookahead=paper.lookahead.replace(chains=3))


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
