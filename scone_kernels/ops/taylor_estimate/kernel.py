"""Triton: taylor_estimate, one program per sequence over the rows that belong to it."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from .. import _triton as common

CONFIG = common.Config({"BLOCK_D": 256}, 4, 1)


@triton.jit
def taylor_estimate_kernel(
    score_ptr, grad_ptr, grad_stride_n, grad_stride_d, expected_ptr, expected_stride_n, expected_stride_d,
    anchor_ptr, anchor_stride_n, anchor_stride_d, order_ptr, start_ptr, out_ptr,
    D,
    BLOCK_D: tl.constexpr, MEAN: tl.constexpr,
):  # fmt: skip
    """Rows order[start[s]:start[s + 1]] belong to sequence s."""
    s = tl.program_id(0).to(tl.int64)
    begin = tl.load(start_ptr + s)
    end = tl.load(start_ptr + s + 1)
    change = tl.zeros((BLOCK_D,), dtype=tl.float32)
    for first in range(0, D, BLOCK_D):
        offs_d = first + tl.arange(0, BLOCK_D).to(tl.int64)
        mask_d = offs_d < D
        grad_sum = tl.zeros((BLOCK_D,), dtype=tl.float32)
        step_sum = tl.zeros((BLOCK_D,), dtype=tl.float32)
        for i in range(begin, end):
            n = tl.load(order_ptr + i)
            grad = tl.load(grad_ptr + n * grad_stride_n + offs_d * grad_stride_d, mask=mask_d, other=0.0)
            there = tl.load(expected_ptr + n * expected_stride_n + offs_d * expected_stride_d, mask=mask_d, other=0.0)
            here = tl.load(anchor_ptr + n * anchor_stride_n + offs_d * anchor_stride_d, mask=mask_d, other=0.0)
            step = there.to(tl.float32) - here.to(tl.float32)
            if MEAN:
                grad_sum += grad.to(tl.float32)
                step_sum += step
            else:
                change += grad.to(tl.float32) * step
        if MEAN:
            change += grad_sum * step_sum
    total = tl.sum(change, 0)
    if MEAN:
        total = total / tl.maximum(end - begin, 1).to(tl.float32)
    tl.store(out_ptr + s, tl.load(score_ptr + s).to(tl.float32) + total)


def launch(score: Tensor, grad: Tensor, expected: Tensor, anchor: Tensor, segment: Tensor, form: str) -> Tensor:
    """`taylor_estimate` on Triton; arguments in the order of the op's schema."""
    sequences = score.shape[0]
    out = score.new_empty((sequences,), dtype=torch.float32)
    if sequences == 0:
        return out
    ordered, order = torch.sort(segment, stable=True)
    start = torch.searchsorted(ordered, torch.arange(sequences + 1, device=segment.device))
    with common.on_device(score):
        taylor_estimate_kernel[(sequences,)](
            score.contiguous(), grad, *grad.stride(), expected, *expected.stride(), anchor, *anchor.stride(),
            order, start, out, grad.shape[1], MEAN=form == "mean", **CONFIG.options, **CONFIG.blocks,
        )  # fmt: skip
    return out


def variants(target: str) -> list[common.Variant]:
    """Everything that is shipped for an architecture, for ahead-of-time compilation."""
    types = {"order_ptr": "*i64", "start_ptr": "*i64", "out_ptr": "*fp32"}
    found = []
    for pointer in common.POINTER.values():
        for mean in (False, True):
            name = f"taylor_estimate {'mean' if mean else 'position'} {pointer[1:]}"
            found.append(common.variant(name, taylor_estimate_kernel, pointer, types, {"MEAN": mean}, CONFIG))
    return found
