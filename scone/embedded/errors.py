"""What the embedded models raise."""

from __future__ import annotations

from scone.errors import SconeError

__all__ = ["MissingModelError"]


class MissingModelError(SconeError, RuntimeError):
    """A package that carries weights is not installed; the message holds the command that installs it."""
