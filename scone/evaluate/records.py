"""JSON lines that survive a kill: each line is appended whole, a torn last line is dropped, and the end is in order.

A line that is damaged is put aside, into a file beside, and counts as missing: its work is done again.
"""

from __future__ import annotations

import hashlib
import json
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

__all__ = ["Record", "Records", "key_of"]

Record = dict[str, Any]


def key_of(facts: Record) -> str:
    """Sixteen hex digits for everything that determines a result.

    >>> key_of({"a": 1, "b": 2}) == key_of({"b": 2, "a": 1}) != key_of({"a": 1, "b": 3})
    True
    """
    return hashlib.blake2b(json.dumps(facts, sort_keys=True).encode(), digest_size=8).hexdigest()


class Records:
    """The records of a file by their key. A record with a key that is there already takes the old one's place."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._records: dict[str, Record] = {}
        damaged = []
        for line in _whole_lines(path):
            record = _record(line)
            if record is None:
                damaged.append(line)
            else:
                self._records[record["key"]] = record
        if damaged:
            self._put_aside(damaged)

    def __contains__(self, key: object) -> bool:
        return key in self._records

    def get(self, key: str) -> Record | None:
        """The record of that key, or None."""
        return self._records.get(key)

    def __len__(self) -> int:
        return len(self._records)

    def __iter__(self) -> Iterator[Record]:
        return iter(self._records.values())

    def append(self, record: Record) -> None:
        """Store a record; when this returns, a kill does not lose it, and when it fails, nothing of it is there."""
        line = memoryview(_line(record).encode("utf-8"))
        with self.path.open("ab", buffering=0) as file:
            end = file.tell()
            try:
                while line:
                    line = line[file.write(line) :]
                os.fsync(file.fileno())
            except BaseException:  # a full disk, Ctrl-C
                file.truncate(end)
                raise
        self._records[record["key"]] = record

    def sort(self, order: Callable[[Record], Any]) -> None:
        """Rewrite the file in order, without what was replaced; the new file takes the old one's place at once."""
        self._records = {record["key"]: record for record in sorted(self._records.values(), key=order)}
        self._rewrite()

    def _rewrite(self) -> None:
        partial = self.path.with_suffix(".partial")
        partial.write_text("".join(map(_line, self._records.values())), encoding="utf-8")
        os.replace(partial, self.path)

    def _put_aside(self, damaged: Sequence[bytes]) -> None:
        beside = self.path.with_suffix(".damaged")
        with beside.open("ab") as file:
            file.writelines(line + b"\n" for line in damaged)
        warnings.warn(f"{self.path} had {len(damaged)} damaged lines, which are now in {beside.name}", stacklevel=3)
        self._rewrite()


def _record(line: bytes) -> Record | None:
    """The record that a line holds, None where it is damaged."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) and isinstance(record.get("key"), str) else None


def _line(record: Record) -> str:
    return json.dumps(record, ensure_ascii=False) + "\n"


def _whole_lines(path: Path) -> list[bytes]:
    """The lines that end in a newline; a torn last one is cut from the file, so that appending starts afresh."""
    if not path.exists():
        return []
    content = path.read_bytes()
    end = content.rfind(b"\n") + 1
    if end < len(content):
        with path.open("r+b") as file:
            file.truncate(end)
    return [line for line in content[:end].split(b"\n") if line.strip()]
