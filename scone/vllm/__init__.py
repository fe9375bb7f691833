"""SConE inside vLLM: a logits processor for its V1 and V2 runners.

SCONE_VLLM=settings.toml python -m vllm.entrypoints.openai.api_server --model … \\
    --logits-processors scone.vllm:SconeLogitsProcessor

Importing this is light: models are loaded in the worker, when it makes the processor.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__all__ = ["Asked", "SconeLogitsProcessor", "Settings", "released"]

_HOMES = {"Asked": "asked", "SconeLogitsProcessor": "plugin", "Settings": "settings", "released": "streaming"}


def __getattr__(name: str) -> Any:
    """Each name from its own file, when it is first used: only the processor needs vLLM."""
    if name not in _HOMES:
        raise AttributeError(f"module 'scone.vllm' has no attribute {name!r}")
    return getattr(import_module(f"scone.vllm.{_HOMES[name]}"), name)
