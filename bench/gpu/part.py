"""What a part of the report found, and how a part is run so that it cannot end the report."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from bench.meter import device, make_believe

__all__ = ["Deadline", "Found", "Table", "run", "small"]


@dataclass(frozen=True)
class Table:
    """Rows of cells, with a title."""

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[object]]


@dataclass
class Found:
    """Failures in words (none: it passed), and the tables that are shown."""

    failures: list[str] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def check(self, right: bool, otherwise: str) -> None:
        """A failure, unless it is right."""
        if not right:
            self.failures.append(otherwise)


@dataclass(frozen=True)
class Deadline:
    """When the time of a part is over."""

    at: float

    def within(self, items: Sequence[Any], found: Found) -> Iterator[Any]:
        """The items that there is time to begin; what was left out is noted."""
        for i, item in enumerate(items):
            if time.monotonic() > self.at:
                found.notes.append(f"time was over: {len(items) - i} of {len(items)} were left out")
                return
            yield item


def run(part: Callable[[Deadline], Found], seconds: float, *, interpret: bool = False) -> Found:
    """Run one part; whatever goes wrong in it is a failure of that part."""
    start = time.monotonic()
    try:
        with device(interpret=interpret):
            found = part(Deadline(start + seconds))
    except Exception:
        found = Found([f"it broke off: {traceback.format_exc(limit=-4).strip()}"])
    found.seconds = time.monotonic() - start
    return found


def small() -> bool:
    """Whether sizes are to be those of a rehearsal."""
    return make_believe()
