"""Builds and loads native.cpp, before torch is imported: torch looks for its hooks once, and keeps what it finds."""

from __future__ import annotations

import ctypes
import hashlib
import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

SOURCE = Path(__file__).with_name("native.cpp")
loaded = False


def compiler() -> str | None:
    """The C++ compiler, or None."""
    return shutil.which(os.environ.get("CXX", "g++"))


def load() -> None:
    """Let autograd work with tensors that claim to be CUDA's."""
    if "torch" in sys.modules:
        raise RuntimeError(
            "the make-believe device must be loaded before torch: start with `python -m tests.makebelieve`"
        )
    spec = importlib.util.find_spec("torch")
    assert spec is not None and spec.origin is not None, "torch is not installed"
    torch = Path(spec.origin).parent
    library = _built(torch)
    ctypes.CDLL(str(torch / "lib" / "libtorch_cpu.so"))
    ctypes.CDLL(str(library))
    global loaded
    loaded = True


def _built(torch: Path) -> Path:
    key = hashlib.sha256((SOURCE.read_text() + importlib.metadata.version("torch")).encode()).hexdigest()[:16]
    library = Path.home() / ".cache" / "scone_kernels" / "makebelieve" / f"{key}.so"
    if library.exists():
        return library
    program = compiler()
    assert program is not None, "needs a C++ compiler"
    library.parent.mkdir(parents=True, exist_ok=True)
    partial = library.with_suffix(f".{os.getpid()}")
    command = [program, "-std=c++20", "-shared", "-fPIC", f"-I{torch / 'include'}", str(SOURCE), "-o", str(partial)]
    subprocess.run([*command, f"-L{torch / 'lib'}", "-lc10", "-ltorch_cpu"], check=True)
    partial.replace(library)
    return library
