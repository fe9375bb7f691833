"""Types of arguments that several commands share."""

from __future__ import annotations

import argparse

__all__ = ["positive"]


def positive(text: str) -> int:
    """A whole number of at least 1, as a type of argparse.

    >>> positive("3")
    3
    """
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"expected at least 1, got {number}")
    return number


positive.__name__ = "int"  # argparse: "invalid int value"
