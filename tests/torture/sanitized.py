"""The extension under the address and undefined-behaviour sanitizers: built apart, and called in processes of its own.

`python -m tests.torture.sanitized SEED COUNT` makes the calls; `run` starts it with what the sanitizers need.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FLAGS = "-fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer -g1 -O1"


def build(folder: Path) -> None:
    """A copy of the package in `folder` whose extension tells of every access and overflow that is not lawful."""
    for name in ("scone_kernels", "csrc", "tests"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    for name in ("setup.py", "pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, folder / name)
    environment = os.environ | {"CFLAGS": FLAGS, "CXXFLAGS": FLAGS, "LDFLAGS": FLAGS, "SCONE_BUILD_EXT": "1"}
    command = [sys.executable, "setup.py", "--quiet", "build_ext", "--inplace"]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"the extension does not build with sanitizers:\n{done.stderr[-3000:]}")


def run(folder: Path, seed: int, count: int) -> str | None:
    """Make calls in the copy; what the sanitizers or the calls themselves complain of, or None."""
    libraries = [_library(name) for name in ("libasan.so", "libubsan.so", "libstdc++.so")]
    environment = os.environ | {
        "LD_PRELOAD": " ".join(libraries),
        "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=0:allocator_may_return_null=1",
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(folder),
    }
    command = [sys.executable, "-m", "tests.torture.sanitized", str(seed), str(count)]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return None
    start = max(0, *(done.stderr.find(mark) for mark in ("runtime error", "ERROR: AddressSanitizer", "Traceback")))
    return f"exit code {done.returncode}\n{done.stderr[max(0, start - 300) :][:3000]}"


def _library(name: str) -> str:
    found = subprocess.run(["g++", f"-print-file-name={name}"], capture_output=True, text=True, check=True)
    return found.stdout.strip()


def main(seed: int, count: int) -> None:
    """Calls of the CPU's kernels, every fifth of them lawful."""
    import scone_kernels
    from tests.torture.calls import answer, hostile, lawful

    assert scone_kernels.status().cpu.live, scone_kernels.status().cpu.why
    assert Path(scone_kernels.__file__).parents[1] == ROOT, "the copy's own package"
    chance = random.Random(seed)
    for i in range(count):
        function, given, *_ = hostile(chance) if i % 5 else lawful(chance)
        answer(function, given)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
