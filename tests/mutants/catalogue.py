"""The committed list of mutants: one TOML file per area, next to this one.

tests = ["tests/hogwild/test_hogwild_state.py"]    # pytest's arguments, for every mutant of the file that names none
env = { TRITON_INTERPRET = "1" }                   # optional: what the tests' environment has besides

[[mutant]]
name = "a write does not count"                    # what is broken, in words
file = "csrc/include/hogwild.h"
old = "version_of(old) + 1"                        # occurs exactly once in the file
new = "version_of(old)"
tests = ["tests/hogwild/test_hogwild_native.py"]   # optional: instead of the file's
build = false                                      # optional: the tests compile csrc/ themselves
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import tomllib

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


@dataclass(frozen=True)
class Mutant:
    """One change that breaks the package, and the tests that ought to see it."""

    area: str
    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    env: dict[str, str] = field(default_factory=dict, hash=False)
    build: bool = False
    """Whether the extension has to be built again."""

    def fault(self, root: Path = ROOT) -> str | None:
        """Why this entry cannot be used on the sources under `root`, or None."""
        path = root / self.file
        if not path.is_file():
            return f"{self.file} does not exist"
        found = path.read_text(encoding="utf-8").count(self.old) if self.old else 0
        if found != 1:
            return f"`old` must occur once in {self.file}, found {found} times"
        if self.new == self.old:
            return "`new` must differ from `old`"
        if not self.tests:
            return "no tests are named"
        for test in self.tests:
            if not test.startswith("-") and (reason := _missing(root, test)):
                return reason
        return None

    def applied(self, text: str) -> str:
        """The file's text with the mutation."""
        return text.replace(self.old, self.new)


def _missing(root: Path, test: str) -> str | None:
    """Why `path::function[case]` names no test under `root`, or None."""
    name, _, function = test.partition("::")
    if not (root / name).exists():
        return f"{name} does not exist"
    function = function.rpartition("::")[2].partition("[")[0]
    if function and f"def {function}(" not in (root / name).read_text(encoding="utf-8"):
        return f"{name} has no {function}"
    return None


def areas(folder: Path = HERE) -> list[str]:
    """The names of the files, without their ending."""
    return sorted(path.stem for path in folder.glob("*.toml"))


def load(area: str, folder: Path = HERE) -> list[Mutant]:
    """The mutants of one area, in the order of its file."""
    with (folder / f"{area}.toml").open("rb") as file:
        content = tomllib.load(file)
    common = {"tests": content.pop("tests", []), "env": content.pop("env", {})}
    entries = content.pop("mutant", [])
    if content:
        raise ValueError(f"{area}.toml: unknown keys {sorted(content)}")
    return [_mutant(area, common | entry) for entry in entries]


def load_all() -> list[Mutant]:
    """Every mutant, area by area."""
    return [mutant for area in areas() for mutant in load(area)]


def _mutant(area: str, entry: dict) -> Mutant:
    # The extension is made of these; csrc/cuda and csrc/tests are compiled by the tests that run them.
    compiled = entry["file"].startswith(("csrc/cpu/", "csrc/include/"))
    return Mutant(**{"area": area, "build": compiled} | entry | {"tests": tuple(entry["tests"])})
