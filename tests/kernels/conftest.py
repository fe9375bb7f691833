"""Fixtures of the kernel tests: fresh memory is NaN, and interpreted tests run only where Triton interprets."""

from __future__ import annotations

import os

import pytest
import torch

import scone_kernels

collect_ignore = [] if os.environ.get("TRITON_INTERPRET") == "1" else ["interpreted"]


@pytest.fixture(autouse=True)
def nan_filled_memory():
    """Every uninitialised buffer starts as NaN (integers: the largest), so that an unwritten element shows."""
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture(params=["reference", "cpu"])
def backend(request):
    if request.param == "cpu" and not scone_kernels.status().cpu.live:
        pytest.skip(f"needs the compiled extension: {scone_kernels.status().cpu.why}")
    return request.param
