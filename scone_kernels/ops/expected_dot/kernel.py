"""Triton: expected_dot with three running scalars per row."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from .. import _triton as common

# Not timed on a GPU: chosen from `python -m bench resources`, so that nothing spills with Triton 3.9.0. Halves: 64 rows are
# the least that Hopper's and Blackwell's tensor cores take at once, and one warp group holds both tiles of 64 x 64. Few
# rows wait for the weight: its tile is twice as deep and a third one is under way.
_HALF = common.Shipped(
    "expected_dot",
    many=common.Config({"BLOCK_N": 64, "BLOCK_V": 64, "BLOCK_K": 64}, 4, 2),
    few=common.Config({"BLOCK_N": 16, "BLOCK_V": 64, "BLOCK_K": 128}, 4, 3),
)
FUSED = {
    torch.float32: common.Shipped(
        "expected_dot", many=common.Config({"BLOCK_N": 64, "BLOCK_V": 32, "BLOCK_K": 32}, 4, 2)
    ),
    torch.bfloat16: _HALF,
    torch.float16: _HALF,
}
FROM_LOGITS = {
    dtype: common.Shipped(
        "expected_dot_from_logits", many=common.Config({"BLOCK_N": 16, "BLOCK_V": 64, "BLOCK_K": depth}, 8, 1)
    )
    for dtype, depth in ((torch.float32, 32), (torch.bfloat16, 64), (torch.float16, 64))
}
# Above this size the projections of the table are not stored: each row then projects it anew.
MOST_PROJECTED_BYTES = 256 << 20


@triton.jit
def expected_dot_kernel(
    x_ptr, x_stride_n, x_stride_k, weight_ptr, weight_stride_v, weight_stride_h, bias_ptr, keep_ptr,
    table_ptr, table_stride_v, table_stride_d, grad_ptr, grad_stride_s, grad_stride_d, segment_ptr,
    sums_ptr, top_ptr, total_ptr,
    N, V, H, D, S, split_length, scale,
    BLOCK_N: tl.constexpr, BLOCK_V: tl.constexpr, BLOCK_K: tl.constexpr,
    HAS_SEGMENT: tl.constexpr, PROJECTED: tl.constexpr,
    HAS_BIAS: tl.constexpr, HAS_KEEP: tl.constexpr, FUSED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """sums, top, total (splits, N). If PROJECTED, grad_ptr holds grad @ table.T (S, V) and table_ptr is not read.

    A row whose segment lies outside [0, S) becomes NaN.
    """
    offs_n, mask_n, split, top, total = common.start_rows(N, BLOCK_N)
    offs_s = offs_n
    if HAS_SEGMENT:
        offs_s = tl.load(segment_ptr + offs_n, mask=mask_n, other=0)
    mask_s = mask_n & (offs_s >= 0) & (offs_s < S)
    sums = tl.zeros((BLOCK_N,), dtype=tl.float32)
    for first in range(split * split_length, tl.minimum((split + 1) * split_length, V), BLOCK_V):
        logits, offs_v, mask_v = common.logits_tile(
            x_ptr, x_stride_n, x_stride_k, weight_ptr, weight_stride_v, weight_stride_h, bias_ptr, keep_ptr,
            offs_n, mask_n, first, V, H, scale, BLOCK_N, BLOCK_V, BLOCK_K, HAS_BIAS, HAS_KEEP, FUSED, PRECISION,
        )  # fmt: skip
        top, total, weights, rescale = common.softmax_step(logits, top, total)
        if PROJECTED:
            projected = common.load_rows(grad_ptr, offs_s * grad_stride_s, mask_s, offs_v * grad_stride_d, mask_v)
        else:
            projected = common.matmul_tile(
                grad_ptr, offs_s * grad_stride_s, grad_stride_d, table_ptr, offs_v * table_stride_v, table_stride_d,
                mask_s, mask_v, D, BLOCK_N, BLOCK_V, BLOCK_K, PRECISION,
            )  # fmt: skip
        sums = sums * rescale + tl.sum(weights * projected, 1)
    row = split * N + offs_n
    tl.store(sums_ptr + row, tl.where(mask_s, sums, float("nan")), mask=mask_n)
    tl.store(top_ptr + row, top, mask=mask_n)
    tl.store(total_ptr + row, total, mask=mask_n)


def launch_fused(hidden, weight, table, grad, segment, bias, keep, temperature) -> Tensor:
    """`expected_dot` on Triton; arguments in the order of the op's schema."""
    return _launch(common.Head(hidden, weight, bias, keep), table, grad, segment, temperature)


def launch_from_logits(logits, table, grad, segment, keep, temperature) -> Tensor:
    """`expected_dot_from_logits` on Triton; arguments in the order of the op's schema."""
    return _launch(common.Head(logits, None, None, keep), table, grad, segment, temperature)


def _launch(head: common.Head, table: Tensor, grad: Tensor, segment: Tensor | None, temperature: float) -> Tensor:
    rows, (vocabulary, width), sequences = head.rows, table.shape, grad.shape[0]
    if rows == 0:
        return table.new_empty((0,), dtype=torch.float32)
    grad = grad.to(table.dtype)
    projected = segment is not None and 2 * sequences <= rows and 4 * sequences * vocabulary <= MOST_PROJECTED_BYTES
    if projected:
        grad = (grad.float() @ table.float().T) if grad.dtype == torch.float32 else (grad @ table.T).float()
    configs = FROM_LOGITS if head.weight is None else FUSED
    dtype = torch.float32 if torch.float32 in (head.x.dtype, table.dtype) else head.x.dtype
    config = configs[dtype].choose(rows, dtype, table.device)
    splits, length = head.splits(config.blocks)
    sums = table.new_empty((splits, rows), dtype=torch.float32)
    top, total = torch.empty_like(sums), torch.empty_like(sums)
    with common.on_device(table):
        expected_dot_kernel[triton.cdiv(rows, config.blocks["BLOCK_N"]), splits](
            *head.arguments, table, *table.stride(), grad, *grad.stride(),
            None if segment is None else segment.contiguous(), sums, top, total,
            rows, vocabulary, head.depth, width, sequences, length, 1.0 / temperature,
            HAS_SEGMENT=segment is not None, PROJECTED=projected,
            **head.constants, **config.options, **config.blocks,
        )  # fmt: skip
    factor = torch.exp(top - top.amax(0))
    return (factor * sums).sum(0) / (factor * total).sum(0)


def variants(target: str) -> list[common.Variant]:
    """Everything that is shipped for an architecture, for ahead-of-time compilation."""
    found = []
    for dtype, pointer in common.POINTER.items():
        for fused in (True, False):
            shipped = (FUSED if fused else FROM_LOGITS)[dtype]
            for projected in (True, False):
                types = {"grad_ptr": "*fp32" if projected else pointer, "segment_ptr": "*i64"}
                constants = {"HAS_SEGMENT": True, "PROJECTED": projected}
                constants |= common.head_constants(fused, bias=fused, keep=True, precision="ieee")
                form = "per sequence" if projected else "per row"
                for bucket in common.buckets(shipped):
                    name = f"expected_dot{'' if fused else '_from_logits'} {form} {pointer[1:]} {bucket}"
                    config = shipped.of(bucket, dtype, (target,))
                    found.append(common.variant(name, expected_dot_kernel, pointer, types, constants, config))
    return found
