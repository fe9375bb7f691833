"""SConE: semantic control of language models.

    from scone.decode import Scone, SconeConfig, Verifier

>>> import scone
>>> scone.Scone.__name__
'Scone'
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__all__ = ["Scone", "SconeConfig", "SconeError", "Verifier", "__version__"]

__version__ = "0.2.0"

_HOMES = {"Scone": "decode", "SconeConfig": "config", "SconeError": "errors", "Verifier": "verifier"}


def __getattr__(name: str) -> Any:
    """The engine's names without importing torch and transformers before they are used."""
    if name not in _HOMES:
        raise AttributeError(f"module 'scone' has no attribute {name!r}")
    return getattr(import_module(f"scone.{_HOMES[name]}"), name)
