"""The device, and nothing left of it afterwards."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.makebelieve.accelerator import Accelerator

sys.path.insert(0, str(Path(__file__).parents[2] / "decode"))  # tiny.py


@pytest.fixture
def device():
    """Kernels run in the interpreter."""
    with Accelerator() as accelerator:
        yield accelerator


@pytest.fixture
def quick():
    """Kernels are counted, and their results are the CPU's."""
    with Accelerator(interpret=False) as accelerator:
        yield accelerator
