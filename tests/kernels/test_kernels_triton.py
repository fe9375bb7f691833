"""The Triton kernels: interpreted on the CPU in a process of its own, and compiled for GPUs that are not here."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs the package triton")


@needs_triton
def test_interpreted():
    """TRITON_INTERPRET has to be set before triton is imported."""
    folder = Path(__file__).with_name("interpreted")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", str(folder)],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]


@needs_triton
def test_every_kernel_compiles_for_every_target_and_fits():
    """No spills, and no more shared memory than there is. float16 shares bfloat16's configuration: one target is enough."""
    from scone_kernels import _aot

    jobs = [
        (index, target)
        for index, variant in enumerate(_aot.variants())
        for target in _aot.TARGETS
        if not variant.name.endswith("fp16") or target == "sm_80"
    ]
    found = _aot.compile_jobs(jobs)
    assert {row.target for row in found} == set(_aot.TARGETS)
    assert {row.kernel for row in found} == {variant.name for variant in _aot.variants()}
    misfits = [row for row in found if not row.fits]
    assert not misfits, misfits
