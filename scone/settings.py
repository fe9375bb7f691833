"""Settings as people type them: a preset, and options by flat names, those of the lookahead among them.

    read_settings("default", {"strength": "8", "lookahead": "gibbs", "chains": "2", "estimate_form": "mean"})

The command line and the evaluation read their options here, from what each class says of its own.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from scone.config import SconeConfig
from scone.errors import ConfigError
from scone.lookahead import Lookahead, Mix
from scone.options import Options, Rule, kinds_of

__all__ = ["PRESETS", "Flat", "flat_options", "name_of", "parse_settings", "read_settings", "strategies"]

PRESETS: dict[str, Callable[[], SconeConfig]] = {
    "default": SconeConfig,
    "fast": SconeConfig.fast,
    "quality": SconeConfig.quality,
    "paper": SconeConfig.paper,
    "plain": SconeConfig.plain,
}

_SHARED = [field.name for field in dataclasses.fields(SconeConfig)]
_TAKEN = {*_SHARED, "lm"}  # what an option of a lookahead cannot be called


class Flat(NamedTuple):
    """An option by its flat name."""

    name: str
    owner: str  # "" where every method shares it, else the lookahead, start or estimate that has it
    rule: Rule
    help: str
    default: Any


def strategies() -> dict[str, type[Lookahead]]:
    """The lookaheads by name; `+` between names mixes them.

    >>> strategies().keys() >= {"expectation", "gibbs", "masked", "nothing", "paths"}
    True
    """
    return {cls.__name__.lower(): cls for cls in kinds_of(Lookahead) if cls is not Mix}


def flat_options() -> list[Flat]:
    """All options that can be typed; those of several owners once for each.

    >>> {option.owner for option in flat_options() if option.name == "tokens"} >= {"expectation", "gibbs", "paths"}
    True
    """
    shared = [Flat(f.name, "", f.metadata["rule"], f.metadata["help"], f.default) for f in _fields(SconeConfig)]
    own = [flat for name, cls in sorted(strategies().items()) for flat in _flat_of(cls, name)]
    return shared + own


def read_settings(preset: str, changes: Mapping[str, str]) -> SconeConfig:
    """A preset with changes; a name that nothing has, or that the lookahead at hand does not have, raises ConfigError.

    >>> read_settings("default", {"lookahead": "paths+nothing", "count": "2"}).lookahead.parts[0].count
    2
    >>> read_settings("default", {"chains": "2"})
    Traceback (most recent call last):
    scone.errors.ConfigError: chains is an option of lookahead gibbs, and the lookahead is expectation
    """
    if preset not in PRESETS:
        raise ConfigError(f"preset must be one of {', '.join(PRESETS)}, got {preset!r}")
    config = PRESETS[preset]()
    known = {flat.name: flat for flat in flat_options()}
    for name in changes:
        if name not in known:
            raise ConfigError(_unknown(name, known))
    lookahead = _named(changes["lookahead"]) if "lookahead" in changes else config.lookahead
    # Objects first: what is within them has names of its own.
    for name in sorted((n for n in changes if n not in _SHARED), key=lambda n: known[n].rule.kind is None):
        value = _value(name, changes[name], known[name].rule)
        changed = _change(lookahead, name, value)
        if changed is None:
            owners = sorted({flat.owner for flat in flat_options() if flat.name == name})
            raise ConfigError(
                f"{name} is an option of lookahead {' and '.join(owners)}, and the lookahead is {name_of(lookahead)}"
            )
        lookahead = changed
    shared = {n: _value(n, v, known[n].rule) for n, v in changes.items() if n in _SHARED and n != "lookahead"}
    return config.replace(lookahead=lookahead, **shared)


def name_of(thing: Any) -> str:
    """What a lookahead, or an object within one, is called in settings.

    >>> name_of(SconeConfig().lookahead)
    'expectation'
    """
    return "+".join(map(name_of, thing.parts)) if isinstance(thing, Mix) else type(thing).__name__.lower()


def parse_settings(text: str) -> SconeConfig:
    """The same from one text: a preset and changes, separated by commas.

    >>> parse_settings("strength=8,lookahead=nothing").strength
    8.0
    >>> parse_settings("paper,chains=1").lookahead.chains
    1
    """
    first, _, rest = text.partition(",")
    if "=" in first:
        first, rest = "default", text
    changes = {}
    for change in filter(None, rest.split(",")):
        name, equals, value = change.partition("=")
        if not equals:
            raise ConfigError(f"a change must be option=value, got {change!r}")
        changes[name] = value
    return read_settings(first or "default", changes)


def _unknown(name: str, known: Mapping[str, Flat]) -> str:
    if name in SconeConfig.retired:
        return f"{name} is no option any more: {SconeConfig.retired[name]}"
    return f"an option must be one of {', '.join(sorted(known))}, got {name!r}"


def _fields(cls: type) -> Iterator[dataclasses.Field]:
    return (field for field in dataclasses.fields(cls) if "rule" in field.metadata)


def _flat_of(cls: type, owner: str, prefix: str = "") -> Iterator[Flat]:
    """The options of a class, and of each class that one of them may be an object of."""
    for field in _fields(cls):
        rule: Rule = field.metadata["rule"]
        yield Flat(prefix + _outside(field.name, prefix), owner, rule, field.metadata["help"], field.default)
        for kind in kinds_of(rule.kind) if rule.kind is not None else ():
            yield from _flat_of(kind, f"{owner} with {field.name} {kind.__name__.lower()}", f"{field.name}_")


def _outside(name: str, prefix: str) -> str:
    """A name that means nothing else where settings are typed."""
    return f"lookahead_{name}" if not prefix and name in _TAKEN else name


def _named(text: str) -> Lookahead:
    parts = text.lower().split("+")
    found = strategies()
    for part in parts:
        if part not in found:
            raise ConfigError(f"lookahead must be of {', '.join(sorted(found))}, with + between several, got {text!r}")
    return found[parts[0]]() if len(parts) == 1 else Mix(*(found[part]() for part in parts))


def _value(name: str, text: str, rule: Rule) -> Any:
    expected = rule.expected
    if rule.kind is not None:
        expected = f"one of {', '.join(cls.__name__.lower() for cls in kinds_of(rule.kind))}"
    try:
        value = rule.read(text)
    except ValueError:
        raise ConfigError(f"{name} must be {expected}, got {text!r}") from None
    if not rule.allows(value):  # the object would say so by a name that is not flat
        raise ConfigError(f"{name} must be {expected}, got {value!r}")
    return value


def _change(options: Options, name: str, value: Any, prefix: str = "") -> Any:
    """A copy with one option changed wherever it acts, or None where it acts nowhere."""
    if isinstance(options, Mix):
        parts = [_change(part, name, value) for part in options.parts]
        if all(part is None for part in parts):
            return None
        return options.replace(parts=[new or old for new, old in zip(parts, options.parts)])
    for field in _fields(type(options)):
        if prefix + _outside(field.name, prefix) == name:
            return options.replace(**{field.name: value})
        inner = getattr(options, field.name)
        if isinstance(inner, Options) and name.startswith(f"{field.name}_"):
            changed = _change(inner, name, value, f"{field.name}_")
            return None if changed is None else options.replace(**{field.name: changed})
    return None
