"""Where a figure was taken: CPU, GPU, versions, commit. And how memory is measured there."""

from __future__ import annotations

import ctypes
import os
import platform
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch


def facts() -> dict[str, Any]:
    """Machine and versions, by name."""
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return {
        "cpu": _cpu_name(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "vector instructions": torch.backends.cpu.get_cpu_capability(),
        "gpu": gpu,
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "triton": _version("triton"),
        "commit": _commit(),
        "load": round(os.getloadavg()[0], 1) if hasattr(os, "getloadavg") else None,
    }


def describe() -> str:
    """The facts as one line of text."""
    known = {name: value for name, value in facts().items() if value is not None}
    return ", ".join(f"{name} {value}" for name, value in known.items())


def peak_extra_bytes(function: Callable[[], Any], device: str) -> int | None:
    """How far memory rises above its level before the call, while `function` runs. None where it cannot be told."""
    if device == "cuda":
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        function()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before
    reset = Path("/proc/self/clear_refs")
    if not reset.exists():
        return None
    ctypes.CDLL(None).malloc_trim(0)  # give back what earlier calls have freed, so that reuse counts as well
    reset.write_text("5")  # sets the process's peak to its present size
    before = _status_bytes("VmRSS")
    function()
    return max(0, _status_bytes("VmHWM") - before)


def _status_bytes(field: str) -> int:
    found = re.search(rf"{field}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    if found is None:
        raise RuntimeError(f"/proc/self/status has no {field}")
    return 1024 * int(found.group(1))


def _cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    found = re.search(r"model name\s*:\s*(.+)", info.read_text()) if info.exists() else None
    return found.group(1) if found else platform.processor() or "unknown"


def _version(package: str) -> str | None:
    import importlib.metadata

    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _commit() -> str | None:
    try:
        command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None
