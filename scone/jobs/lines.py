"""Prompts in a file of JSON lines, a batch at a time: the file may be larger than memory.

A line is a string, {"prompt": ...} or {"messages": [...]}, the latter two with an "id" where one is wanted.
"""

from __future__ import annotations

import hashlib
import json
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from scone.errors import InputError
from scone.prompts import Prompt, check_prompts

__all__ = ["Batch", "Line", "Source", "parse"]

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class Line(NamedTuple):
    """A prompt and where it stood, or what is wrong with the line."""

    number: int  # 1 is the first line of the file
    prompt: Prompt | None
    id: str | int | None = None
    problem: str | None = None


@dataclass(frozen=True)
class Batch:
    """Lines that are written together. Which they are hangs on the file alone, so that a resumed job writes the same."""

    index: int
    lines: tuple[Line, ...]


def parse(number: int, raw: bytes) -> Line | None:
    """A line of the file; None where it is blank.

    >>> parse(7, b'{"prompt": "The movie was", "id": "a"}')
    Line(number=7, prompt='The movie was', id='a', problem=None)
    >>> parse(8, b'{"text": "?"}').problem
    "must have 'prompt' or 'messages', got 'text'"
    """
    if not raw.strip():
        return None
    known: Any = None
    try:
        value = json.loads(raw.decode("utf-8"))
        known = value.get("id") if isinstance(value, dict) else None
        if isinstance(known, bool) or not isinstance(known, str | int | None):
            bad, known = known, None
            raise InputError(f"'id' must be a string or an integer, got {bad!r}")
        return Line(number, _prompt(value), known)
    except UnicodeDecodeError as error:
        return Line(number, None, known, f"must be valid Unicode: {error.reason}")
    except json.JSONDecodeError as error:
        return Line(number, None, known, f"must be JSON: {error.msg} at column {error.colno}")
    except InputError as error:
        return Line(number, None, known, str(error))
    except RecursionError:
        return Line(number, None, known, "must be JSON that is not nested so deeply")


def _prompt(value: Any) -> Prompt:
    given = {"prompt": value} if isinstance(value, str) else value
    if not isinstance(given, dict):
        raise InputError(f"must be a string or an object, got {type(value).__name__}")
    names = [name for name in ("prompt", "messages") if name in given]
    if len(names) != 1:
        raise InputError(
            f"must have 'prompt' or 'messages', got {' and '.join(map(repr, names or given)) or 'neither'}"
        )
    (name,) = names
    prompt = given[name]
    if isinstance(prompt, str) != (name == "prompt") or not prompt:
        expected = "a text that is not empty" if name == "prompt" else "a list of messages"
        raise InputError(f"{name!r} must be {expected}, got {prompt!r}")
    check_prompts([prompt])
    return prompt


@dataclass(frozen=True)
class Source:
    """A file of prompts that has been looked through once: how many, where each batch begins, and which are bad."""

    path: Path
    size: int  # lines in a batch
    starts: array[int]  # of the batches, in bytes
    lines: int
    prompts: int  # lines that are not blank
    bad: int
    first_bad: Line | None
    digest: str

    @classmethod
    def survey(cls, path: Path, size: int) -> Source:
        """Reads the whole file, a line at a time; InputError where it cannot be read."""
        starts, digest = array("q"), hashlib.blake2b(digest_size=16)
        number = prompts = bad = place = 0
        first_bad = None
        try:
            with path.open("rb") as file:
                for number, raw in enumerate(file, 1):
                    if (number - 1) % size == 0:
                        starts.append(place)
                    place += len(raw)
                    digest.update(raw)
                    line = parse(number, _unmarked(number, raw))
                    prompts += line is not None
                    if line is not None and line.problem is not None:
                        bad, first_bad = bad + 1, first_bad or line
        except OSError as problem:
            raise InputError(f"input must be a file of JSON lines, got {str(path)!r}: {problem.strerror}") from problem
        return cls(path, size, starts, number, prompts, bad, first_bad, digest.hexdigest())

    def __len__(self) -> int:
        return len(self.starts)

    def lines_in(self, index: int) -> int:
        """How many lines a batch has, blank ones too."""
        return min(self.size, self.lines - index * self.size)

    def read(self, index: int) -> Batch:
        """One batch, from the file."""
        with self.path.open("rb") as file:
            file.seek(self.starts[index])
            return Batch(index, tuple(self._lines(file, index * self.size + 1)))

    def _lines(self, file: Any, first: int) -> Iterator[Line]:
        for number, raw in zip(range(first, first + self.size), file):
            line = parse(number, _unmarked(number, raw))
            if line is not None:
                yield line


def _unmarked(number: int, raw: bytes) -> bytes:
    return raw.removeprefix(_BYTE_ORDER_MARK) if number == 1 else raw
