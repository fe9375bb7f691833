"""The CUDA kernels of HogwildState, compiled by g++ for the CPU with csrc/tests/cuda_on_cpu, for tests to call.

device = OnCpu()                             # builds the library, or takes it from ~/.cache/scone_kernels/on_cpu
tokens, versions = device.read(words)        # (rows, positions) int64 words, as HogwildState keeps them
staleness = device.write(words, rows, starts, tokens, versions)
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

CSRC = Path(__file__).parents[2] / "csrc"
STAND_IN = CSRC / "tests" / "cuda_on_cpu"
FLAGS = ("-std=c++20", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-pthread", "-fPIC")
DEVICE = ("-D__CUDACC__", "-include", "cuda_runtime_api.h")  # nvcc, too, includes the runtime before all else
ORDERS = ("up", "down", "shuffled")

_LAUNCH = re.compile(r"(\w+)<<<(.+?)>>>\(")


def call(*command: object) -> subprocess.CompletedProcess:
    """Run a program to its end, at most ten minutes, and keep what it prints."""
    return subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=600, check=False)


def compiled(target: Path, *command: object) -> Path:
    """Run a compiler that writes `target`."""
    result = call(*command, "-o", target)
    assert result.returncode == 0, result.stderr[-4000:]
    return target


def without_launches(source: str) -> str:
    """CUDA source for g++: `kernel<<<grid, ...>>>(arguments)` becomes a call of the stand-in's `launch`."""
    return _LAUNCH.sub(r'cuda_on_cpu::launch("\1", \1, \2, ', source)


def kernels(csrc: Path = CSRC) -> list[str]:
    """The names of all `__global__` functions."""
    sources = [path.read_text() for path in sorted(csrc.rglob("*.cu*"))]
    return re.findall(r"__global__ void (\w+)", "\n".join(sources))


def includes(folder: Path, csrc: Path = CSRC) -> list[str]:
    """Where headers are looked for; `folder` has what is generated."""
    found = [STAND_IN, STAND_IN.parent, csrc / "cuda", csrc / "include", folder]
    return [f"-I{path}" for path in found]


def compile_device(folder: Path, flags: Sequence[str] = (), csrc: Path = CSRC) -> Path:
    """The kernels and their launchers as an object file. `csrc` may be a copy with a fault in its cuda/ or include/."""
    (folder / "hogwild_on_cpu.inc").write_text(without_launches((csrc / "cuda" / "hogwild.cu").read_text()))
    source = STAND_IN.parent / "hogwild_device.cpp"
    return compiled(folder / "device.o", "g++", *FLAGS, *flags, *DEVICE, *includes(folder, csrc), "-c", source)


def compile_fibers(folder: Path, flags: Sequence[str] = ()) -> Path:
    """The stand-in's machinery as an object file."""
    source = STAND_IN / "fibers.cpp"
    return compiled(folder / "fibers.o", "g++", *FLAGS, *flags, *DEVICE, *includes(folder), "-c", source)


def build_library() -> Path:
    """The shared library, from the cache where it was built from the same sources."""
    sources = [path for path in sorted(CSRC.rglob("*")) if path.is_file() and "cpu" not in path.relative_to(CSRC).parts]
    key = hashlib.sha256(b"\0".join([path.read_bytes() for path in [*sources, Path(__file__)]])).hexdigest()[:24]
    library = Path.home() / ".cache" / "scone_kernels" / "on_cpu" / f"{key}.so"
    if not library.exists():
        folder = library.with_suffix(f".{os.getpid()}")
        folder.mkdir(parents=True)
        objects = compile_fibers(folder), compile_device(folder)
        compiled(folder / "library.so", "g++", *FLAGS, "-shared", *objects).replace(library)
        shutil.rmtree(folder)
    return library


class OnCpu:
    """Calls the kernels with int64 tensors on the CPU. Raises RuntimeError where a launch fails."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL(str(build_library()))
        for name in ("read", "write"):
            getattr(self._library, f"hogwild_{name}_on_cpu").restype = ctypes.c_char_p

    def read(self, words: Tensor, *, grid: int = 0, threads: int = 0) -> tuple[Tensor, Tensor]:
        """Tokens and versions; with a grid of 0 the package's own launcher chooses grid and threads."""
        tokens, versions = torch.full(words.shape, 77), torch.full(words.shape, 77)
        self._call("read", *_state(words), tokens, versions, grid, threads)
        return tokens, versions

    def write(
        self,
        words: Tensor,
        rows: Tensor,
        starts: Tensor,
        tokens: Tensor,
        versions: Tensor,
        *,
        grid: int = 0,
        threads: int = 0,
    ) -> Tensor:
        """The staleness of each block, -1 for one that is left out."""
        staleness = torch.full((len(rows), words.shape[1]), 77)
        given = [tensor.contiguous() for tensor in (rows, starts, tokens, versions)]
        self._call("write", *_state(words), *given, *tokens.shape, staleness, grid, threads)
        return staleness

    def schedule(self, multiprocessors: int = 1, resident: int = 1, order: str = "up", seed: int = 0) -> None:
        """How launches from now on go through threads: on how many threads of the host, each with how many blocks at once."""
        number = ORDERS.index(order)
        self._library.hogwild_schedule_on_cpu(multiprocessors, resident, number, ctypes.c_uint64(seed))

    def launches(self, kernel: str) -> int:
        """How often `kernel` was launched in this process."""
        return self._library.hogwild_launches_on_cpu(kernel.encode())

    def _call(self, name: str, *arguments: Tensor | int) -> None:
        given = [
            ctypes.c_void_p(value.data_ptr()) if isinstance(value, Tensor) else ctypes.c_int64(value)
            for value in arguments
        ]
        why = getattr(self._library, f"hogwild_{name}_on_cpu")(*given)
        if why is not None:
            raise RuntimeError(why.decode())


def _state(words: Tensor) -> tuple[Tensor, int, int, int]:
    """Where the words lie and the state's measures."""
    return words, words.stride(0), *words.shape
