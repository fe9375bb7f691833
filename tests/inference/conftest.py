"""Fixtures of the tests of whole passes: fresh memory is NaN, and the builds of the kernels."""

from __future__ import annotations

import pytest
import torch

import scone_kernels


@pytest.fixture(autouse=True)
def nan_filled_memory():
    """Every uninitialised buffer starts as NaN (integers: the largest), so that an unwritten element shows."""
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture(scope="session", autouse=True)
def _one_thread():
    """On models this small, threads cost more than they bring."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


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
