"""Progress of long work: how much is done and how long the rest will take."""

from __future__ import annotations

import time
from collections.abc import Callable

__all__ = ["Progress", "readable"]


def readable(seconds: float) -> str:
    """A duration for people.

    >>> readable(42), readable(150), readable(8000)
    ('42s', '2m30s', '2h13m')
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    return f"{whole // 3600}h{whole % 3600 // 60:02d}m"


class Progress:
    """Counts finished pieces and says after each how long the rest should take.

    Pieces that were found done (`skip`) cost nothing and do not enter the estimate.
    """

    def __init__(
        self, total: int, unit: str, *, say: Callable[[str], None] = print, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.total, self.unit = total, unit
        self._say, self._clock = say, clock
        self._started = clock()
        self._worked = self._skipped = 0

    def skip(self, count: int = 1) -> None:
        """`count` pieces were there already."""
        self._skipped += count

    def advance(self, what: str = "") -> None:
        """One piece was done just now."""
        self._worked += 1
        done = self._worked + self._skipped
        each = (self._clock() - self._started) / self._worked
        left = readable(each * (self.total - done))
        self._say(f"{done}/{self.total} {self.unit}, {left} left{': ' + what if what else ''}")
