"""Triton: expected_embedding as attention with the head's rows as keys and the table's rows as values."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from scone_kernels.ops import _triton as common

# Block sizes are chosen so that nothing spills on sm_80 to sm_120 and gfx942 (`python -m bench resources`); they have
# not been timed on a GPU.
CONFIGS = {
    torch.float32: common.Config({"BLOCK_N": 32, "BLOCK_V": 32, "BLOCK_H": 32, "BLOCK_D": 128}, 8, 2),
    torch.bfloat16: common.Config({"BLOCK_N": 64, "BLOCK_V": 32, "BLOCK_H": 64, "BLOCK_D": 256}, 8, 2),
    torch.float16: common.Config({"BLOCK_N": 64, "BLOCK_V": 32, "BLOCK_H": 64, "BLOCK_D": 256}, 8, 2),
}


@triton.jit
def expected_embedding_kernel(
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
    sums_ptr,
    top_ptr,
    total_ptr,
    N,
    V,
    H,
    D,
    split_length,
    scale,
    BLOCK_N: tl.constexpr,
    BLOCK_V: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_D: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    HAS_KEEP: tl.constexpr,
    FUSED: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """sums (splits, N, D), top and total (splits, N) of the tokens [split * split_length, ...)."""
    pid_n = tl.program_id(0).to(tl.int64)
    split = tl.program_id(1).to(tl.int64)
    pid_d = tl.program_id(2).to(tl.int64)
    offs_n = pid_n * BLOCK_N + tl.arange(0, BLOCK_N)
    offs_d = pid_d * BLOCK_D + tl.arange(0, BLOCK_D)
    mask_n = offs_n < N
    mask_d = offs_d < D
    top = tl.full((BLOCK_N,), float("-inf"), dtype=tl.float32)
    total = tl.zeros((BLOCK_N,), dtype=tl.float32)
    sums = tl.zeros((BLOCK_N, BLOCK_D), dtype=tl.float32)
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
            BLOCK_H,
            HAS_BIAS,
            HAS_KEEP,
            FUSED,
            PRECISION,
        )
        top, total, weights, rescale = common.softmax_step(logits, top, total)
        table = tl.load(
            table_ptr + (offs_v * table_stride_v)[:, None] + (offs_d * table_stride_d)[None, :],
            mask=mask_v[:, None] & mask_d[None, :],
            other=0.0,
        )
        sums = common.dot(weights.to(table.dtype), table, sums * rescale[:, None], PRECISION)
    row = split * N + offs_n
    tl.store(sums_ptr + (row * D)[:, None] + offs_d[None, :], sums, mask=mask_n[:, None] & mask_d[None, :])
    if pid_d == 0:
        tl.store(top_ptr + row, top, mask=mask_n)
        tl.store(total_ptr + row, total, mask=mask_n)


def launch_fused(hidden, weight, table, bias, keep, temperature) -> Tensor:
    """`expected_embedding` on Triton; arguments in the order of the op's schema."""
    return _launch(hidden, weight, table, bias, keep, temperature)


def launch_from_logits(logits, table, keep, temperature) -> Tensor:
    """`expected_embedding_from_logits` on Triton; arguments in the order of the op's schema."""
    return _launch(logits, None, table, None, keep, temperature)


def _launch(x: Tensor, weight: Tensor | None, table: Tensor, bias, keep, temperature: float) -> Tensor:
    rows, (vocabulary, width) = x.shape[0], table.shape
    if rows == 0 or width == 0:
        return x.new_empty((rows, width), dtype=torch.float32)
    config = CONFIGS[torch.float32 if torch.float32 in (x.dtype, table.dtype) else x.dtype]
    blocks = config.blocks
    splits, length = common.splits_of(rows, blocks["BLOCK_N"], vocabulary, blocks["BLOCK_V"])
    sums = x.new_empty((splits, rows, width), dtype=torch.float32)
    top = x.new_empty((splits, rows), dtype=torch.float32)
    total = torch.empty_like(top)
    head = weight if weight is not None else x
    grid = (triton.cdiv(rows, blocks["BLOCK_N"]), splits, triton.cdiv(width, blocks["BLOCK_D"]))
    with common.on_device(x):
        expected_embedding_kernel[grid](
            x,
            *x.stride(),
            head,
            *head.stride(),
            bias.contiguous() if bias is not None else None,
            common.as_bytes(keep),
            table,
            *table.stride(),
            sums,
            top,
            total,
            rows,
            vocabulary,
            x.shape[1] if weight is not None else 0,
            width,
            length,
            1.0 / temperature,
            HAS_BIAS=bias is not None,
            HAS_KEEP=keep is not None,
            FUSED=weight is not None,
            PRECISION=common.precision(),
            **config.options,
            **blocks,
        )
    factor = torch.exp(top - top.amax(0))  # (splits, N); NaN where a row has no token
    return torch.einsum("sn,snd->nd", factor, sums) / (factor * total).sum(0)[:, None]


def variants() -> list[common.Variant]:
    """Everything that is shipped, for ahead-of-time compilation."""
    found = []
    for dtype, config in CONFIGS.items():
        pointer = common.POINTER[dtype]
        types = {name: pointer for name in ("x_ptr", "weight_ptr", "bias_ptr", "table_ptr")}
        types |= {name: "*fp32" for name in ("sums_ptr", "top_ptr", "total_ptr")} | {"keep_ptr": "*u8", "scale": "fp32"}
        for fused in (True, False):
            constants = {"HAS_BIAS": fused, "HAS_KEEP": True, "FUSED": fused, "PRECISION": "ieee"}
            name = f"expected_embedding{'' if fused else '_from_logits'} {pointer[1:]}"
            found.append(common.variant(name, expected_embedding_kernel, types, constants, config))
    return found
