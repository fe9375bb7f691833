"""PREDICTED times of the kernels on GPUs that nobody here has, from bytes and flops that are counted, not timed.

python -m bench roofline
python -m bench roofline --gpu "H100 SXM" --op likely_rows
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass

import torch

from bench.cases import POSITIONS, SECOND_TABLE, models_of, rows_of
from bench.tables import markdown
from scone_kernels import _aot, _configs
from scone_kernels.testing import OPS

SIZE = 2  # bytes of a bfloat16
FLOAT, INT = 4, 8
AMONG = 10  # likely tokens of a row
CACHE = 2.0  # assumed: makers state no such figure
LIBRARY = (128, 256)  # assumed: a tile of the library's products


@dataclass(frozen=True)
class Gpu:
    """What its maker states: terabytes a second, and teraflops of dense bfloat16."""

    name: str
    bandwidth: float
    flops: float
    target: str


GPUS = (
    Gpu("A100 SXM 80 GB", 2.04, 312, "sm_80"),
    Gpu("H100 SXM", 3.35, 989, "sm_90"),
    Gpu("B200", 8.0, 2250, "sm_100"),
    Gpu("MI300X", 5.3, 1307, "gfx942"),
)


@dataclass(frozen=True)
class Work:
    """What has to be done: flops of products, bytes between memory and chip, and what the second-level cache serves again.

    Tiles of a product that share rows or tokens run side by side, so that all but one find these in the cache.
    """

    flops: float
    bytes: float
    again: float = 0.0

    def __add__(self, other: Work) -> Work:
        return Work(self.flops + other.flops, self.bytes + other.bytes, self.again + other.again)

    def seconds(self, gpu: Gpu) -> dict[str, float]:
        """How long each of the three takes at the maker's figures; the cache at CACHE times the memory's bandwidth."""
        return {
            "flops": self.flops / (gpu.flops * 1e12),
            "bytes": self.bytes / (gpu.bandwidth * 1e12),
            "cache": (self.bytes + self.again) / (CACHE * gpu.bandwidth * 1e12),
        }


def ours(op: str, rows: int, vocabulary: int, width: int, target: str) -> Work:
    """Our kernel on bfloat16: inputs once, the results, and what its tiles read again."""
    sequences = max(1, rows // POSITIONS)
    if op == "taylor_estimate":
        return Work(3.0 * rows * width, (3 * rows * width + sequences) * SIZE + rows * INT + sequences * FLOAT)
    base, fused = op.removesuffix("_from_logits"), not op.endswith("_from_logits")
    tile = _tile(op, rows, target)
    head = _product(rows, vocabulary, width, tile) if fused else Work(0.0, rows * vocabulary * SIZE)
    table = vocabulary * width * SIZE
    if base == "gibbs_sample":
        return head + Work(0.0, rows * (3 * INT + FLOAT))
    if base == "expected_embedding":
        columns = -(-width // 256)  # blocks of the table's columns, one after the other: each makes the logits anew
        blocks = -(-rows // tile[0])
        rest = Work(2.0 * rows * vocabulary * width, table + rows * width * FLOAT, (blocks - 1) * table)
        return Work(columns * head.flops, columns * head.bytes, columns * head.again) + rest
    if base == "expected_dot":  # the table is projected once for each sequence, and the rows read the projections
        projected = sequences * vocabulary * FLOAT
        return head + Work(2.0 * sequences * vocabulary * width, table + 2 * projected + rows * FLOAT)
    picked = rows * AMONG * (width + SECOND_TABLE) * SIZE
    out = rows * (width + SECOND_TABLE) * FLOAT + rows * AMONG * (INT + FLOAT) + rows * FLOAT
    return head + Work(0.0, picked + out)


def eager(op: str, rows: int, vocabulary: int, width: int) -> Work:
    """The plain torch lines on bfloat16: every operation reads its inputs and writes its result."""
    sequences = max(1, rows // POSITIONS)
    if op == "taylor_estimate":  # subtract, multiply, sum, index_add
        whole = rows * width * SIZE
        return Work(3.0 * rows * width, 7 * whole + rows * (2 * SIZE + INT) + 2 * sequences * SIZE)
    base, fused = op.removesuffix("_from_logits"), not op.endswith("_from_logits")
    logits = rows * vocabulary * SIZE
    head = _product(rows, vocabulary, width, LIBRARY) + Work(0.0, logits) if fused else Work(0.0, 0.0)
    softmax = Work(0.0, 2 * logits)
    if base == "expected_embedding":
        return head + softmax + _product(rows, width, vocabulary, LIBRARY) + Work(0.0, rows * width * SIZE)
    if base == "expected_dot":  # project, softmax, gather by sequence, multiply, sum
        projected = sequences * vocabulary * SIZE
        rest = Work(0.0, 2 * projected + logits + 3 * logits + logits)
        return head + softmax + _product(sequences, vocabulary, width, LIBRARY) + rest
    if base == "gibbs_sample":  # softmax, exponential noise, quotient, argmax
        return head + softmax + Work(0.0, 5 * logits + rows * INT)
    gathered = rows * AMONG * (width + SECOND_TABLE) * SIZE  # gather, weigh, sum
    return head + Work(0.0, logits + 5 * gathered)


def _product(rows: int, columns: int, depth: int, tile: tuple[int, int]) -> Work:
    """(rows, depth) @ (depth, columns) in tiles, each of which reads its part of both; the result is not counted."""
    once = (rows + columns) * depth * SIZE
    each = (rows * -(-columns // tile[1]) + columns * -(-rows // tile[0])) * depth * SIZE
    return Work(2.0 * rows * columns * depth, once, each - once)


def _tile(op: str, rows: int, target: str) -> tuple[int, int]:
    """BLOCK_N and BLOCK_V of the configuration that would be launched."""
    kernel = _aot.module_of(op.removesuffix("_from_logits"))
    choices = getattr(kernel, "FUSED", None) or kernel.CONFIGS
    if op.endswith("_from_logits"):
        choices = getattr(kernel, "FROM_LOGITS", choices)
    blocks = choices[torch.bfloat16].of(_configs.bucket(rows), torch.bfloat16, (target,)).blocks
    return blocks["BLOCK_N"], blocks["BLOCK_V"]


def main(argv: list[str]) -> int:
    """Print one table for each GPU."""
    parser = argparse.ArgumentParser(prog="python -m bench roofline", description=__doc__)
    parser.add_argument("--gpu", choices=[gpu.name for gpu in GPUS], action="append", help="only this GPU")
    parser.add_argument("--op", choices=OPS, action="append", help="only this op")
    options = parser.parse_args(argv)
    print("# Predicted times on GPUs\n")
    print(_INTRODUCTION)
    for gpu in GPUS:
        if options.gpu is None or gpu.name in options.gpu:
            figures = f"{gpu.bandwidth} TB/s, {gpu.flops:,} TFLOP/s of dense bfloat16"
            print(f"## {gpu.name}, predicted\n\n{figures}\n")
            print(markdown(_HEADER, [_row(gpu, *case) for case in _cases(options.op or OPS)]))
    return 0


_HEADER = ["op", "model", "N", "MB: ours / eager", "GFLOP", "µs: ours / eager", "ratio", "bound"]
_INTRODUCTION = """\
**Nothing here was timed.** A figure is the longest of three: bytes over the memory's bandwidth and flops over the tensor cores'
rate, both as the makers state them for bfloat16, and bytes that the second-level cache serves over twice the memory's bandwidth,
which is an assumption. It is a limit. Real kernels stay away from it, the more so where a call takes only a few microseconds,
which is what it takes to launch one, and ours launch one to three.

*ours* counts what our kernels read and write with the block sizes that would be launched, and what the tiles of a product
read again from the cache; *eager* counts what plain torch reads and writes, operation by operation (the forms of
`bench/cases.py`), with products in tiles of 128 x 256, as if nothing else stayed in a cache: what does makes small N faster
than stated. Noise, exponentials and the search for likely tokens are not counted. *ratio* is eager's time over ours: what
there is to gain at best, and below 1 a loss. `python -m bench kernels` on a GPU measures it; the sizes are the same.

What it says before there is a GPU: from ready logits the kernels should win. With the head, they save what plain torch moves
of logits, and lose what their small tiles (16 to 64 rows, so that the softmax, the noise or the likely tokens stay in
registers) read again: a gain for a hundred rows and `expected_dot`, about as fast for the few rows of a lookahead, where both
wait for the head, and predicted to be **slower than plain torch for thousands of rows**, most of all `expected_embedding`, which
also makes the logits anew for each 256 columns of its table. There, what is gained is memory.
"""


def _cases(ops) -> list[tuple[str, str, int]]:
    return [(op, model, rows) for op in ops for model in models_of(op) for rows in rows_of(op, model)]


def _row(gpu: Gpu, op: str, model: str, rows: int) -> list[object]:
    vocabulary, width = models_of(op)[model]
    works = ours(op, rows, vocabulary, width, gpu.target), eager(op, rows, vocabulary, width)
    seconds = [work.seconds(gpu) for work in works]
    bound = max(seconds[0], key=lambda name: seconds[0][name])
    mine, plain = (max(each.values()) for each in seconds)
    moved = " / ".join(_short(work.bytes / 1e6) for work in works)
    times = f"{_short(1e6 * mine)} / {_short(1e6 * plain)}"
    return [f"`{op}`", model, rows, moved, _short(works[0].flops / 1e9), times, f"{plain / mine:.1f}", bound]


def _short(value: float) -> str:
    """Three digits that say something.

    >>> _short(1234.5), _short(12.345), _short(0.01234)
    ('1,234', '12.3', '0.0123')
    """
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
