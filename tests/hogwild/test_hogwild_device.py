"""The CUDA kernels of HogwildState, run on the CPU: what they compute, and that the tests see it when they compute something else."""

from __future__ import annotations

import shutil
from pathlib import Path

import on_cpu
import pytest
import torch

from scone_kernels import HogwildState

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")

SANITIZE = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all")
LINE = "  while (!atomic.compare_exchange_weak(old, pack(token, version_of(old) + 1), relaxed, relaxed)) {\n  }\n"
# What is wrong: the file, a line of it, what stands there instead, and what is said of it.
FAULTS = {
    "a missing barrier": ("cuda/hogwild.cuh", "    __syncthreads();", "    ", "neither block saw all"),
    "a barrier that only some reach": (
        "cuda/hogwild.cuh",
        "    __syncthreads();",
        "    if (threadIdx.x != 1) __syncthreads();",
        "part at a barrier",
    ),
    "each thread decides alone": ("cuda/hogwild.cuh", "!__syncthreads_and(fits)", "!fits", "part at a barrier"),
    "a lost update": (
        "include/hogwild.h",
        LINE,
        "  atomic.store(pack(token, version_of(old) + 1), relaxed);\n",
        "a write was lost",
    ),
    "a version not bumped": ("include/hogwild.h", "version_of(old) + 1)", "version_of(old))", "not the CPU's bits"),
    "a read one too far": (
        "include/hogwild.h",
        "for (std::int64_t p = first, end = state.positions; p < end; p += step) {\n    const Word",
        "for (std::int64_t p = first, end = state.positions; p <= end; p += step) {\n    const Word",
        "heap-buffer-overflow",
    ),
    "a write one too far": (
        "include/hogwild.h",
        "j = first, end = blocks.size; j < end",
        "j = first, end = blocks.size; j <= end",
        "heap-buffer-overflow",
    ),
}


@pytest.fixture(scope="module")
def objects(tmp_path_factory):
    """What every checking program consists of besides the kernels, with the sanitizers in it."""
    folder = tmp_path_factory.mktemp("device")
    probe = folder / "probe.cpp"
    probe.write_text("int main() {}")
    if on_cpu.call("g++", *SANITIZE, probe, "-o", folder / "probe").returncode != 0:
        pytest.skip("needs the runtimes of the address and undefined-behaviour sanitizers for g++")
    check = [
        *on_cpu.FLAGS,
        *SANITIZE,
        *on_cpu.includes(folder),
        "-c",
        on_cpu.STAND_IN.parent / "hogwild_device_check.cpp",
    ]
    return on_cpu.compile_fibers(folder, SANITIZE), on_cpu.compiled(folder / "check.o", "g++", *check)


def program(folder: Path, objects, csrc: Path = on_cpu.CSRC) -> Path:
    device = on_cpu.compile_device(folder, SANITIZE, csrc)
    return on_cpu.compiled(folder / "check", "g++", *on_cpu.FLAGS, *SANITIZE, device, *objects)


def test_the_kernels_are_right_in_every_order_of_threads_and_clean_under_sanitizers(objects, tmp_path):
    """One block after the other, a row for each block, all blocks on a row, two blocks on a row: hogwild_device_check.cpp."""
    done = on_cpu.call(program(tmp_path, objects), 150)
    assert done.returncode == 0 and done.stdout.startswith("same: "), done.stdout + done.stderr[-4000:]
    words = done.stdout.split()
    assert on_cpu.kernels() == ["read_kernel", "write_kernel"]  # the program counts the launches of each
    assert int(words[1]) == int(words[3]) > 40


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(fault, objects, tmp_path):
    name, old, new, said = FAULTS[fault]
    for part in ("cuda", "include"):
        shutil.copytree(on_cpu.CSRC / part, tmp_path / "csrc" / part)
    path = tmp_path / "csrc" / name
    source = path.read_text()
    assert source.count(old) == 1
    path.write_text(source.replace(old, new))
    done = on_cpu.call(program(tmp_path, objects, tmp_path / "csrc"), 50)
    assert done.returncode != 0 and said in done.stdout + done.stderr, done.stdout + done.stderr[-4000:]


@pytest.fixture
def device():
    return on_cpu.OnCpu()


@pytest.mark.parametrize("turns", [(1, 1, "up"), (1, 1, "down"), (2, 4, "up"), (2, 4, "shuffled")], ids=str)
def test_results_are_those_of_the_cpu_bit_for_bit(device, turns):
    """A row for each block, so that the order of blocks says nothing; where it does, blocks go one after the other."""
    random = torch.Generator().manual_seed(1)

    def draw(*shape: int, below: int) -> torch.Tensor:
        return torch.randint(below, shape, generator=random)

    first = draw(200, 25, below=2**32)
    state = HogwildState(first)
    words = HogwildState(first)._words
    device.schedule(*turns)
    rows = draw(200, below=200) if turns[1] == 1 else torch.randperm(200, generator=random)
    versions = draw(200, 25, below=3)
    for _ in range(3):
        starts, tokens = draw(200, below=22), draw(200, 4, below=2**32)
        expected = state.write(rows, starts, tokens, state.read()._replace(versions=versions))
        assert torch.equal(device.write(words, rows, starts, tokens, versions), expected)
        for got, want in zip(device.read(words), state.read()):
            assert torch.equal(got, want)


def test_thread_blocks_stride_over_what_is_left(device):
    """More blocks of tokens than thread blocks."""
    state = HogwildState(torch.zeros(3, 2, dtype=torch.int64))
    words = HogwildState(torch.zeros(3, 2, dtype=torch.int64))._words
    count = torch.arange(3000)
    given = count % 3, count % 2, count[:, None]
    device.schedule()
    stale = device.write(words, *given, state.read().versions, threads=1, grid=7)
    assert stale.min() == 0
    state.write(*given, state.read())
    assert torch.equal(device.read(words, threads=2, grid=2)[1], state.read().versions)


def test_a_launch_that_a_gpu_refuses_is_refused(device):
    words = torch.zeros(1, 8, dtype=torch.int64)
    with pytest.raises(RuntimeError, match="invalid launch of read_kernel: 1 blocks of 2000 threads"):
        device.read(words, grid=1, threads=2000)


def test_the_program_for_a_real_gpu_runs_to_its_end(tmp_path):
    """hogwild_link.cpp, which nvcc links and which nobody here can run on a GPU."""
    source, library = on_cpu.STAND_IN.parent / "hogwild_link.cpp", on_cpu.build_library()
    command = ["g++", *on_cpu.FLAGS, *on_cpu.DEVICE, *on_cpu.includes(tmp_path), source, library]
    done = on_cpu.call(on_cpu.compiled(tmp_path / "link", *command))
    assert (done.returncode, done.stdout) == (0, "linked; ran on the GPU\n"), done.stderr
