"""What a generation costs: seconds, peak memory, and how often each model was evaluated."""

from __future__ import annotations

import mmap
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

__all__ = ["Cost", "count_sequences", "measure"]


@dataclass
class Cost:
    """Filled in when the measured block ends."""

    seconds: float = 0.0
    cpu_seconds: float = 0.0  # of all threads of this process: what other processes take does not count
    peak_bytes: int = 0  # above what was in use before


@contextmanager
def measure(device: torch.device | str = "cpu", *, every: float = 0.01) -> Iterator[Cost]:
    """Seconds and peak memory of a block: allocated bytes on a GPU, resident bytes (looked at `every` so often) else."""
    cost, gpu = Cost(), torch.device(device).type == "cuda"
    if gpu:
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
    else:
        before = peak = _resident()
        done = threading.Event()

        def watch() -> None:
            nonlocal peak
            while not done.wait(every):
                peak = max(peak, _resident())

        watcher = threading.Thread(target=watch, daemon=True)
        watcher.start()
    began, cpu_began = time.perf_counter(), time.process_time()
    try:
        yield cost
    finally:
        if gpu:
            torch.cuda.synchronize(device)
            peak = torch.cuda.max_memory_allocated(device)
        else:
            done.set()
            watcher.join()
        cost.seconds = time.perf_counter() - began
        cost.cpu_seconds = time.process_time() - cpu_began
        cost.peak_bytes = max(0, max(peak, before if gpu else _resident()) - before)


@contextmanager
def count_sequences(**models: torch.nn.Module) -> Iterator[dict[str, int]]:
    """How many sequences went through each model within the block.

    >>> layer = torch.nn.Linear(2, 2)
    >>> with count_sequences(layer=layer) as counts:
    ...     _ = layer(torch.zeros(3, 2)), layer(torch.zeros(1, 2))
    >>> counts
    {'layer': 4}
    """
    counts = dict.fromkeys(models, 0)

    def hook_for(name: str) -> Any:
        def hook(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            given = next((x for x in (*args, *kwargs.values()) if isinstance(x, torch.Tensor)), None)
            counts[name] += 0 if given is None else given.shape[0]

        return hook

    # The base model runs whether a caller uses the head or not.
    handles = [
        getattr(model, "base_model", model).register_forward_pre_hook(hook_for(name), with_kwargs=True)
        for name, model in models.items()
    ]
    try:
        yield counts
    finally:
        for handle in handles:
            handle.remove()


def _resident() -> int:
    """Resident bytes of this process; 0 where the system does not tell."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return 0
    return pages * mmap.PAGESIZE
