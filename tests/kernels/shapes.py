"""Chosen shapes: tiny, odd, exact blocks, more than one panel and tile, no rows, real vocabularies."""

from __future__ import annotations

import pytest

SHAPES = [
    pytest.param({"rows": 1, "vocabulary": 1, "width": 1}, id="one"),
    pytest.param({"rows": 3, "vocabulary": 127, "width": 17, "table_width": 5}, id="odd"),
    pytest.param({"rows": 24, "vocabulary": 512, "width": 32, "table_width": 24}, id="exact-blocks"),
    pytest.param({"rows": 48, "vocabulary": 512, "width": 32, "table_width": 48}, id="exact-wide-blocks"),
    pytest.param({"rows": 33, "vocabulary": 1030, "width": 48, "table_width": 50}, id="panels-and-tiles"),
    pytest.param({"rows": 13, "vocabulary": 600, "width": 21, "table_width": 14}, id="one-wide-vector"),
    pytest.param({"rows": 77, "vocabulary": 1030, "width": 40, "table_width": 100}, id="wide-panels"),
    pytest.param({"rows": 0, "vocabulary": 7, "width": 4}, id="no-rows"),
]
REAL_VOCABULARIES = [50257, 128256]
