"""The linear layers of one pass of a language model over few rows: ours against torch's, in one run.

    python -m bench linear
    python -m bench linear --build AVX2     where the CPU has AVX-512

The sizes are those of SmolLM2-135M: 30 blocks 576 wide and a vocabulary of 49,152, 538 MB in float32.
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch

from bench.machine import describe
from bench.tables import markdown
from scone_kernels import linear, status

SHAPES = [*[(576, 576), (192, 576), (192, 576), (576, 576), (1536, 576), (1536, 576), (576, 1536)] * 30, (49152, 576)]
ROWS = (1, 2, 4, 7, 10, 20, 40, 80, 120, 200)


def main(argv: list[str]) -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m bench linear", description=__doc__.splitlines()[0])
    parser.add_argument("--turns", type=int, default=9, help="of each, one after the other (default 9)")
    cpu = status().cpu
    if not cpu.live:
        parser.error(f"needs the compiled extension: {cpu.why}")
    builds = torch.ops.scone_kernels.cpu_builds()
    parser.add_argument("--build", choices=builds, default=builds[0], help="of the C++ kernels (default: the best)")
    args = parser.parse_args(argv)
    torch.ops.scone_kernels.use_cpu_build(args.build)
    print(describe() + "\n")
    weights = [torch.randn(shape) for shape in SHAPES]
    size = sum(weight.numel() * 4 for weight in weights)
    rows = []
    with torch.no_grad():
        for count in ROWS:
            rows.append(_row(count, weights, size, args.turns))
    print(
        f"All the products of one pass of SmolLM2-135M ({size / 1e6:.0f} MB of weights in float32), {args.build} kernels:\n"
    )
    print(markdown(["rows", "ms", "torch, ms", "faster", "spread", "GB of weights a second"], rows))
    read = min(_seconds(torch.sum, [(weight,) for weight in weights]) for _ in range(args.turns))
    print(f"Reading the weights once by `sum`: {1000 * read:.0f} ms, {size / read / 1e9:.1f} GB a second.")
    return 0


def _row(count: int, weights: list[torch.Tensor], size: int, turns: int) -> list[str]:
    given = [(torch.randn(count, weight.shape[1]), weight) for weight in weights]
    for x, weight in given[-7:]:
        torch.testing.assert_close(linear(x, weight), torch.nn.functional.linear(x, weight), atol=1e-3, rtol=1e-4)
    ours, theirs = [], []
    for _ in range(turns):
        ours.append(_seconds(linear, given))
        theirs.append(_seconds(torch.nn.functional.linear, given))
    ratios = sorted(b / a for a, b in zip(ours, theirs))
    median = statistics.median(ours)
    return [
        str(count),
        f"{1000 * median:.0f}",
        f"{1000 * statistics.median(theirs):.0f}",
        f"{statistics.median(ratios):.2f}×",
        f"{ratios[0]:.2f} to {ratios[-1]:.2f}",
        f"{size / median / 1e9:.1f}",
    ]


def _seconds(function, arguments) -> float:  # type: ignore[no-untyped-def]
    start = time.perf_counter()
    for given in arguments:
        function(*given)
    return time.perf_counter() - start
