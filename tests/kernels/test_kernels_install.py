"""The package works without its extension, imports quietly, and says what is live."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import scone_kernels

ROOT = Path(__file__).parents[2]


def test_public_names():
    assert set(scone_kernels.__all__) == {
        "BackendStatus",
        "GibbsSample",
        "HogwildState",
        "LikelyRows",
        "Snapshot",
        "Status",
        "expected_dot",
        "expected_dot_from_logits",
        "expected_embedding",
        "expected_embedding_from_logits",
        "gibbs_sample",
        "gibbs_sample_from_logits",
        "inference",
        "likely_rows",
        "likely_rows_from_logits",
        "status",
        "taylor_estimate",
        "to_panels",
    }
    assert all(hasattr(scone_kernels, name) for name in scone_kernels.__all__)


def test_pure_python_install(tmp_path):
    """Without the extension the reference runs, status() says so, and an explicit backend does not downgrade."""
    shutil.copytree(ROOT / "scone_kernels", tmp_path / "scone_kernels", ignore=shutil.ignore_patterns("*.so", "__pyc*"))
    code = (
        "import sys, torch, scone_kernels as k\n"
        "assert 'triton' not in sys.modules\n"
        "assert not k.status().cpu.live and k.status().backend == 'reference', k.status()\n"
        "logits = torch.zeros(1, 3)\n"
        "k.gibbs_sample_from_logits(logits, seed=0, counter=0)\n"
        "torch.ops.scone_kernels.expected_embedding_from_logits(logits, torch.eye(3), None, 1.0)\n"
        "try: k.gibbs_sample_from_logits(logits, seed=0, counter=0, backend='cpu')\n"
        "except RuntimeError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert "backend 'cpu' cannot run here: the extension is not built" in done.stdout


def test_a_copy_under_another_name_lives_beside_this_one(tmp_path):
    """Its modules import each other relatively, and its ops have the namespace of its own `_ops.py`."""
    copy = tmp_path / "other"
    shutil.copytree(ROOT / "scone_kernels", copy, ignore=shutil.ignore_patterns("*.so", "__pyc*"))
    names = (copy / "_ops.py").read_text()
    (copy / "_ops.py").write_text(names.replace("torch.ops.scone_kernels", "torch.ops.other"))
    code = (
        "import sys, torch, other\n"
        "assert not any(name.startswith('scone_kernels') for name in sys.modules), sys.modules.keys()\n"
        "import scone_kernels as k\n"
        "logits = torch.randn(2, 9)\n"
        "found, expected = (p.gibbs_sample_from_logits(logits, seed=0, counter=0) for p in (other, k))\n"
        "assert torch.equal(found.tokens, expected.tokens)\n"
        "state = other.HogwildState(torch.tensor([[1, 2]]))\n"
        "print(torch.ops.other.expected_dot.default, state.backend)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "other.expected_dot.default reference"


def test_an_explicit_reference_is_plain_torch():
    """It does not reach the op of the library, which has a C++ kernel."""
    arguments = {"logits": torch.zeros(2, 3), "seed": 0, "counter": 0}
    called = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            called.append(str(function))
            return function(*args, **kwargs or {})

    for backend, reached in ((None, True), ("reference", False)):
        called.clear()
        with Watch():
            scone_kernels.gibbs_sample_from_logits(**arguments, backend=backend)
        assert called and any(name.startswith("scone_kernels.") for name in called) == reached


def test_status_names_the_build_in_use(cpu_builds):
    assert cpu_builds[-1] == "baseline"
    for build in cpu_builds:
        torch.ops.scone_kernels.use_cpu_build(build)
        assert f"{build} kernels" in scone_kernels.status().cpu.why
    with pytest.raises(ValueError, match=r"no build .* SSE9"):
        torch.ops.scone_kernels.use_cpu_build("SSE9")


def test_status_prints_one_line_per_backend():
    lines = str(scone_kernels.status()).splitlines()
    assert [line.split()[0] for line in lines] == ["reference", "cpu", "triton"]


@pytest.mark.parametrize(
    ("mode", "code", "words"),
    [("0", 0, "scone: built no extension (SCONE_BUILD_EXT=0)"), ("yes", 1, "must be auto, 0 or 1, got 'yes'")],
)
def test_build_modes(mode, code, words):
    done = subprocess.run(
        [sys.executable, "setup.py", "--version"],
        cwd=ROOT,
        env={**os.environ, "SCONE_BUILD_EXT": mode},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code
    assert words in done.stderr
