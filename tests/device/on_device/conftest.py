"""The device, and nothing left of it afterwards."""

from __future__ import annotations

import pytest

from tests.makebelieve.accelerator import Accelerator


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
