"""What `--attribute` and `--avoid` say: a classifier, one of its labels, wanted or not, and how strongly."""

from __future__ import annotations

import argparse
from dataclasses import dataclass

# Short names: the embedded verifier and its label.
SHORT_NAMES = {
    "positive": "sentiment",
    "negative": "sentiment",
    "toxic": "toxicity",
    "clean": "toxicity",
    "politics": "topic",
    "finance": "topic",
    "science": "topic",
    "food": "topic",
    "history": "topic",
    "industrial": "topic",
}


@dataclass(frozen=True)
class Attribute:
    """One wish about the finished text.

    >>> Attribute.parse("positive=3")
    Attribute(model='embedded:sentiment', label='positive', strength=3.0, avoid=False)
    >>> Attribute.parse("my/classifier:POLITE").label
    'POLITE'
    >>> Attribute.parse("toxic", avoid=True).name
    'not toxic'
    """

    model: str
    label: str
    strength: float | None = None  # None: the strength of the configuration
    avoid: bool = False

    @classmethod
    def parse(cls, text: str, *, avoid: bool = False) -> Attribute:
        """Reads `NAME[=STRENGTH]` or `MODEL:LABEL[=STRENGTH]`; raises `argparse.ArgumentTypeError`."""
        spec, equals, given = text.partition("=")
        strength = _strength(given, text) if equals else None
        if spec in SHORT_NAMES:
            return cls(f"embedded:{SHORT_NAMES[spec]}", spec, strength, avoid)
        model, _, label = spec.rpartition(":")
        if not model or not label or model == "embedded":
            names = ", ".join(SHORT_NAMES)
            raise argparse.ArgumentTypeError(f"{text!r} is none of {names}, and not of the form MODEL:LABEL")
        return cls(model, label, strength, avoid)

    @property
    def name(self) -> str:
        """How tables and JSON call it."""
        return f"not {self.label}" if self.avoid else self.label

    @property
    def kind(self) -> str | None:
        """The embedded verifier's name, for which there is an independent judge; None for other classifiers."""
        prefix, _, kind = self.model.partition(":")
        return kind if prefix == "embedded" else None


def add_wishes(parser: argparse.ArgumentParser) -> None:
    """Adds `--attribute` and `--avoid`, which come in `args.wishes`."""
    control = parser.add_argument_group("control")
    control.add_argument(
        "-a", "--attribute", dest="wishes", action="append", type=wanted, default=[], metavar="NAME[=STRENGTH]",
        help="what the text should be; may be given several times",
    )  # fmt: skip
    control.add_argument(
        "--avoid", dest="wishes", action="append", type=unwanted, metavar="NAME[=STRENGTH]",
        help="what the text should not be; may be given several times",
    )  # fmt: skip


def wanted(text: str) -> Attribute:
    """`--attribute`, as a type of argparse."""
    return Attribute.parse(text)


def unwanted(text: str) -> Attribute:
    """`--avoid`, as a type of argparse."""
    return Attribute.parse(text, avoid=True)


def _strength(given: str, text: str) -> float:
    try:
        strength = float(given)
    except ValueError:
        strength = -1.0
    if not 0 < strength < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r}: a strength is a number above 0, got {given!r}")
    return strength
