"""The options of the method as options of the command line, made from `scone.settings` so that none is forgotten."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from typing import Any

from scone.config import SconeConfig
from scone.errors import ConfigError
from scone.options import Options, kinds_of
from scone.settings import PRESETS, Flat, flat_options, name_of, read_settings, strategies

__all__ = ["add_config", "add_models", "flag_of", "read_config"]

_DEST = "option:"  # before an option's name, so that no option of a command is meant


def add_models(parser: argparse.ArgumentParser) -> None:
    """Adds the options that say which models write and judge, and where."""
    models = parser.add_argument_group(
        "models", "Hub ids or folders; without them the small models that come with pip."
    )
    models.add_argument("--lm", default="embedded", help="causal LM that writes")
    models.add_argument("--masked-lm", default="embedded", help="masked LM, for the lookaheads that need one")
    models.add_argument("--device", help="cpu, cuda, cuda:1, ...")
    models.add_argument("--dtype", choices=["float32", "bfloat16", "float16"], help="of the weights")


def add_config(parser: argparse.ArgumentParser) -> None:
    """Adds `--preset` and a flag for each option: those that all lookaheads share, then those of each."""
    shared = parser.add_argument_group("method", "docs/options.md has the measurement behind each default.")
    shared.add_argument("--preset", choices=list(PRESETS), default="default", help="the settings to start from")
    groups = {"": shared}
    by_name: dict[str, list[Flat]] = {}
    for flat in flat_options():
        by_name.setdefault(flat.name, []).append(flat)
    for name, flats in sorted(by_name.items(), key=lambda item: _place(_owners(item[1]))):
        title = _title(_owners(flats))
        group = groups.get(title) or groups.setdefault(title, parser.add_argument_group(title))
        _add(group, name, flats)


def read_config(args: argparse.Namespace) -> SconeConfig:
    """The preset with the options that were given; a mistake raises `ConfigError` and names the flag."""
    given = {name.removeprefix(_DEST): value for name, value in vars(args).items() if name.startswith(_DEST)}
    try:
        return read_settings(args.preset, {name: str(value) for name, value in given.items()})
    except ConfigError as mistake:
        name, space, rest = str(mistake).partition(" ")
        raise ConfigError(f"{flag_of(name) if name in given else name}{space}{rest}") from None


def flag_of(name: str) -> str:
    """How an option is called on the command line.

    >>> flag_of("min_mass")
    '--min-mass'
    """
    return "--" + name.replace("_", "-")


def _add(group: Any, name: str, flats: Sequence[Flat]) -> None:
    # An option that is not given leaves no trace, so that presets keep their values.
    common: dict[str, Any] = {"dest": _DEST + name, "default": argparse.SUPPRESS, "help": _help(flats)}
    if isinstance(flats[0].default, bool):
        group.add_argument(flag_of(name), action=argparse.BooleanOptionalAction, **common)
    else:
        group.add_argument(flag_of(name), metavar=_metavar(flats[0]), **common)


def _help(flats: Sequence[Flat]) -> str:
    """What it does and its default; where lookaheads differ, each says its own."""
    first = flats[0]
    known = [cls.__name__.lower() for cls in kinds_of(first.rule.kind)] if first.rule.kind is not None else []
    if first.name == "lookahead":
        known = [*sorted(strategies()), "or several with + between"]
    several = len(_owners(flats)) > 1
    defaults: dict[str, list[str]] = {}
    for flat in flats:
        where = flat.owner.partition(" ")[2]
        owner = flat.owner if several else where or "default"
        defaults.setdefault(flat.help, []).append(f"{owner}: {_show(flat.default)}")
    choices = f": {', '.join(known)}" if known else ""
    return "; ".join(f"{text}{choices} ({', '.join(own)})" for text, own in defaults.items()).replace("%", "%%")


def _metavar(flat: Flat) -> str:
    if flat.rule.kind is not None:
        return "NAME"
    expected = flat.rule.expected
    if expected.startswith("one of "):
        return "|".join(expected.removeprefix("one of ").replace("'", "").split(", "))
    return ("N" if expected.startswith("an integer") else "X") + ("|none" if expected.endswith("None") else "")


def _owners(flats: Iterable[Flat]) -> tuple[str, ...]:
    """The lookaheads that have an option, without saying through which of their parts."""
    return tuple(dict.fromkeys(flat.owner.partition(" ")[0] for flat in flats))


def _title(owners: Sequence[str]) -> str:
    if owners == ("",):
        return ""
    return "several lookaheads" if len(owners) > 1 else f"lookahead {owners[0]}"


def _place(owners: Sequence[str]) -> tuple[int, str]:
    """Shared options first, then those of several lookaheads, then those of each."""
    return (0, "") if owners == ("",) else (2, owners[0]) if len(owners) == 1 else (1, "")


def _show(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, Options):
        return name_of(value)
    return "none" if value is None else f"{value}"
