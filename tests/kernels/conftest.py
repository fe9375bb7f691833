"""Fixtures of the kernel tests: fresh memory is NaN, and interpreted tests run only where Triton interprets."""

from __future__ import annotations

import os

import pytest

collect_ignore = [] if os.environ.get("TRITON_INTERPRET") == "1" else ["interpreted"]


@pytest.fixture(autouse=True)
def _unwritten_elements_show(nan_filled_memory):
    """In every test."""
