"""Waits of the host, launches and copies while something runs: by torch's profiler on a GPU, else on the make-believe device."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import torch

ROOT = Path(__file__).parents[1]

# Calls of CUDA's and HIP's runtimes, as the profiler names them.
_WAITS = (
    "StreamSynchronize",
    "DeviceSynchronize",
    "EventSynchronize",
    "cudaMemcpy",
    "hipMemcpy",
    "hipMemcpyWithStream",
)
_LAUNCHES = ("LaunchKernel", "LaunchKernelExC", "ModuleLaunchKernel", "ExtModuleLaunchKernel")


@dataclass
class Counts:
    """How often, and because of which lines: (kind, line of ours, line of a library that it called) -> times."""

    waits: int = 0
    launches: int = 0
    to_device: int = 0
    to_host: int = 0
    lines: Counter[tuple[str, str, str]] = field(default_factory=Counter)


def make_believe() -> bool:
    """Whether this process has the make-believe device instead of a GPU."""
    return "tests.makebelieve.native" in sys.modules


def on_a_device(argv: list[str]) -> int | None:
    """Where there is no GPU, run `python -m bench ...` again on the make-believe device: its exit code; else None."""
    if torch.cuda.is_available() or make_believe():
        return None
    return subprocess.call([sys.executable, "-m", "tests.makebelieve", "bench", *argv], cwd=ROOT)


@contextlib.contextmanager
def device(*, interpret: bool = False) -> Iterator[None]:
    """While this lasts there is a `cuda:0`, of one kind or the other.

    `interpret`: on the make-believe device our kernels are run, and not only counted; which is slow.
    """
    if not make_believe():
        yield
        return
    from tests.makebelieve.accelerator import Accelerator

    with Accelerator(interpret=interpret):
        yield


@contextlib.contextmanager
def metered() -> Iterator[Counts]:
    """What happens within is counted, and there when it is over."""
    counts = Counts()
    with _on_make_believe(counts) if make_believe() else _on_gpu(counts):
        yield counts


@contextlib.contextmanager
def _on_make_believe(counts: Counts) -> Iterator[None]:
    from tests.makebelieve.accelerator import Accelerator

    assert Accelerator.active is not None
    with Accelerator.active.counting() as tally:
        yield
    counts.launches = tally.launches
    counts.waits, counts.to_device, counts.to_host = (len(tally.of(kind)) for kind in ("wait", "to device", "to host"))
    counts.lines.update((event.kind, event.line, event.inner) for event in tally.events)


@contextlib.contextmanager
def _on_gpu(counts: Counts) -> Iterator[None]:
    """The profiler counts calls of the runtime; torch's own warnings name the lines of those that it makes itself."""
    from torch.profiler import ProfilerActivity, profile

    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        torch.cuda.synchronize()
        try:
            torch.cuda.set_sync_debug_mode("warn")
            with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiled:
                yield
        finally:
            torch.cuda.set_sync_debug_mode(before)
    for event in profiled.events():
        counts.waits += event.name.endswith(_WAITS)
        counts.launches += event.name.endswith(_LAUNCHES)
        counts.to_device += event.name.startswith("Memcpy HtoD")
        counts.to_host += event.name.startswith("Memcpy DtoH")
    counts.waits = max(0, counts.waits - 1)  # the profiler's own, when it ends
    for warning in heard:
        if "synchronizing" in str(warning.message):
            counts.lines["wait", f"{_short(warning.filename)}:{warning.lineno}", ""] += 1


def _short(file: str) -> str:
    return file.removeprefix(f"{ROOT}/").rpartition("site-packages/")[2]
