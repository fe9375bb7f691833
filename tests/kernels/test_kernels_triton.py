"""The Triton kernels: interpreted on the CPU in a process of its own, and compiled for GPUs that are not here."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
import torch

from scone_kernels import _configs

needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs the package triton")
FUSED = ("expected_embedding ", "expected_dot ", "gibbs_sample ", "likely_rows of ")  # with the head's product


@needs_triton
def test_interpreted():
    """TRITON_INTERPRET has to be set before triton is imported."""
    folder = Path(__file__).with_name("interpreted")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", str(folder)],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]


@pytest.fixture(scope="module")
def compiled():
    """What every kernel needs on every target. float16 shares bfloat16's configuration: one target is enough. sm_89 is
    compiled as sm_86 is, and both as sm_80 where few rows are concerned."""
    from scone_kernels import _aot

    jobs = [
        (index, target)
        for target in _aot.TARGETS
        for index, variant in enumerate(_aot.variants(target))
        if (" fp16" not in variant.name or target == "sm_80")
        and target != "sm_89"
        and not (variant.name.endswith(" few") and target == "sm_86")
    ]
    return _aot.compile_jobs(jobs)


@needs_triton
def test_every_kernel_compiles_for_every_target_and_fits(compiled):
    """No spills, and no more shared memory than there is."""
    from scone_kernels import _aot

    assert {row.target for row in compiled} == set(_aot.TARGETS) - {"sm_89"}
    assert {row.kernel for row in compiled} == {variant.name for variant in _aot.variants("sm_80")}
    # How many registers are enough is the compiler's affair: the configurations were chosen with the one of 3.9.
    chosen_with = tuple(map(int, version("triton").split(".")[:2])) >= (3, 9)
    misfits = [row for row in compiled if not row.fits and (chosen_with or not row.spills)]
    assert not misfits, misfits


@needs_triton
def test_halves_reach_the_tensor_cores_as_halves_in_loads_of_16_bytes(compiled):
    """Interpreted kernels are handed float32; compiled ones multiply what the tensors hold."""
    rows = [row for row in compiled if row.kernel.startswith(FUSED) and " fp32" not in row.kernel]
    assert len(rows) > 40
    for row in rows:
        wanted = {"sm": {"HMMA", "HGMMA", "UTCHMMA"}, "gf": {"v_mfma"}}[row.target[:2]]
        assert row.matrix.keys() <= wanted and sum(row.matrix.values()) > 0, row
        assert row.operands == ["bf16" if " bf16" in row.kernel else "f16"], row
        wide, narrow = 16 * row.loads.get("16", 0), 8 * row.loads.get("8", 0) + 4 * row.loads.get("4", 0)
        assert wide > narrow, row  # narrower still are only the bias, the mask and single halves of ready logits


@needs_triton
def test_large_tiles_take_the_large_instructions(compiled):
    """64 rows are what Hopper's and Blackwell's tensor cores take at once."""
    large = {"sm_90": "HGMMA", "sm_100": "UTCHMMA"}
    rows = [
        row
        for row in compiled
        if row.target in large and row.kernel.endswith("bf16 many") and row.kernel.startswith(FUSED)
    ]
    for row in rows:
        assert row.matrix.keys() == {"HMMA" if row.kernel.startswith("gibbs") else large[row.target]}, row
    assert len(rows) == 12


@needs_triton
def test_float32_is_multiplied_in_float32(compiled):
    """No tensor core, unless TF32 is allowed."""
    assert not any(row.matrix for row in compiled if " fp32" in row.kernel and row.target.startswith("sm"))


def shipped():
    many = _configs.Config({"BLOCK_N": 64}, 4, 2, exact=True)
    return _configs.Shipped("an_op", many, _configs.Config({"BLOCK_N": 16}, 4, 3))


def test_rows_come_in_two_buckets_and_no_clock_is_asked():
    """So that a new batch size neither starts a search nor changes what is computed."""
    cpu = torch.device("cpu")
    few, many = (shipped().choose(rows, torch.bfloat16, cpu) for rows in (1, 1000))
    assert few != many
    for rows in range(1, 200):
        assert shipped().choose(rows, torch.bfloat16, cpu) == (few if rows <= _configs.FEW else many)
    assert _configs.Shipped("an_op", many).choose(1, torch.bfloat16, cpu) == many


def test_what_was_measured_on_a_gpu_comes_before_its_architecture_and_what_is_shipped(tmp_path, monkeypatch):
    monkeypatch.setattr(_configs, "FOLDER", tmp_path)
    _configs.overrides.cache_clear()

    def write(name, **entries):
        configs = {key: {"blocks": {"BLOCK_N": size}, "num_warps": 8, "num_stages": 1} for key, size in entries.items()}
        (tmp_path / f"{name}.json").write_text(json.dumps({"configs": configs}))

    write("sm_90", **{"an_op bfloat16 many": 90, "an_op bfloat16 few": 91})
    write("NVIDIA_H100", **{"an_op bfloat16 many": 100})
    names = ("NVIDIA_H100", "sm_90")
    size = [shipped().of(bucket, torch.bfloat16, names).blocks["BLOCK_N"] for bucket in ("few", "many")]
    assert size == [91, 100]
    assert shipped().of("many", torch.bfloat16, names).exact, "whether rounding is exact is no matter of speed"
    assert shipped().of("many", torch.float16, names) == shipped().many
    _configs.overrides.cache_clear()


def test_a_gpu_has_the_name_of_its_files(monkeypatch):
    found = type("Properties", (), {"name": "NVIDIA H100 80GB HBM3", "major": 9, "minor": 0})
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: found)
    _configs._gpu_names.cache_clear()
    assert _configs.names_of(torch.device("cuda", 0)) == ("NVIDIA_H100_80GB_HBM3", "sm_90")
    _configs._gpu_names.cache_clear()
    assert _configs.names_of(torch.device("cpu")) == ()


def test_every_shipped_file_says_how_it_came_about():
    files = sorted(_configs.FOLDER.glob("*.json"))
    assert files
    for file in files:
        content = json.loads(file.read_text())
        assert content["how"] and content["why"], file
        for entry in content["configs"].values():
            assert entry.keys() == {"blocks", "num_warps", "num_stages"}
