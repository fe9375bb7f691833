"""What a server controls by: a TOML file that `SCONE_VLLM` names, or the word "embedded" for the models that come with pip.

Read in the frontend, which checks requests, and in the worker, which loads the models; it imports neither torch nor models.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import lru_cache
from typing import Any

from scone.errors import ConfigError

__all__ = ["VARIABLE", "Attribute", "Settings"]

VARIABLE = "SCONE_VLLM"
LOOKAHEADS = ("draft", "masked", "nothing")


@dataclass(frozen=True)
class Attribute:
    """A label of a classifier, by the name that requests use.

    >>> Attribute("embedded:sentiment", "positive").target
    'positive'
    """

    verifier: str
    target: str | int


_EMBEDDED = {
    **{name: Attribute("embedded:sentiment", name) for name in ("positive", "negative")},
    "toxic": Attribute("embedded:toxicity", "toxic"),
    **{
        name: Attribute("embedded:topic", name)
        for name in ("politics", "finance", "science", "food", "history", "industrial")
    },
}


@dataclass(frozen=True)
class Settings:
    """The attributes that requests can name, the models that look ahead, and what holds where a request says nothing.

    >>> settings = Settings(attributes={"rude": Attribute("some/classifier", "RUDE")})
    >>> settings.lookahead, settings.strength
    ('draft+nothing', 24.0)
    """

    attributes: Mapping[str, Attribute] = field(default_factory=lambda: dict(_EMBEDDED))
    draft: str = "embedded"  # the LM that looks ahead; "" for none
    masked_lm: str = ""  # for lookahead="masked"; "" for none
    lookahead: str = "draft+nothing"
    tokens: int = 3  # to look ahead
    window: int = 1024  # tokens of a text that the draft reads
    strength: float = 24.0
    top_k: int = 10
    min_mass: float = 0.02  # a candidate less probable than this gets no lookahead of its own
    context_window: int = 256  # tokens of a text that are judged, the last ones
    device: str = ""  # where all of these go; "": where the runner's logits are
    dtype: str = ""  # of draft and masked LM; "": as they are stored

    def __post_init__(self) -> None:
        if not self.attributes:
            raise ConfigError("attributes must name one attribute at least, got none")
        check_lookahead(self.lookahead, self, "lookahead")

    @classmethod
    def read(cls, path: str) -> Settings:
        """From a TOML file.

        >>> Settings.read("/no/such.toml")
        Traceback (most recent call last):
        scone.errors.ConfigError: SCONE_VLLM must be 'embedded' or a TOML file, got '/no/such.toml': No such file or directory
        """
        try:
            import tomllib
        except ImportError:  # Python 3.10
            raise ConfigError(
                f"{VARIABLE} must be 'embedded' before Python 3.11, which reads TOML, got {path!r}"
            ) from None
        try:
            with open(path, "rb") as file:
                given = tomllib.load(file)
        except OSError as error:
            raise ConfigError(f"{VARIABLE} must be 'embedded' or a TOML file, got {path!r}: {error.strerror}") from None
        except tomllib.TOMLDecodeError as error:
            raise ConfigError(f"{VARIABLE} must be 'embedded' or a TOML file, got {path!r}: {error}") from None
        return cls.of(given)

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Settings:
        """From what a TOML file holds.

        >>> Settings.of({"strenght": 3})
        Traceback (most recent call last):
        scone.errors.ConfigError: a setting must be one of attributes, draft, masked_lm, lookahead, tokens, window, strength, \
top_k, min_mass, context_window, device, dtype, got 'strenght'
        """
        known = {own.name: own for own in fields(cls)}
        for name, value in given.items():
            if name not in known:
                raise ConfigError(f"a setting must be one of {', '.join(known)}, got {name!r}")
            kind = {"str": str, "int": int, "float": (int, float)}.get(str(known[name].type), Mapping)
            if not isinstance(value, kind) or isinstance(value, bool):  # type: ignore[arg-type]
                raise ConfigError(f"{name} must be of type {known[name].type}, got {value!r}")
        changed = dict(given)
        if "attributes" in given:
            changed["attributes"] = {name: _attribute(name, own) for name, own in given["attributes"].items()}
        return cls(**changed)


def current() -> Settings | None:
    """Those of this process, or None where `SCONE_VLLM` is not set: then no request can be controlled."""
    value = os.environ.get(VARIABLE, "")
    return _read(value) if value else None


@lru_cache(maxsize=8)
def _read(value: str) -> Settings:
    return Settings() if value == "embedded" else Settings.read(value)


def _attribute(name: str, given: Any) -> Attribute:
    own = given if isinstance(given, Mapping) else {}
    if set(own) != {"verifier", "target"} or not isinstance(own["verifier"], str):
        raise ConfigError(f'attribute {name} must be {{ verifier = "…", target = "…" }}, got {given!r}')
    return Attribute(own["verifier"], own["target"])


def check_lookahead(given: Any, settings: Settings, name: str) -> None:
    """Raise where a lookahead is unknown, or needs a model that the server does not have."""
    parts = given.split("+") if isinstance(given, str) else [given]
    if not all(part in LOOKAHEADS for part in parts):
        raise ConfigError(f"{name} must be of {', '.join(LOOKAHEADS)}, with + between several, got {given!r}")
    for part, model in (("draft", settings.draft), ("masked", settings.masked_lm)):
        if part in parts and not model:
            raise ConfigError(f"{name} must do without {part}, for this server has no such model, got {given!r}")
