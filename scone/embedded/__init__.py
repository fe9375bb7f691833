"""Small models that come with pip: a language model, a masked LM, and verifiers; no model hub is needed.

The language model is SmolLM2-135M-Instruct and the encoder is all-MiniLM-L6-v2, both from pip packages; the masked LM
and the verifiers are MiniLM plus small files that ship with scone. `docs/models.md` says what they were trained on.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from scone.embedded.cards import Installed, installed
    from scone.embedded.encoders import load_classifier, load_masked_lm
    from scone.embedded.errors import MissingModelError
    from scone.embedded.gemma import load_gemma
    from scone.embedded.lm import load_lm

__all__ = [
    "Installed",
    "MissingModelError",
    "installed",
    "load_classifier",
    "load_gemma",
    "load_lm",
    "load_masked_lm",
]

_HOME = {
    "Installed": "cards",
    "MissingModelError": "errors",
    "installed": "cards",
    "load_classifier": "encoders",
    "load_gemma": "gemma",
    "load_lm": "lm",
    "load_masked_lm": "encoders",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: listing what is installed does not wait for torch."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
