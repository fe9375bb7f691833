"""Threads wait for pieces and not for threads: many more than cores, late ones, and what one of them throws."""

from __future__ import annotations

import os
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

import scone_kernels
from scone_kernels import to_panels
from scone_kernels.inference.ops.linear_half import linear_half

STRESS = Path(__file__).parents[2] / "csrc" / "tests" / "team_stress.cpp"

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")


@pytest.fixture(scope="module")
def stress(tmp_path_factory) -> Path:
    target = tmp_path_factory.mktemp("team") / "stress"
    flags = ("-std=c++20", "-O2", "-Wall", "-Wextra", "-Werror", "-fopenmp", "-pthread")
    result = subprocess.run(["g++", *flags, str(STRESS), "-o", str(target)], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr[-4000:]
    return target


def _found(*command, **options) -> dict[str, int]:
    result = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=600, **options)
    assert result.stdout, result.stderr[-4000:]
    words = result.stdout.split()
    return dict(zip(words[::2], map(int, words[1::2])))


@needs_compiler
@pytest.mark.parametrize("threads", (1, 2, 3, 16))
def test_every_piece_is_done_once_and_after_the_phase_before(stress, threads):
    found = _found(stress, threads, 60, 23, 40)
    assert (found["wrong"], found["told"]) == (0, 1)
    assert found["late"] == 0  # a late thread held nobody up


@needs_compiler
def test_phases_without_pieces_are_over_at_once(stress):
    assert _found(stress, 4, 30, 0, 10)["wrong"] == 0


@needs_compiler
@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs an affinity")
def test_no_more_cores_than_the_process_may_use(stress):
    one = min(os.sched_getaffinity(0))
    assert _found(stress, 2, 2, 2, 1, preexec_fn=lambda: os.sched_setaffinity(0, {one}))["cores"] == 1
    assert _found(stress, 2, 2, 2, 1)["cores"] <= len(os.sched_getaffinity(0))


@pytest.mark.skipif(not scone_kernels.status().cpu.live, reason="needs the C++ extension")
def test_bits_are_the_same_where_many_call_at_once():
    generator = torch.Generator().manual_seed(0)
    x, weight = torch.randn(9, 70, generator=generator), torch.randn(700, 70, generator=generator).half()
    panels, before = to_panels(weight), torch.get_num_threads()
    expected = linear_half(x, panels, width=700)

    def call(_):
        torch.set_num_threads(2)  # of each thread that calls
        return linear_half(x, panels, width=700)

    try:
        with ThreadPoolExecutor(6) as pool:
            assert all(torch.equal(found, expected) for found in pool.map(call, range(300)))
    finally:
        torch.set_num_threads(before)
