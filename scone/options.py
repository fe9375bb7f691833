"""Options that check themselves: what a dataclass of options needs to name a mistake before any work is done.

A field made by `option` carries its rule and a line of help, so that the command line and the docs are made from it.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple, TypeVar

from scone.errors import ConfigError

__all__ = ["Options", "Rule", "choice", "flag", "integer", "kinds_of", "number", "one_of", "option", "words"]


class Rule(NamedTuple):
    """Which values an option may have, in words too, and how one is read from text."""

    allows: Callable[[Any], bool]
    expected: str
    read: Callable[[str], Any]
    kind: type | tuple[type, ...] | None = None  # of the objects that it takes


Self = TypeVar("Self", bound="Options")


def option(default: Any, rule: Rule, help: str) -> Any:
    """A field of `Options` with its default, the values that it may have, and a line for `--help`.

    >>> @dataclasses.dataclass(frozen=True)
    ... class Tea(Options):
    ...     minutes: int = option(3, integer(1), "how long it draws")
    >>> Tea(minutes=0)
    Traceback (most recent call last):
    scone.errors.ConfigError: minutes must be an integer of at least 1, got 0
    """
    return dataclasses.field(default=default, metadata={"rule": rule, "help": help})


class Options:
    """The base of frozen dataclasses of options: unknown names and values out of range raise ConfigError.

    >>> @dataclasses.dataclass(frozen=True)
    ... class Tea(Options):
    ...     retired = {"sugar": "nobody takes it any more"}
    ...     minutes: int = option(3, integer(1), "how long it draws")
    >>> Tea().replace(minutes=5)
    Tea(minutes=5)
    >>> Tea(sugar=2)
    Traceback (most recent call last):
    scone.errors.ConfigError: sugar is no option of Tea: nobody takes it any more
    """

    retired: ClassVar[dict[str, str]] = {}  # names of former options, and what to write instead

    def __new__(cls, *args: Any, **options: Any) -> Any:
        """Look at the names before the dataclass does, whose TypeError would not say what to write instead."""
        _check_names(cls, options)
        return super().__new__(cls)

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            rule: Rule = field.metadata["rule"]
            if not rule.allows(value):
                raise ConfigError(f"{field.name} must be {rule.expected}, got {value!r}")

    def replace(self: Self, **changes: Any) -> Self:
        """A copy with some options changed; an unknown name raises ConfigError."""
        _check_names(type(self), changes)
        return dataclasses.replace(self, **changes)  # type: ignore[type-var]

    def as_dict(self) -> dict[str, Any]:
        """All options by name, those within objects too; an object begins with its `kind`, the name of its class."""
        return {
            "kind": type(self).__name__,
            **{field.name: _plain(getattr(self, field.name)) for field in dataclasses.fields(self)},  # type: ignore[arg-type]
        }


def integer(least: int, most: int | None = None, *, optional: bool = False) -> Rule:
    """An integer in a range; with `optional`, None too."""
    bounds = f"of at least {least}" if most is None else f"from {least} to {most}"

    def allows(value: Any) -> bool:
        if value is None:
            return optional
        inside = isinstance(value, int) and not isinstance(value, bool)
        return inside and least <= value <= (math.inf if most is None else most)

    def read(text: str) -> Any:
        return None if optional and text.lower() == "none" else int(text)

    return Rule(allows, f"an integer {bounds}" + (" or None" if optional else ""), read)


def number(low: float, high: float = math.inf, *, above: bool = False) -> Rule:
    """A finite number from `low`, or with `above` just above it, to `high`."""

    def allows(value: Any) -> bool:
        if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
            return False
        return low <= value <= high and not (above and value == low)

    return Rule(
        allows, f"a number in {'(' if above else '['}{low:g}, {high:g}{')' if high == math.inf else ']'}", float
    )


def choice(*values: str) -> Rule:
    """One of some words."""
    return Rule(lambda value: isinstance(value, str) and value in values, f"one of {', '.join(map(repr, values))}", str)


def words() -> Rule:
    """Any string."""
    return Rule(lambda value: isinstance(value, str), "a string", str)


def flag() -> Rule:
    """True or False."""
    known = {"true": True, "on": True, "false": False, "off": False}
    return Rule(lambda value: isinstance(value, bool), "True or False", lambda text: known.get(text.lower(), text))


def one_of(kind: type[Options] | tuple[type[Options], ...]) -> Rule:
    """An object of one of the subclasses of `kind`, or of the classes that it lists; in text, its name."""

    def read(text: str) -> Any:
        found = {cls.__name__.lower(): cls for cls in kinds_of(kind)}.get(text.lower())
        return text if found is None else found()

    return _OneOf(lambda value: isinstance(value, kind), "", read, kind)


class _OneOf(Rule):
    """Its words are made when they are asked for, when all subclasses are known."""

    @property
    def expected(self) -> str:
        assert self.kind is not None
        return f"one of {', '.join(f'{cls.__name__}()' for cls in kinds_of(self.kind))}"


def kinds_of(kind: type | tuple[type, ...]) -> list[type]:
    """The public subclasses of a class, in the order in which they were defined; of several classes, these.

    >>> from scone.lookahead.start import Start
    >>> [cls.__name__ for cls in kinds_of(Start)]
    ['Rollout', 'Masks', 'Carried']
    """
    if isinstance(kind, tuple):
        return list(kind)
    below: list[type] = []
    subclasses: list[type] = kind.__subclasses__()
    for found in subclasses:
        below += [found, *kinds_of(found)]
    return [cls for cls in below if not cls.__name__.startswith("_")]


def _check_names(cls: type[Options], names: dict[str, Any]) -> None:
    known: list[str] = [field.name for field in dataclasses.fields(cls)] if dataclasses.is_dataclass(cls) else []
    for name in names:
        if name in known:
            continue
        if name in cls.retired:
            raise ConfigError(f"{name} is no option of {cls.__name__}: {cls.retired[name]}")
        expected = f"one of {', '.join(known)}" if known else "none, for it has no options"
        raise ConfigError(f"an option of {cls.__name__} must be {expected}, got {name!r}")


def _plain(value: Any) -> Any:
    if isinstance(value, Options):
        return value.as_dict()
    return [_plain(part) for part in value] if isinstance(value, tuple) else value
