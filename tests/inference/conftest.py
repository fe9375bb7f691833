"""Fixtures of the tests of whole passes: fresh memory is NaN, and one thread."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture(autouse=True)
def _unwritten_elements_show(nan_filled_memory):
    """In every test."""


@pytest.fixture(scope="session", autouse=True)
def _one_thread():
    """On models this small, threads cost more than they bring."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
