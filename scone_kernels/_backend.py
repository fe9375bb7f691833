"""Which implementation runs: the choice of a backend and the report of what is live.

The environment is read here and nowhere else: `TRITON_INTERPRET=1` (Triton's own switch) lets the Triton kernels run on
CPU tensors.
"""

from __future__ import annotations

import importlib.util
import os
from dataclasses import dataclass
from typing import Literal

import torch

from . import _extension, _ops

Backend = Literal["reference", "cpu", "triton"]
BACKENDS: tuple[Backend, ...] = ("reference", "cpu", "triton")


@dataclass(frozen=True)
class BackendStatus:
    """Whether one backend can run in this process, and why or why not."""

    live: bool
    why: str


@dataclass(frozen=True)
class Status:
    """What `scone_kernels` can run here.

    `backend` is the one that `backend=None` takes for CPU tensors, `gpu_backend` the one for CUDA and HIP tensors (None
    without a device). Printing a `Status` gives one line per backend.
    """

    backend: Backend
    gpu_backend: Backend | None
    reference: BackendStatus
    cpu: BackendStatus
    triton: BackendStatus

    def __str__(self) -> str:
        lines = []
        for name in BACKENDS:
            status: BackendStatus = getattr(self, name)
            lines.append(f"{name:<10} {'live' if status.live else 'off':<5} {status.why}")
        return "\n".join(lines)


def triton_found() -> bool:
    """Whether the triton package is installed (it is imported only when a kernel is first launched)."""
    return importlib.util.find_spec("triton") is not None


def interpreted() -> bool:
    """Whether Triton kernels are interpreted in this process, so that they accept CPU tensors."""
    return os.environ.get("TRITON_INTERPRET", "0").lower() in ("1", "true", "on")


def status() -> Status:
    """Say which backends are live and why.

    >>> status().reference.live
    True
    """
    has_gpu = torch.cuda.is_available()
    if _extension.why_missing is None:
        cpu = BackendStatus(True, f"C++ extension, {_ops.ops.cpu_build()} kernels, CPU tensors")
    else:
        cpu = BackendStatus(False, _extension.why_missing)
    if not triton_found():
        triton = BackendStatus(False, "the package triton is not installed")
    elif interpreted():
        triton = BackendStatus(True, "interpreted (TRITON_INTERPRET=1), CPU tensors")
    elif has_gpu:
        triton = BackendStatus(True, f"compiled for {torch.cuda.get_device_name()}")
    else:
        triton = BackendStatus(False, "no CUDA or HIP device, and TRITON_INTERPRET is not set")
    return Status(
        backend="cpu" if cpu.live else "reference",
        gpu_backend=("triton" if triton.live else "reference") if has_gpu else None,
        reference=BackendStatus(True, "plain torch, any device"),
        cpu=cpu,
        triton=triton,
    )


def require(backend: str | None, device: torch.device) -> None:
    """Raise unless `backend` is None or can run on tensors of `device` in this process."""
    if backend is None or backend == "reference":
        return
    if backend not in BACKENDS:
        raise ValueError(f"backend must be None or one of {BACKENDS}, got {backend!r}")
    state: BackendStatus = getattr(status(), backend)
    if not state.live:
        raise RuntimeError(f"backend {backend!r} cannot run here: {state.why}")
    if backend == "cpu" and device.type != "cpu":
        raise RuntimeError(f"backend 'cpu' needs CPU tensors, got tensors on {device}")
    if backend == "triton" and device.type != "cuda" and not interpreted():
        raise RuntimeError(f"backend 'triton' needs CUDA or HIP tensors, got tensors on {device}")
