"""What a stage of the torture counts, kept in a file so that a crash loses none of it.

A stage is a function of a Tally in a module of tests/torture/stages:

    @stage(minutes=5)
    def kernels_are_fuzzed(tally):
        while tally.going():
            shape = tally.random.choice(SHAPES)
            with tally.trial("calls fuzzed", f"expected_dot of {shape}"):
                check(shape)  # whatever it raises is a failure

It runs in a process of its own with one thread, so that a crash, a hang or a leak is its own. What it draws from
`tally.random` depends on `--seed` and on its name alone.
"""

from __future__ import annotations

import json
import mmap
import os
import random
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

COUNTS = ("inputs tried", "faults injected", "calls fuzzed", "generations soaked")

_LABEL_BYTES = 2048
_MOST_FAILURES = 20  # of a stage that are told in full; the rest are counted
_WRITE_EVERY = 1.0  # seconds


@dataclass(frozen=True)
class Stage:
    """A stage by name; `minutes` is what it may take on one core."""

    name: str
    minutes: float
    run: Callable[[Tally], None]


def stage(*, minutes: float) -> Callable[[Callable[[Tally], None]], Stage]:
    """Make a function a stage that is named after it."""
    return lambda run: Stage(run.__name__.replace("_", " "), minutes, run)


@dataclass
class Counted:
    """What a stage has counted so far, as its file says it."""

    counts: dict[str, int]
    failures: int
    told: list[str]  # the first failures in words
    notes: list[str]
    done: bool


class Tally:
    """The counts of a running stage, its random numbers and its time."""

    def __init__(self, folder: Path, name: str, *, seconds: float, seed: int) -> None:
        self.name, self.folder = name, folder
        self.random = random.Random(f"{seed} {name}")
        self._counted = Counted(dict.fromkeys(COUNTS, 0), 0, [], [], False)
        self._ends = time.monotonic() + seconds
        self._written = 0.0
        label = folder / "label"
        label.write_bytes(bytes(_LABEL_BYTES))
        with label.open("r+b") as file:
            self._label = mmap.mmap(file.fileno(), _LABEL_BYTES)  # outlives the process, and costs no call

    def going(self) -> bool:
        """Whether there is time for more."""
        self._write(soon=False)
        return time.monotonic() < self._ends

    def add(self, what: str, count: int = 1) -> None:
        """Count what was tried: one of COUNTS."""
        self._counted.counts[what] += count
        self._write(soon=False)

    @contextmanager
    def trial(self, what: str, label: str) -> Iterator[None]:
        """Count one of something; an exception that leaves the block is a failure, told with the label."""
        self.doing(label)
        self.add(what)
        try:
            yield
        except Exception:
            self.fail(f"{label}\n{traceback.format_exc(limit=-4)}")

    def doing(self, label: str) -> None:
        """What goes on: told if the process dies of it."""
        raw = label.encode("utf-8", "replace")[: _LABEL_BYTES - 1]
        self._label[: len(raw) + 1] = raw + b"\0"

    def fail(self, words: str) -> None:
        """Count a failure."""
        self._counted.failures += 1
        if len(self._counted.told) < _MOST_FAILURES:
            self._counted.told.append(words)
        self._write(soon=True)

    def note(self, words: str) -> None:
        """A line for the end of the report, such as a curve."""
        self._counted.notes.append(words)
        self._write(soon=True)

    def finish(self) -> None:
        """The stage came to its end."""
        self._counted.done = True
        self._write(soon=True)

    def _write(self, *, soon: bool) -> None:
        now = time.monotonic()
        if soon or now - self._written > _WRITE_EVERY:
            self._written = now
            fresh = self.folder / "tally.fresh"
            fresh.write_text(json.dumps(vars(self._counted)), encoding="utf-8")
            os.replace(fresh, self.folder / "tally.json")


def read_tally(folder: Path) -> tuple[Counted, str]:
    """What a stage counted, and what it did last."""
    path = folder / "tally.json"
    counted = Counted(dict.fromkeys(COUNTS, 0), 0, [], [], False)
    if path.exists():
        counted = Counted(**json.loads(path.read_text(encoding="utf-8")))
    label = folder / "label"
    last = label.read_bytes().partition(b"\0")[0].decode("utf-8", "replace") if label.exists() else ""
    return counted, last
