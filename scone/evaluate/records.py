"""JSON lines that survive a kill: each line is appended whole, a torn last line is dropped, and the end is in order."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator
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
        whole = _whole_lines(path)
        for line in whole:
            record = json.loads(line)
            self._records[record["key"]] = record

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
        """Store a record; when this returns, a kill does not lose it."""
        with self.path.open("a", encoding="utf-8") as file:
            file.write(_line(record))
            file.flush()
            os.fsync(file.fileno())
        self._records[record["key"]] = record

    def sort(self, order: Callable[[Record], Any]) -> None:
        """Rewrite the file in order, without what was replaced; the new file takes the old one's place at once."""
        self._records = {record["key"]: record for record in sorted(self._records.values(), key=order)}
        partial = self.path.with_suffix(".partial")
        partial.write_text("".join(map(_line, self._records.values())), encoding="utf-8")
        os.replace(partial, self.path)


def _line(record: Record) -> str:
    return json.dumps(record, ensure_ascii=False) + "\n"


def _whole_lines(path: Path) -> list[str]:
    """The lines that end in a newline; a torn last one is cut from the file, so that appending starts afresh."""
    if not path.exists():
        return []
    content = path.read_bytes()
    end = content.rfind(b"\n") + 1
    if end < len(content):
        with path.open("r+b") as file:
            file.truncate(end)
    return [line for line in content[:end].decode("utf-8").split("\n") if line]
