"""Triton: gibbs_sample as an argmax over tiles of logits with Philox noise."""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from .. import _triton as common

# Not timed on a GPU: chosen from `python -m bench resources`, so that nothing spills with Triton 3.9.0. Philox needs a dozen
# registers for every element of a tile, so that 32 rows and 64 tokens fill a thread's 255. Few rows leave room for a deeper
# tile of the weight, which is what they wait for.
_HALF = common.Shipped(
    "gibbs_sample",
    many=common.Config({"BLOCK_N": 32, "BLOCK_V": 64, "BLOCK_H": 32}, 4, 3, exact=True),
    few=common.Config({"BLOCK_N": 16, "BLOCK_V": 64, "BLOCK_H": 64}, 4, 3, exact=True),
)
FUSED = {
    torch.float32: common.Shipped(
        "gibbs_sample", many=common.Config({"BLOCK_N": 16, "BLOCK_V": 64, "BLOCK_H": 32}, 8, 2, exact=True)
    ),
    torch.bfloat16: _HALF,
    torch.float16: _HALF,
}
FROM_LOGITS = dict.fromkeys(
    FUSED,
    common.Shipped(
        "gibbs_sample_from_logits",
        many=common.Config({"BLOCK_N": 16, "BLOCK_V": 32, "BLOCK_H": 16}, 4, 1, exact=True),
    ),
)


@triton.jit
def gibbs_sample_kernel(
    x_ptr, x_stride_n, x_stride_k, weight_ptr, weight_stride_v, weight_stride_h, bias_ptr, keep_ptr,
    seed_ptr, counter_ptr, best_ptr, token_ptr, score_ptr, top_ptr, total_ptr,
    N, V, H, split_length, scale,
    BLOCK_N: tl.constexpr, BLOCK_V: tl.constexpr, BLOCK_H: tl.constexpr,
    HAS_BIAS: tl.constexpr, HAS_KEEP: tl.constexpr, FUSED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Per split and row, (splits, N): the best perturbed score, its token and plain score, and the softmax's state."""
    offs_n, mask_n, split, top, total = common.start_rows(N, BLOCK_N)
    seed = tl.load(seed_ptr + offs_n, mask=mask_n, other=0)[:, None]
    counter = tl.load(counter_ptr + offs_n, mask=mask_n, other=0)[:, None]
    best = tl.full((BLOCK_N,), float("-inf"), dtype=tl.float32)
    best_score = tl.zeros((BLOCK_N,), dtype=tl.float32)
    best_token = tl.zeros((BLOCK_N,), dtype=tl.int64)
    for first in range(split * split_length, tl.minimum((split + 1) * split_length, V), BLOCK_V):
        logits, offs_v, _ = common.logits_tile(
            x_ptr, x_stride_n, x_stride_k, weight_ptr, weight_stride_v, weight_stride_h, bias_ptr, keep_ptr,
            offs_n, mask_n, first, V, H, scale, BLOCK_N, BLOCK_V, BLOCK_H, HAS_BIAS, HAS_KEEP, FUSED, PRECISION,
        )  # fmt: skip
        block = ((first // 4) + tl.arange(0, BLOCK_V // 4)).to(tl.uint32)[None, :]
        word_0, word_1, word_2, word_3 = common.philox(seed, counter, block)
        # (N, V / 4) four times -> (N, V): token i takes word i % 4 of block i // 4
        words = tl.join(tl.join(word_0, word_2), tl.join(word_1, word_3))
        perturbed = logits + common.gumbel(tl.reshape(words, (BLOCK_N, BLOCK_V)))
        tile_best = tl.max(perturbed, 1)
        tile_token = tl.min(tl.where(perturbed == tile_best[:, None], offs_v[None, :], V), 1)
        tile_score = tl.sum(tl.where(offs_v[None, :] == tile_token[:, None], logits, 0.0), 1)
        wins = tile_best > best
        best = tl.where(wins, tile_best, best)
        best_token = tl.where(wins, tile_token, best_token)
        best_score = tl.where(wins, tile_score, best_score)
        top, total, _, _ = common.softmax_step(logits, top, total)
    row = split * N + offs_n
    tl.store(best_ptr + row, best, mask=mask_n)
    tl.store(token_ptr + row, best_token, mask=mask_n)
    tl.store(score_ptr + row, best_score, mask=mask_n)
    tl.store(top_ptr + row, top, mask=mask_n)
    tl.store(total_ptr + row, total, mask=mask_n)


def launch_fused(hidden, weight, bias, keep, temperature, seed, counter) -> tuple[Tensor, Tensor]:
    """`gibbs_sample` on Triton; arguments in the order of the op's schema."""
    return _launch(common.Head(hidden, weight, bias, keep), temperature, seed, counter)


def launch_from_logits(logits, keep, temperature, seed, counter) -> tuple[Tensor, Tensor]:
    """`gibbs_sample_from_logits` on Triton; arguments in the order of the op's schema."""
    return _launch(common.Head(logits, None, None, keep), temperature, seed, counter)


def _launch(head: common.Head, temperature: float, seed: Tensor, counter: Tensor) -> tuple[Tensor, Tensor]:
    x, rows = head.x, head.rows
    if rows == 0:
        return x.new_empty((0,), dtype=torch.int64), x.new_empty((0,), dtype=torch.float32)
    config = (FROM_LOGITS if head.weight is None else FUSED)[x.dtype].choose(rows, x.dtype, x.device)
    splits, length = head.splits(config.blocks)
    best = x.new_empty((splits, rows), dtype=torch.float32)
    score, top, total = torch.empty_like(best), torch.empty_like(best), torch.empty_like(best)
    token = torch.empty_like(best, dtype=torch.int64)
    with common.on_device(x):
        gibbs_sample_kernel[triton.cdiv(rows, config.blocks["BLOCK_N"]), splits](
            *head.arguments, seed.contiguous(), counter.contiguous(), best, token, score, top, total,
            rows, head.vocabulary, head.depth, length, 1.0 / temperature,
            **head.constants, **config.options, **config.blocks,
        )  # fmt: skip
    # On a tie the earlier split, and so the lower token, wins.
    order = torch.arange(splits, device=x.device)[:, None]
    winner = torch.where(best == best.amax(0), order, splits).amin(0, keepdim=True).clamp(max=splits - 1)
    highest = top.amax(0)
    total = (torch.exp(top - highest) * total).sum(0)
    good = (total > 0) & (total < math.inf)
    logprob = score.gather(0, winner)[0] - (highest + torch.log(total))
    return torch.where(good, token.gather(0, winner)[0], -1), torch.where(good, logprob, math.nan)


def variants(target: str) -> list[common.Variant]:
    """Everything that is shipped for an architecture, for ahead-of-time compilation."""
    types = dict.fromkeys(("seed_ptr", "counter_ptr", "token_ptr"), "*i64")
    types |= dict.fromkeys(("best_ptr", "score_ptr"), "*fp32")
    found = []
    for dtype, pointer in common.POINTER.items():
        for fused in (True, False):
            shipped = (FUSED if fused else FROM_LOGITS)[dtype]
            constants = common.head_constants(fused, bias=fused, keep=True, precision="ieee")
            for bucket in common.buckets(shipped):
                name = f"gibbs_sample{'' if fused else '_from_logits'} {pointer[1:]} {bucket}"
                config = shipped.of(bucket, dtype, (target,))
                found.append(common.variant(name, gibbs_sample_kernel, pointer, types, constants, config))
    return found
