"""What a request asks for, checked when it is admitted: `extra_args` offline, `vllm_xargs` over HTTP.

{"scone_attribute": "positive", "scone_avoid": ["toxic"], "scone_strength": 12}
{"scone": {"attribute": "positive", "avoid": ["toxic"], "strength": 12}}        offline, the same
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from scone.errors import ConfigError
from scone.vllm.settings import VARIABLE, Settings, check_lookahead, current

__all__ = ["Asked"]

_PREFIX = "scone_"


@dataclass(frozen=True)
class Asked:
    """The control that one request asks for.

    >>> Asked.read({"scone_attribute": "positive", "scone_strength": 8}, Settings()).strength
    8
    >>> Asked.read({"top_n": 3}, Settings()) is None
    True
    >>> Asked.read({"scone_strenght": 8}, Settings())
    Traceback (most recent call last):
    scone.errors.ConfigError: scone_strenght is not known: one of scone_attribute, scone_avoid, scone_strength, \
scone_lookahead, scone_top_k, scone_verdict, scone_after, scone_threshold, scone_seed, scone_below, scone_end_token
    """

    attribute: tuple[str, ...] = ()
    avoid: tuple[str, ...] = ()
    strength: float = 0.0
    lookahead: str = ""
    top_k: int = 0
    verdict: str = "text"  # or "continuation": the prompt is no part of what is judged
    after: str = ""  # control begins behind this marker
    threshold: float = 1.0  # φ that is as good as 1
    seed: int = 0  # of what a lookahead draws
    below: float = 0.0  # no token is written whose q is less; where there is none the text ends
    end_token: int | None = None  # the token that ends it then; None: the end-of-text token

    @classmethod
    def read(cls, extra_args: Mapping[str, Any] | None, settings: Settings | None) -> Asked | None:
        """What the arguments of a request ask for, or None where they ask for no control."""
        given = _ours(extra_args or {})
        if not given:
            return None
        known = [_PREFIX + field.name for field in fields(cls)]
        for name in given:
            if name not in known:
                raise ConfigError(f"{name} is not known: one of {', '.join(known)}")
        if settings is None:
            raise ConfigError(
                f"{min(given)} must not be given: this server controls nothing, for {VARIABLE} was not set when it started"
            )
        found: dict[str, Any] = {
            "strength": settings.strength,
            "lookahead": settings.lookahead,
            "top_k": settings.top_k,
        }
        found |= {name.removeprefix(_PREFIX): value for name, value in given.items()}
        for name in ("attribute", "avoid"):
            found[name] = _names(_PREFIX + name, found.get(name, ()), settings)
        if not found["attribute"] and not found["avoid"]:
            raise ConfigError(f"scone_attribute or scone_avoid must name an attribute, got {', '.join(given)} alone")
        check_lookahead(found["lookahead"], settings, "scone_lookahead")
        for name, (allows, expected) in _RULES.items():
            if name in found and not allows(found[name]):
                raise ConfigError(f"{_PREFIX}{name} must be {expected}, got {found[name]!r}")
        return cls(**found)

    @classmethod
    def of_params(cls, params: Any) -> Asked | None:
        """The same from SamplingParams, and with what they have to agree with."""
        asked = cls.read(getattr(params, "extra_args", None), current())
        if asked is None:
            return None
        if asked.end_token is not None and asked.end_token not in (params.stop_token_ids or ()):
            raise ConfigError(f"scone_end_token must be one of the request's stop_token_ids, got {asked.end_token}")
        if asked.below and asked.end_token is None and getattr(params, "ignore_eos", False):
            raise ConfigError("scone_end_token must be given where scone_below and ignore_eos are, got none")
        return asked


def _ours(extra_args: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments that are ours, by their flat names."""
    given = {name: value for name, value in extra_args.items() if name.startswith(_PREFIX)}
    whole = extra_args.get("scone")
    if whole is None:
        return given
    if not isinstance(whole, Mapping):
        raise ConfigError(f"scone must be a dict of options (over HTTP write scone_attribute and so on), got {whole!r}")
    return given | {_PREFIX + str(name): value for name, value in whole.items() if value is not None}


def _names(name: str, given: Any, settings: Settings) -> tuple[str, ...]:
    listed = (given,) if isinstance(given, str) else given
    known = tuple(settings.attributes)
    if not isinstance(listed, list | tuple) or not all(isinstance(one, str) and one in known for one in listed):
        raise ConfigError(f"{name} must be of {', '.join(known)}, got {given!r}")
    return tuple(listed)


def _number(low: float, high: float = math.inf, *, above: bool = False) -> Callable[[Any], bool]:
    def allows(value: Any) -> bool:
        fine = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        return fine and low <= value <= high and not (above and value == low)

    return allows


def _integer(low: int, high: int) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


_RULES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "strength": (_number(0), "a number of at least 0"),
    "top_k": (_integer(1, 256), "an integer from 1 to 256"),
    "verdict": (lambda value: value in ("text", "continuation"), "'text' or 'continuation'"),
    "after": (lambda value: isinstance(value, str), "a string"),
    "threshold": (_number(0, 1, above=True), "a number in (0, 1]"),
    "seed": (_integer(-(1 << 63), (1 << 63) - 1), "an integer"),
    "below": (_number(0, 1), "a number in [0, 1]"),
    "end_token": (lambda value: value is None or _integer(0, 1 << 31)(value), "the id of a token"),
}
