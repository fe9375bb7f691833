"""What of a job is done: the output file, and beside it `NAME.job`, which says of what it is the output.

Batches are appended whole, so a kill can tear only the last: that one is cut off and written again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from scone.errors import InputError
from scone.jobs.worker import Record

__all__ = ["Ledger"]


class Ledger:
    """The output of a job, one process at a time; as a context, it is locked within."""

    def __init__(self, path: Path, facts: Mapping[str, Any], size: int) -> None:
        """facts: all that decides what is written, as JSON; size: lines in a batch."""
        self.path, self.facts, self.size = path, json.loads(json.dumps(facts)), size
        self.done: set[int] = set()
        self.finished = False
        self._note = path.with_name(path.name + ".job")
        self._lock = FileLock(path.with_name(path.name + ".lock"), timeout=0)

    def __enter__(self) -> Ledger:
        try:
            self._lock.acquire()
        except Timeout:
            raise InputError(f"output must be of one job at a time, and another writes {str(self.path)!r}") from None
        except OSError as problem:
            raise InputError(f"output must be a file that can be written, got {str(self.path)!r}: {problem}") from None
        try:
            self._open()
        except BaseException:
            self._lock.release()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def add(self, index: int, records: Sequence[Record]) -> None:
        """Appends the records of a batch; when this returns, a kill does not lose them."""
        if index in self.done:
            return
        lines = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
        with self.path.open("a", encoding="utf-8", newline="\n") as file:
            file.write(lines)
            file.flush()
            os.fsync(file.fileno())
        self.done.add(index)

    def finish(self) -> None:
        """Notes that nothing is left to do."""
        self.finished = True
        self._write_note()

    def _open(self) -> None:
        if not self.path.exists():
            self._write_note()
            self.path.touch()
            return
        if not self._note.exists():
            raise InputError(f"output must be new or of an earlier run of this job, got {str(self.path)!r}")
        note = json.loads(self._note.read_text(encoding="utf-8"))
        changed = _difference("", note["facts"], self.facts)
        if changed:
            name, before, now = changed
            raise InputError(f"{name} must be {before!r}, with which {str(self.path)!r} was begun, got {now!r}")
        self.finished = note["finished"]
        self._read()

    def _read(self) -> None:
        """Finds what is done; what may be torn, the last batch of a job that has not finished, is cut off."""
        start = place = 0
        last = None
        with self.path.open("rb") as file:
            for raw in file:
                if not raw.endswith(b"\n"):
                    break
                index = (self._line_of(raw) - 1) // self.size
                if index != last:
                    if last is not None:
                        self.done.add(last)
                    start, last = place, index
                place += len(raw)
        if self.finished and last is not None:
            self.done.add(last)
        elif not self.finished:
            os.truncate(self.path, start)

    def _line_of(self, raw: bytes) -> int:
        try:
            return int(json.loads(raw)["line"])
        except (ValueError, KeyError, TypeError):
            raise InputError(f"output must hold records of this job, got {raw[:80]!r} in {str(self.path)!r}") from None

    def _write_note(self) -> None:
        partial = self._note.with_name(self._note.name + ".partial")
        partial.write_text(json.dumps({"finished": self.finished, "facts": self.facts}, indent=1), encoding="utf-8")
        os.replace(partial, self._note)


def _difference(name: str, before: Any, now: Any) -> tuple[str, Any, Any] | None:
    """The first of the facts that is not what it was: its name and both values."""
    if isinstance(before, dict) and isinstance(now, dict):
        for key in [*before, *(key for key in now if key not in before)]:
            found = _difference(f"{name}.{key}" if name else key, before.get(key), now.get(key))
            if found:
                return found
        return None
    return None if before == now else (name, before, now)
