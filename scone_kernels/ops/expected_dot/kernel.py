"""Triton: expected_dot with three running scalars per row."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from scone_kernels.ops import _triton as common

# Chosen so that nothing spills (`python -m bench resources`); not timed on a GPU.
FUSED = {
    torch.float32: common.Config({"BLOCK_N": 32, "BLOCK_V": 64, "BLOCK_K": 32}, 8, 1),
    torch.bfloat16: common.Config({"BLOCK_N": 64, "BLOCK_V": 64, "BLOCK_K": 64}, 4, 2),
    torch.float16: common.Config({"BLOCK_N": 64, "BLOCK_V": 64, "BLOCK_K": 64}, 4, 2),
}
FROM_LOGITS = dict.fromkeys(FUSED, common.Config({"BLOCK_N": 16, "BLOCK_V": 64, "BLOCK_K": 32}, 8, 1))
# Above this size the projections of the table are not stored: each row then projects it anew.
MOST_PROJECTED_BYTES = 256 << 20


@triton.jit
def expected_dot_kernel(
    x_ptr,
    x_stride_n,
    x_stride_k,
    weight_ptr,
    weight_stride_v,
    weight_stride_h,
    bias_ptr,
    keep_ptr,
    table_ptr,
    table_stride_v,
    table_stride_d,
    grad_ptr,
    grad_stride_s,
    grad_stride_d,
    segment_ptr,
    sums_ptr,
    top_ptr,
    total_ptr,
    N,
    V,
    H,
    D,
    S,
    split_length,
    scale,
    BLOCK_N: tl.constexpr,
    BLOCK_V: tl.constexpr,
    BLOCK_K: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    HAS_KEEP: tl.constexpr,
    HAS_SEGMENT: tl.constexpr,
    PROJECTED: tl.constexpr,
    FUSED: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """sums, top, total (splits, N). If PROJECTED, grad_ptr holds grad @ table.T (S, V) and table_ptr is not read.

    A row whose segment lies outside [0, S) becomes NaN.
    """
    pid_n = tl.program_id(0).to(tl.int64)
    split = tl.program_id(1).to(tl.int64)
    offs_n = pid_n * BLOCK_N + tl.arange(0, BLOCK_N)
    mask_n = offs_n < N
    offs_s = offs_n
    if HAS_SEGMENT:
        offs_s = tl.load(segment_ptr + offs_n, mask=mask_n, other=0)
    mask_s = mask_n & (offs_s >= 0) & (offs_s < S)
    top = tl.full((BLOCK_N,), float("-inf"), dtype=tl.float32)
    total = tl.zeros((BLOCK_N,), dtype=tl.float32)
    sums = tl.zeros((BLOCK_N,), dtype=tl.float32)
    for first in range(split * split_length, tl.minimum((split + 1) * split_length, V), BLOCK_V):
        offs_v = first + tl.arange(0, BLOCK_V).to(tl.int64)
        mask_v = offs_v < V
        logits = common.logits_tile(
            x_ptr,
            x_stride_n,
            x_stride_k,
            weight_ptr,
            weight_stride_v,
            weight_stride_h,
            bias_ptr,
            keep_ptr,
            offs_n,
            mask_n,
            offs_v,
            mask_v,
            H,
            scale,
            BLOCK_N,
            BLOCK_V,
            BLOCK_K,
            HAS_BIAS,
            HAS_KEEP,
            FUSED,
            PRECISION,
        )
        top, total, weights, rescale = common.softmax_step(logits, top, total)
        if PROJECTED:
            projected = tl.load(
                grad_ptr + (offs_s * grad_stride_s)[:, None] + (offs_v * grad_stride_d)[None, :],
                mask=mask_s[:, None] & mask_v[None, :],
                other=0.0,
            ).to(tl.float32)
        else:
            projected = common.matmul_tile(
                grad_ptr,
                offs_s * grad_stride_s,
                grad_stride_d,
                table_ptr,
                offs_v * table_stride_v,
                table_stride_d,
                mask_s,
                mask_v,
                D,
                BLOCK_N,
                BLOCK_V,
                BLOCK_K,
                PRECISION,
            )
        sums = sums * rescale + tl.sum(weights * projected, 1)
    row = split * N + offs_n
    tl.store(sums_ptr + row, tl.where(mask_s, sums, float("nan")), mask=mask_n)
    tl.store(top_ptr + row, top, mask=mask_n)
    tl.store(total_ptr + row, total, mask=mask_n)


def launch_fused(hidden, weight, table, grad, segment, bias, keep, temperature) -> Tensor:
    """`expected_dot` on Triton; arguments in the order of the op's schema."""
    return _launch(hidden, weight, table, grad, segment, bias, keep, temperature)


def launch_from_logits(logits, table, grad, segment, keep, temperature) -> Tensor:
    """`expected_dot_from_logits` on Triton; arguments in the order of the op's schema."""
    return _launch(logits, None, table, grad, segment, None, keep, temperature)


def _launch(x: Tensor, weight: Tensor | None, table: Tensor, grad: Tensor, segment, bias, keep, temperature) -> Tensor:
    rows, (vocabulary, width), sequences = x.shape[0], table.shape, grad.shape[0]
    if rows == 0:
        return x.new_empty((0,), dtype=torch.float32)
    grad = grad.to(table.dtype)
    projected = segment is not None and 2 * sequences <= rows and 4 * sequences * vocabulary <= MOST_PROJECTED_BYTES
    if projected:
        grad = (grad.float() @ table.float().T) if grad.dtype == torch.float32 else (grad @ table.T).float()
    configs = FROM_LOGITS if weight is None else FUSED
    config = configs[torch.float32 if torch.float32 in (x.dtype, table.dtype) else x.dtype]
    blocks = config.blocks
    splits, length = common.splits_of(rows, blocks["BLOCK_N"], vocabulary, blocks["BLOCK_V"])
    sums = x.new_empty((splits, rows), dtype=torch.float32)
    top, total = torch.empty_like(sums), torch.empty_like(sums)
    head = weight if weight is not None else x
    with common.on_device(x):
        expected_dot_kernel[(triton.cdiv(rows, blocks["BLOCK_N"]), splits)](
            x,
            *x.stride(),
            head,
            *head.stride(),
            bias.contiguous() if bias is not None else None,
            common.as_bytes(keep),
            table,
            *table.stride(),
            grad,
            *grad.stride(),
            segment.contiguous() if segment is not None else None,
            sums,
            top,
            total,
            rows,
            vocabulary,
            x.shape[1] if weight is not None else 0,
            width,
            sequences,
            length,
            1.0 / temperature,
            HAS_BIAS=bias is not None,
            HAS_KEEP=keep is not None,
            HAS_SEGMENT=segment is not None,
            PROJECTED=projected,
            FUSED=weight is not None,
            PRECISION=common.precision(),
            **config.options,
            **blocks,
        )
    factor = torch.exp(top - top.amax(0))
    return (factor * sums).sum(0) / (factor * total).sum(0)


def variants() -> list[common.Variant]:
    """Everything that is shipped, for ahead-of-time compilation."""
    found = []
    for dtype, pointer in common.POINTER.items():
        for fused in (True, False):
            config = (FUSED if fused else FROM_LOGITS)[dtype]
            for projected in (True, False):
                types = {name: pointer for name in ("x_ptr", "weight_ptr", "bias_ptr", "table_ptr")}
                types |= {name: "*fp32" for name in ("sums_ptr", "top_ptr", "total_ptr")}
                types |= {"grad_ptr": "*fp32" if projected else pointer, "segment_ptr": "*i64"}
                types |= {"keep_ptr": "*u8", "scale": "fp32"}
                constants: dict[str, Any] = {
                    "HAS_BIAS": fused,
                    "HAS_KEEP": True,
                    "HAS_SEGMENT": True,
                    "PROJECTED": projected,
                }
                constants |= {"FUSED": fused, "PRECISION": "ieee"}
                form = "per sequence" if projected else "per row"
                name = f"expected_dot{'' if fused else '_from_logits'} {form} {pointer[1:]}"
                found.append(common.variant(name, expected_dot_kernel, types, constants, config))
    return found
