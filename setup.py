"""Builds the C++/CUDA extension where it can. Everything else about the package is in pyproject.toml.

SCONE_BUILD_EXT=auto (default)  build if torch and a compiler are there, else install as pure Python
SCONE_BUILD_EXT=0               pure Python
SCONE_BUILD_EXT=1               build, or fail
"""

import os
import sys
from pathlib import Path

from setuptools import setup

MODE = os.environ.get("SCONE_BUILD_EXT", "auto")
if MODE not in ("auto", "0", "1"):
    sys.exit(f"SCONE_BUILD_EXT must be auto, 0 or 1, got {MODE!r}")


def say(line):
    print(f"scone: {line}", file=sys.stderr)


def sources(pattern):
    root = Path(__file__).parent
    return sorted(str(path.relative_to(root)) for path in root.glob(pattern))


def extension():
    """Keyword arguments of setup() for the extension; empty where this install is pure Python."""
    if MODE == "0":
        say("built no extension (SCONE_BUILD_EXT=0): reference and Triton kernels only")
        return {}
    try:
        import torch
        from torch.utils.cpp_extension import CUDA_HOME, BuildExtension, CppExtension, CUDAExtension
    except ImportError as error:
        if MODE == "1":
            raise
        say(
            f"built no extension ({error}; install torch first and use --no-build-isolation): reference and Triton only"
        )
        return {}

    cuda = torch.version.cuda is not None and CUDA_HOME is not None  # whether this machine has a GPU does not matter
    # -fopenmp only compiles: at::parallel_for is a template, and the runtime is the one that torch has loaded.
    # -ffp-contract=off keeps the sampler's noise bit-equal on every backend.
    flags = ["-O3", "-std=c++20", "-fopenmp", "-ffp-contract=off", "-Wno-psabi"]
    kind = CUDAExtension if cuda else CppExtension
    module = kind(
        "scone_kernels._C",
        sources("csrc/*.cpp") + sources("csrc/cpu/**/*.cpp") + (sources("csrc/cuda/*.cu") if cuda else []),
        include_dirs=[str(Path(__file__).parent.resolve() / "csrc" / "include")],
        extra_compile_args={"cxx": flags, "nvcc": ["-O3", "-std=c++20"]},
    )

    class Build(BuildExtension):
        def run(self):
            try:
                super().run()
            except Exception as error:
                if MODE == "1":
                    raise
                say(f"built no extension ({error}): reference and Triton kernels only")
            else:
                say(f"built the extension for the CPU{f' and CUDA {torch.version.cuda}' if cuda else ', without CUDA'}")

    return {"ext_modules": [module], "cmdclass": {"build_ext": Build.with_options(no_python_abi_suffix=True)}}


setup(**extension())
