"""The folders for Hugging Face's hub, taken by the libraries that take them from there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
import transformers

from hub.__main__ import main

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("hub")
    assert main(["--out", str(out)]) == 0
    return out / "kernels"


def test_a_build_for_every_backend_has_a_namespace_of_its_own(folder):
    """The package as it is, under another name, in a process where the installed one is as well."""
    assert sorted(path.name for path in (folder / "build").iterdir()) == ["torch-cpu", "torch-cuda", "torch-rocm"]
    variant = folder / "build" / "torch-cpu"
    code = (
        "import importlib.util, sys, torch, scone_kernels as installed\n"
        f"spec = importlib.util.spec_from_file_location('hub_copy', {str(variant / '__init__.py')!r})\n"
        "copy = sys.modules['hub_copy'] = importlib.util.module_from_spec(spec)\n"
        "spec.loader.exec_module(copy)\n"
        "logits = torch.randn(2, 9)\n"
        "found, expected = (k.gibbs_sample_from_logits(logits, seed=0, counter=0) for k in (copy, installed))\n"
        "assert torch.equal(found.tokens, expected.tokens)\n"
        "print(sys.modules['hub_copy._ops'].ops.name)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("_scone_kernels_cpu_")


def test_the_library_kernels_loads_and_benchmarks_it(folder, monkeypatch):
    # Not `kernels` itself: beside this folder there is one of that name.
    benchmark = pytest.importorskip("kernels.cli.benchmark", reason="needs the package kernels: `make hub-test`")
    from kernels import get_local_kernel

    import scone_kernels

    loaded = get_local_kernel(folder)
    assert loaded.__name__.startswith("_scone_kernels_cpu_") and loaded is not scone_kernels
    logits = torch.randn(3, 50, generator=torch.Generator().manual_seed(0))
    for k in (loaded, scone_kernels):
        assert k.gibbs_sample_from_logits(logits, seed=0, counter=7).tokens.shape == (3,)
    monkeypatch.setattr(sys, "argv", ["kernels"])
    for script in benchmark.discover_benchmark_scripts("scone", folder):
        results, _ = benchmark.run_benchmark_script(script, 1, 0, folder, str(folder), True, "local")
    assert len(results) == 3 and all(timing.verified for timing in results.values())


@pytest.fixture
def small():
    """The tiny random models of the decoder's tests."""
    sys.path.insert(0, str(ROOT / "tests" / "decode"))
    try:
        import tiny
    finally:
        sys.path.pop(0)
    return tiny


def test_generate_runs_the_folder(small):
    """It writes what the engine writes; without its tokenizer it says so, and without trust nothing of it runs."""
    from scone.decode import Scone, SconeConfig, Verifier
    from scone.lookahead import Expectation

    lm, tokenizer = small.llama()
    verifier, config = Verifier(*small.classifier(), target="positive"), SconeConfig(lookahead=Expectation(tokens=2))
    expected = Scone(lm, None, verifier, config, lm_tokenizer=tokenizer).generate(
        ["the movie was"], max_new_tokens=4, seed=3
    )
    inputs = tokenizer("the movie was", return_tensors="pt")
    options = {"custom_generate": str(ROOT / "hub" / "generate"), "trust_remote_code": True}
    options |= {"verifier": verifier, "config": config, "max_new_tokens": 4}
    ids = lm.generate(**inputs, **options, tokenizer=tokenizer, do_sample=True, top_k=0, seed=3)
    assert ids[0, inputs["input_ids"].shape[1] :].tolist() == expected.token_ids[0]
    with pytest.raises(ValueError, match="tokenizer must be the tokenizer of the model, got None"):
        lm.generate(**inputs, **options)
    if tuple(map(int, transformers.__version__.split(".")[:2])) >= (5, 22):  # 5.0 runs what a folder has without asking
        with pytest.raises(ValueError, match="trust_remote_code"):
            lm.generate(**inputs, **options | {"trust_remote_code": False})
