"""One file to send back from a machine that we do not have: what it is, what is right, what is how fast.

python -m bench report --out scone-report.json      takes the options of `python -m bench kernels` too
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

import scone_kernels
from bench import kernels
from bench.machine import facts
from scone_kernels.testing import OPS, assert_accurate, make_inputs


def main(argv: list[str]) -> int:
    """Write the file and say where it is."""
    parser = argparse.ArgumentParser(prog="python -m bench report", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("scone-report.json"))
    own, rest = parser.parse_known_args(argv)
    options = kernels.parse(rest)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    checks = correctness(device)
    timings = kernels.measure(options, device) if _all_right(checks) else []
    report = {
        "machine": facts(),
        "status": str(scone_kernels.status()).splitlines(),
        "correctness": checks,
        "gemm_gflops": kernels.gemm_gflops(device),
        "timings": [asdict(timing) for timing in timings],
    }
    own.out.write_text(json.dumps(report, indent=1) + "\n")
    print(f"{own.out}: {len(checks)} checks, {len(timings)} timings")
    return 0 if _all_right(checks) else 1


def correctness(device: str) -> dict[str, str]:
    """ "right", or what is wrong, for every op and dtype at an odd size."""
    found: dict[str, str] = {}
    for op in OPS:
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            inputs = make_inputs(op, rows=37, vocabulary=5003, width=96, dtype=dtype, device=device)
            found[f"{op} {dtype}"] = _check(inputs)
    return found


def _check(inputs: Any) -> str:
    try:
        assert_accurate(inputs.run(), inputs)
    except (AssertionError, RuntimeError) as error:
        return str(error)
    return "right"


def _all_right(checks: dict[str, str]) -> bool:
    return all(value == "right" for value in checks.values())
