"""What the embedded models raise."""

from __future__ import annotations

from scone.errors import SconeError

__all__ = ["CacheError", "MissingModelError"]


class MissingModelError(SconeError, RuntimeError):
    """A package that carries weights is not installed; the message holds the command that installs it."""


class CacheError(SconeError, OSError):
    """The cache folder cannot be written to, or its disk is full; the message names the folder and how to take another."""
