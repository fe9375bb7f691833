"""Finds and loads the compiled extension, if this install has one. Nothing else touches the shared library."""

from __future__ import annotations

from pathlib import Path

import torch


def _load() -> str | None:
    """Load `_C.so` and return None, or the reason why it is not loaded."""
    library = Path(__file__).with_name("_C.so")
    if not library.exists():
        return "the extension is not built (install with SCONE_BUILD_EXT=1 to build it)"
    try:
        torch.ops.load_library(str(library))
    except OSError as error:  # built for another torch
        return f"the extension does not load: {error}"
    return None


why_missing: str | None = _load()
"""None when the C++ kernels are registered, else the reason why they are not."""
