"""Triton: expected_embedding as attention with the head's rows as keys and the table's rows as values."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from .. import _triton as common

# Not timed on a GPU: chosen from `python -m bench resources`, so that nothing spills with Triton 3.9.0. float32 multiplies
# without tensor cores, unless TF32 is allowed, and what it has in registers limits it. Halves: the accumulator (BLOCK_N,
# BLOCK_D) is what fills registers, 64 rows are the least that Hopper's and Blackwell's tensor cores take at once, and three
# stages of 64 columns hide a load behind two products. Few rows need no second half of the accumulator: half the warps.
_HALF = common.Shipped(
    "expected_embedding",
    many=common.Config({"BLOCK_N": 64, "BLOCK_V": 32, "BLOCK_H": 64, "BLOCK_D": 256}, 8, 3),
    few=common.Config({"BLOCK_N": 16, "BLOCK_V": 64, "BLOCK_H": 64, "BLOCK_D": 256}, 4, 3),
)
CONFIGS = {
    torch.float32: common.Shipped(
        "expected_embedding", many=common.Config({"BLOCK_N": 32, "BLOCK_V": 32, "BLOCK_H": 32, "BLOCK_D": 256}, 8, 2)
    ),
    torch.bfloat16: _HALF,
    torch.float16: _HALF,
}


@triton.jit
def expected_embedding_kernel(
    x_ptr, x_stride_n, x_stride_k, weight_ptr, weight_stride_v, weight_stride_h, bias_ptr, keep_ptr,
    table_ptr, table_stride_v, table_stride_d, sums_ptr, top_ptr, total_ptr,
    N, V, H, D, split_length, scale,
    BLOCK_N: tl.constexpr, BLOCK_V: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_D: tl.constexpr,
    HAS_BIAS: tl.constexpr, HAS_KEEP: tl.constexpr, FUSED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """sums (splits, N, D), top and total (splits, N) of the tokens [split * split_length, ...)."""
    offs_n, mask_n, split, top, total = common.start_rows(N, BLOCK_N)
    pid_d = tl.program_id(2).to(tl.int64)
    offs_d = pid_d * BLOCK_D + tl.arange(0, BLOCK_D)
    mask_d = offs_d < D
    sums = tl.zeros((BLOCK_N, BLOCK_D), dtype=tl.float32)
    for first in range(split * split_length, tl.minimum((split + 1) * split_length, V), BLOCK_V):
        logits, offs_v, mask_v = common.logits_tile(
            x_ptr, x_stride_n, x_stride_k, weight_ptr, weight_stride_v, weight_stride_h, bias_ptr, keep_ptr,
            offs_n, mask_n, first, V, H, scale, BLOCK_N, BLOCK_V, BLOCK_H, HAS_BIAS, HAS_KEEP, FUSED, PRECISION,
        )  # fmt: skip
        top, total, weights, rescale = common.softmax_step(logits, top, total)
        table = common.load_rows(table_ptr, offs_v * table_stride_v, mask_v, offs_d * table_stride_d, mask_d)
        sums = common.dot(weights.to(table.dtype), table, sums * rescale[:, None], PRECISION)
    row = split * N + offs_n
    tl.store(sums_ptr + (row * D)[:, None] + offs_d[None, :], sums, mask=mask_n[:, None] & mask_d[None, :])
    if pid_d == 0:
        tl.store(top_ptr + row, top, mask=mask_n)
        tl.store(total_ptr + row, total, mask=mask_n)


def launch_fused(hidden, weight, table, bias, keep, temperature) -> Tensor:
    """`expected_embedding` on Triton; arguments in the order of the op's schema."""
    return _launch(common.Head(hidden, weight, bias, keep), table, temperature)


def launch_from_logits(logits, table, keep, temperature) -> Tensor:
    """`expected_embedding_from_logits` on Triton; arguments in the order of the op's schema."""
    return _launch(common.Head(logits, None, None, keep), table, temperature)


def _launch(head: common.Head, table: Tensor, temperature: float) -> Tensor:
    rows, (vocabulary, width) = head.rows, table.shape
    if rows == 0 or width == 0:
        return table.new_empty((rows, width), dtype=torch.float32)
    dtype = torch.float32 if torch.float32 in (head.x.dtype, table.dtype) else head.x.dtype
    config = CONFIGS[dtype].choose(rows, dtype, table.device)
    splits, length = head.splits(config.blocks)
    sums = table.new_empty((splits, rows, width), dtype=torch.float32)
    top = table.new_empty((splits, rows), dtype=torch.float32)
    total = torch.empty_like(top)
    grid = (triton.cdiv(rows, config.blocks["BLOCK_N"]), splits, triton.cdiv(width, config.blocks["BLOCK_D"]))
    with common.on_device(table):
        expected_embedding_kernel[grid](
            *head.arguments, table, *table.stride(), sums, top, total,
            rows, vocabulary, head.depth, width, length, 1.0 / temperature,
            **head.constants, **config.options, **config.blocks,
        )  # fmt: skip
    factor = torch.exp(top - top.amax(0))  # (splits, N); NaN where a row has no token
    return torch.einsum("sn,snd->nd", factor, sums) / (factor * total).sum(0)[:, None]


def variants(target: str) -> list[common.Variant]:
    """Everything that is shipped for an architecture, for ahead-of-time compilation."""
    found = []
    for dtype, shipped in CONFIGS.items():
        pointer = common.POINTER[dtype]
        for fused in (True, False):
            constants = common.head_constants(fused, bias=fused, keep=True, precision="ieee")
            for bucket in common.buckets(shipped):
                name = f"expected_embedding{'' if fused else '_from_logits'} {pointer[1:]} {bucket}"
                config = shipped.of(bucket, dtype, (target,))
                found.append(common.variant(name, expected_embedding_kernel, pointer, {}, constants, config))
    return found
