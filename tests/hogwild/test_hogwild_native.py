"""The C++ and CUDA sources without Python: sanitizers, a hunt for torn and lost writes, and what nvcc makes of them."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

CSRC = Path(__file__).parents[2] / "csrc"
STRESS = CSRC / "tests" / "hogwild_stress.cpp"
ARCHITECTURES = (80, 86, 89, 90, 100, 120)

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc (the CUDA toolkit)")


def call(*command) -> subprocess.CompletedProcess:
    return subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=600)


def build(target: Path, *command) -> Path:
    result = call(*command, "-o", target)
    assert result.returncode == 0, result.stderr[-4000:]
    return target


def counts(result: subprocess.CompletedProcess) -> dict[str, int]:
    """The last line that the stress test prints: a name and a number by turns."""
    assert result.stdout, result.stderr[-4000:]
    words = result.stdout.splitlines()[-1].split()
    return dict(zip(words[::2], map(int, words[1::2])))


@pytest.fixture(scope="module")
def stress(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("stress")
    return build(
        folder / "stress",
        "g++",
        "-std=c++20",
        "-O2",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-pthread",
        f"-I{CSRC}/include",
        STRESS,
    )


@needs_compiler
def test_a_hundred_million_reads_and_writes_are_consistent(stress):
    result = call(stress, 4, 4, 12_000_000, 90_000_000)
    found = counts(result)
    assert result.returncode == 0, result.stderr
    assert found["inconsistent"] == 0
    assert found["writes"] + found["reads"] >= 100_000_000 and found["pairs_checked"] > 1_000_000


@needs_compiler
@pytest.mark.parametrize("fault", ["lossy", "torn"])
def test_the_hunt_finds_what_it_hunts_for(stress, fault):
    result = call(stress, 4, 4, 40_000, 400_000, fault)
    assert result.returncode == 1 and counts(result)["inconsistent"] > 0


@needs_compiler
@pytest.mark.parametrize("sanitizer", ["thread", "address,undefined"])
def test_readers_and_writers_are_clean_under_sanitizers(sanitizer, tmp_path):
    flags = ["-std=c++20", "-O1", "-g", f"-fsanitize={sanitizer}", "-fno-sanitize-recover=all", "-pthread"]
    probe = tmp_path / "probe.cpp"
    probe.write_text("int main() {}")
    if call("g++", *flags, probe, "-o", tmp_path / "probe").returncode != 0:
        pytest.skip(f"needs the {sanitizer} sanitizer's runtime for g++")
    program = build(tmp_path / "stress", "g++", *flags, f"-I{CSRC}/include", STRESS)
    result = call(program, 4, 4, 400_000, 4_000_000)
    assert result.returncode == 0 and not result.stderr, result.stderr[-4000:]
    assert counts(result)["inconsistent"] == 0


@needs_nvcc
def test_the_cuda_sources_compile_and_link_for_every_architecture(tmp_path):
    targets = [f"-gencode=arch=compute_{sm},code=sm_{sm}" for sm in ARCHITECTURES]
    sources = [CSRC / "cuda" / "hogwild.cu", CSRC / "tests" / "hogwild_link.cpp"]
    include = [f"-I{CSRC}/include", f"-I{CSRC}/cuda"]
    program = build(tmp_path / "link", "nvcc", "-std=c++20", "-O2", *targets, *include, *sources)
    result = call(program)
    assert result.returncode == 0 and result.stdout.startswith("linked"), result.stdout + result.stderr


@needs_nvcc
def test_the_device_functions_run_on_the_host(tmp_path):
    """nvcc makes cuda::atomic_ref of the functions that g++ makes std::atomic_ref of: the same hunt on both."""
    program = build(
        tmp_path / "stress", "nvcc", "-x", "cu", "-std=c++20", "-O2", "-arch=sm_90", f"-I{CSRC}/include", STRESS
    )
    result = call(program, 4, 4, 1_000_000, 8_000_000)
    assert result.returncode == 0 and counts(result)["inconsistent"] == 0, result.stderr


@needs_nvcc
def test_the_torch_binding_of_the_cuda_kernels_is_valid(tmp_path):
    """Against the headers of the installed torch. Those of a CPU build lack one generated file, which has no content."""
    generated = tmp_path / "c10" / "cuda" / "impl" / "cuda_cmake_macros.h"
    generated.parent.mkdir(parents=True)
    generated.write_text("#pragma once\n#define C10_CUDA_BUILD_SHARED_LIBS\n")
    headers = Path(torch.__file__).parent / "include"
    if not (headers / "c10" / "cuda" / "CUDAGuard.h").exists():
        pytest.skip("needs a torch that comes with its C++ headers")
    (tmp_path / "empty.cu").touch()
    toolkit = re.search(r"^#\$ TOP=(.+)$", call("nvcc", "--dryrun", "-c", tmp_path / "empty.cu").stderr, re.MULTILINE)[
        1
    ]
    include = [f"-I{CSRC}/include", f"-I{CSRC}/cuda", f"-I{headers}", f"-I{toolkit}/include", f"-I{tmp_path}"]
    binding = CSRC / "cuda" / "hogwild_binding.cu"
    result = call("g++", "-x", "c++", "-fsyntax-only", "-std=c++20", *include, binding)
    assert result.returncode == 0, result.stderr[-4000:]
