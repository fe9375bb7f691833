"""Fixtures of all who test the compiled kernels: their builds, and fresh memory that is NaN."""

from __future__ import annotations

import pytest
import torch

import scone_kernels

LIVE = scone_kernels.status().cpu.live
CPU_BUILDS = torch.ops.scone_kernels.cpu_builds() if LIVE else ["none"]


@pytest.fixture
def cpu_builds():
    """Names of the builds of the C++ kernels that this CPU runs; the test may take any of them."""
    if not LIVE:
        pytest.skip(f"needs the compiled extension: {scone_kernels.status().cpu.why}")
    yield CPU_BUILDS
    torch.ops.scone_kernels.use_cpu_build(CPU_BUILDS[0])


@pytest.fixture(params=["reference", *(f"cpu {build}" for build in CPU_BUILDS)])
def backend(request):
    """The reference, and the C++ kernels in every build that this CPU runs."""
    name, _, build = request.param.partition(" ")
    if build:
        request.getfixturevalue("cpu_builds")
        torch.ops.scone_kernels.use_cpu_build(build)
    return name


@pytest.fixture
def nan_filled_memory():
    """Every uninitialised buffer starts as NaN (integers: the largest), so that an unwritten element shows."""
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    yield
    torch.use_deterministic_algorithms(False)
