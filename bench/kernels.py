"""Each op against plain torch, eager and compiled: time, memory, and arithmetic against this machine's GEMM.

    python -m bench kernels                                  every op and size (about ten minutes on two cores)
    python -m bench kernels --model modernbert --rows 2000   part of it
    python -m bench kernels --no-compile                     without torch.compile
    python -m bench kernels --one-thread                     CPU time of one thread, where others use the machine too

Runs on the GPU if there is one. Methods take turns, so that a noisy machine disturbs all of them alike; a cell is the
median of the turns, with the range of the middle half behind ±. A result is checked before it is timed. "of GEMM" is the
op's GFLOP/s against those of one large square GEMM in float32, which takes turns with the methods too; "of its best" is
the same against the best of ten more runs of it, five before all cases and five after.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

import scone_kernels
from bench.cases import COMPILED, LMS, MODELS, Case, make_case, models_of, rows_of
from bench.machine import describe, peak_extra_bytes
from bench.tables import markdown
from scone_kernels.testing import OPS, assert_accurate

HEADER = ["op", "model", "N", "method", "ms", "±", "op is faster by", "extra MB", "GFLOP/s", "of GEMM", "of its best"]
GEMM_SIZE = 3072
GEMM_FLOPS = 2.0 * GEMM_SIZE**3


@dataclass(frozen=True)
class Timing:
    """One method of one case."""

    op: str
    model: str
    rows: int
    method: str
    seconds: float
    spread: float
    extra_bytes: int | None
    flops: float | None
    gemm: float | None
    """GFLOP/s of the square GEMM in the same turns; None where `flops` is."""

    @property
    def gflops(self) -> float | None:
        """Billions of floating-point operations per second; None for methods that do other work."""
        return None if self.flops is None else self.flops / self.seconds / 1e9


def main(argv: list[str]) -> int:
    """Print the table."""
    arguments = parse(argv)
    print(f"# Kernels\n\n`python -m bench kernels {' '.join(argv)}`\n\n{describe()}\n\n{scone_kernels.status()}\n")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    clock = clock_of(arguments)
    before = gemm_gflops(device, clock)
    timings = measure(arguments, device)
    after = gemm_gflops(device, clock)
    print(f"One large square GEMM in float32: {before:.0f} GFLOP/s before, {after:.0f} after, best of five.\n")
    print(markdown(HEADER, table(timings, max(before, after))))
    return 0


def parse(argv: list[str]) -> argparse.Namespace:
    """Options of this benchmark; `report` shares them."""
    parser = argparse.ArgumentParser(prog="python -m bench kernels", description=__doc__)
    parser.add_argument("--op", choices=OPS, action="append", help="only this op (may be repeated)")
    parser.add_argument("--model", choices=[*MODELS, *LMS], action="append", help="only this size (may be repeated)")
    parser.add_argument("--rows", type=int, action="append", help="only this N (may be repeated)")
    parser.add_argument("--turns", type=int, default=5, help="timed calls of each method")
    parser.add_argument("--no-compile", action="store_true", help="leave torch.compile out")
    parser.add_argument("--one-thread", action="store_true", help="time the CPU time of one thread")
    parser.add_argument("--dtype", choices=["float32", "bfloat16", "float16"], default="float32")
    return parser.parse_args(argv)


def measure(arguments: argparse.Namespace, device: str) -> list[Timing]:
    """Time every case that the options name."""
    timings: list[Timing] = []
    clock = clock_of(arguments)
    for op in arguments.op or OPS:
        compiled = None if arguments.no_compile else torch.compile(make_rival(op), dynamic=True)
        for model in [name for name in models_of(op) if name in (arguments.model or models_of(op))]:
            for rows in arguments.rows or rows_of(op, model):
                case = make_case(op, model, rows, dtype=getattr(torch, arguments.dtype), device=device)
                timings += time_case(case, compiled, arguments.turns, device, clock)
    return timings


def clock_of(arguments: argparse.Namespace) -> Callable[[], float]:
    """What the options want to be read; `--one-thread` is heeded from then on."""
    if arguments.one_thread:
        torch.set_num_threads(1)
    return time.thread_time if arguments.one_thread else time.perf_counter


def make_rival(op: str) -> Callable[..., Any]:
    """The plain formulation of `op` that torch.compile is given."""
    return make_case(op, next(iter(models_of(op))), 25).plain[COMPILED[op]]


def time_case(
    case: Case,
    compiled: Callable[..., Any] | None,
    turns: int,
    device: str,
    clock: Callable[[], float] = time.perf_counter,
) -> list[Timing]:
    """Check the op, then let it and its rivals take turns."""
    small = case.first_rows()
    assert_accurate(small.run(), small)
    given = case.rival_arguments()
    methods: dict[str, Callable[[], Any]] = {"scone_kernels": case.inputs.run} | case.others
    methods |= {name: _bind(function, given) for name, function in case.plain.items()}
    if compiled is not None:
        methods[f"torch.compile, {COMPILED[case.op]}"] = _bind(compiled, given)
    extra = {}
    with torch.inference_mode():
        for name, method in methods.items():
            method()  # warm up
            extra[name] = peak_extra_bytes(method, device)
        turn = methods if case.flops is None else methods | {"GEMM": square_gemm(device)}
        seconds: dict[str, list[float]] = {name: [] for name in turn}
        for _ in range(turns):
            for name, method in turn.items():
                seconds[name].append(_timed(method, device, clock))
    yardstick = seconds.pop("GEMM", None)
    gemm = None if yardstick is None else GEMM_FLOPS / statistics.median(yardstick) / 1e9
    return [
        Timing(
            case.op,
            case.model,
            case.rows,
            name,
            statistics.median(times),
            _middle_half(times),
            extra[name],
            case.flops if name == "scone_kernels" else None,
            gemm if name == "scone_kernels" else None,
        )
        for name, times in seconds.items()
    ]


def square_gemm(device: str) -> Callable[[], Any]:
    """One large square GEMM in float32, ready to run: `GEMM_FLOPS` operations."""
    left, right = torch.randn(GEMM_SIZE, GEMM_SIZE, device=device), torch.randn(GEMM_SIZE, GEMM_SIZE, device=device)
    out = torch.empty_like(left)
    return lambda: torch.mm(left, right, out=out)


def gemm_gflops(device: str, clock: Callable[[], float] = time.perf_counter) -> float:
    """What the square GEMM reaches here, best of five."""
    gemm = square_gemm(device)
    return GEMM_FLOPS / min(_timed(gemm, device, clock) for _ in range(5)) / 1e9


def table(timings: list[Timing], best: float) -> list[list[object]]:
    """Rows of the printed table; `best` is the most that the square GEMM reached, in GFLOP/s."""
    ours = {(t.op, t.model, t.rows): t for t in timings if t.method == "scone_kernels"}
    rows: list[list[object]] = []
    for timing in timings:
        op = ours[timing.op, timing.model, timing.rows]
        own = timing is op
        rows.append(
            [
                timing.op if own else "",
                timing.model if own else "",
                timing.rows if own else "",
                timing.method,
                f"{1e3 * timing.seconds:.3g}" if timing.seconds < 1e-3 else f"{1e3 * timing.seconds:.1f}",
                f"{1e3 * timing.spread:.1f}",
                "" if own else f"{timing.seconds / op.seconds:.2f}×",
                "?" if timing.extra_bytes is None else f"{timing.extra_bytes / 1e6:.0f}",
                f"{timing.gflops:.0f}" if timing.gflops else "",
                f"{timing.gflops / timing.gemm:.0%}" if timing.gflops and timing.gemm else "",
                f"{timing.gflops / best:.0%}" if timing.gflops else "",
            ]
        )
    return rows


def _bind(function: Callable[..., Any], given: tuple[Any, ...]) -> Callable[[], Any]:
    return lambda: function(*given)


def _timed(function: Callable[[], Any], device: str, clock: Callable[[], float] = time.perf_counter) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
    start = clock()
    function()
    if device == "cuda":
        torch.cuda.synchronize()
    return clock() - start


def _middle_half(times: list[float]) -> float:
    if len(times) < 2:
        return 0.0
    low, _, high = statistics.quantiles(times, n=4, method="inclusive")
    return (high - low) / 2
