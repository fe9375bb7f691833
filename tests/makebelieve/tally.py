"""What costs time on a GPU, counted: waits of the host, launches, copies; and the line of code that each comes from."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import NamedTuple

HERE = str(Path(__file__).parent)
ROOT = str(Path(__file__).parents[2])
_OURS = (f"{ROOT}/scone/", f"{ROOT}/scone_kernels/", f"{ROOT}/tests/", f"{ROOT}/bench/")
_MACHINERY = (HERE, f"{ROOT}/scone/lm/transfer.py", "/torch/", "<", "/contextlib.py", "/threading.py")


class Event(NamedTuple):
    """Something that happened, such as ("wait", "_local_scalar_dense", "scone/loop.py:12 decide")."""

    kind: str  # "wait", "to device" or "to host"
    what: str
    line: str
    inner: str  # the line within a library that our line called, or ""


@dataclass
class Tally:
    """Events in order, and how many launches there were. Threads may add to it at once."""

    events: list[Event] = field(default_factory=list)
    launches: int = 0
    ops: Counter[str] = field(default_factory=Counter)  # launches by operation
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def launch(self, what: str) -> None:
        """A kernel was launched."""
        with self._lock:
            self.launches += 1
            self.ops[what] += 1

    def add(self, kind: str, what: str) -> None:
        """A wait or a copy."""
        line, inner = where()
        with self._lock:
            self.events.append(Event(kind, what, line, inner))

    def of(self, kind: str) -> list[Event]:
        """The events of a kind."""
        return [event for event in self.events if event.kind == kind]

    @property
    def waits(self) -> int:
        """How often the host has waited for the device."""
        return len(self.of("wait"))

    def clear(self) -> None:
        """Begin anew."""
        with self._lock:
            self.events.clear()
            self.ops.clear()
            self.launches = 0


def where() -> tuple[str, str]:
    """The innermost line of ours, and the innermost of all if that is in a library."""
    inner = ""
    for frame in _frames(sys._getframe(1)):
        name = frame.f_code.co_filename
        if any(part in name for part in _MACHINERY):
            continue
        if name.startswith(_OURS):
            return _named(frame), inner
        inner = inner or _named(frame)
    return inner, ""


def _frames(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _named(frame: FrameType) -> str:
    name = frame.f_code.co_filename
    short = name.removeprefix(f"{ROOT}/").rpartition("site-packages/")[2]
    return f"{short}:{frame.f_lineno} {frame.f_code.co_name}"
