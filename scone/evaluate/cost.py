"""What a generation costs: seconds, peak memory, and how often each model was evaluated."""

from __future__ import annotations

import mmap
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from scone.lm import CausalLM, MaskedLM
from scone.verifier import EmbeddingVerifier

__all__ = ["Cost", "count_sequences", "measure", "note_sequences"]


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
def count_sequences(**parts: Iterable[object]) -> Iterator[dict[str, int]]:
    """How many sequences went through each part within the block; a part is one or several of scone's own objects.

    Nothing is hooked onto the models behind them: fast paths step aside where somebody has, and the time would not be
    that of decoding.

    >>> from scone.verifier import Verifier
    >>> from scone.embedded import load_classifier
    >>> positive = Verifier(*load_classifier("sentiment"), target="positive")
    >>> with count_sequences(verifier=positive.leaves) as counts:
    ...     _ = positive.score(["one", "two", "three"]), positive.score("four")
    >>> counts
    {'verifier': 4}
    """
    counts, lock = dict.fromkeys(parts, 0), threading.Lock()

    def counting(name: str) -> Callable[[int], None]:
        def add(rows: int) -> None:
            with lock:  # several workers may read a masked LM
                counts[name] += rows

        return add

    with ExitStack() as stack:
        for name, objects in parts.items():
            for part in objects:
                stack.enter_context(_watched(part, counting(name)))
        yield counts


def note_sequences(part: object, rows: int) -> None:
    """Count what went through a part's model without going through the part."""
    _WATCHED.get(id(part), lambda rows: None)(rows)


_METHODS: tuple[tuple[type, str], ...] = ((CausalLM, "read"), (MaskedLM, "hidden"), (EmbeddingVerifier, "value"))
"""Where sequences go through each kind of part: as many as the first argument has rows."""

_WATCHED: dict[int, Callable[[int], None]] = {}


@contextmanager
def _watched(part: Any, add: Callable[[int], None]) -> Iterator[None]:
    """Calls of a part's own method are counted; the class and all other instances stay as they are."""
    name = next(method for kind, method in _METHODS if isinstance(part, kind))
    whole = getattr(part, name)

    def counted(first: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        add(len(first))
        return whole(first, *args, **kwargs)

    setattr(part, name, counted)
    _WATCHED[id(part)] = add
    try:
        yield
    finally:
        del _WATCHED[id(part)]
        delattr(part, name)


def _resident() -> int:
    """Resident bytes of this process; 0 where the system does not tell."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return 0
    return pages * mmap.PAGESIZE
