"""Triton: likely_rows in three steps: the likeliest tokens of every range of the vocabulary, then of all, then the mean rows."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from ... import _head
from .. import _triton as common

# Not timed on a GPU: chosen from `python -m bench resources`, so that nothing spills with Triton 3.9.0. 64 columns of
# halves and no more warps than a tile has rows of 16 bytes make the loads as wide as they can be. A lookahead asks for a few
# rows at a time, which wait for the weight: three tiles of it are under way. 32 rows share what is read of it:
# with 64, Ampere spills. Hopper and Blackwell take 64 rows (configs/), whose product is then one of their tensor cores.
_HALF = common.Shipped(
    "likely_rows",
    many=common.Config({"BLOCK_N": 32, "BLOCK_V": 64, "BLOCK_H": 64}, 4, 3),
    few=common.Config({"BLOCK_N": 16, "BLOCK_V": 64, "BLOCK_H": 64}, 4, 3),
)
FUSED = {
    torch.float32: common.Shipped(
        "likely_rows", many=common.Config({"BLOCK_N": 16, "BLOCK_V": 64, "BLOCK_H": 32}, 8, 2)
    ),
    torch.bfloat16: _HALF,
    torch.float16: _HALF,
}
FROM_LOGITS = dict.fromkeys(
    FUSED,
    common.Shipped("likely_rows_from_logits", many=common.Config({"BLOCK_N": 16, "BLOCK_V": 64, "BLOCK_H": 16}, 4, 1)),
)
MERGE = common.Config({}, 4, 1, exact=True)
MEAN = common.Config({"BLOCK_D": 256}, 4, 1)
NO_TOKEN = tl.constexpr(2**31 - 1)


@triton.jit
def likely_in_range_kernel(
    x_ptr, x_stride_n, x_stride_k, weight_ptr, weight_stride_v, weight_stride_h, bias_ptr, keep_ptr,
    score_ptr, token_ptr, top_ptr, total_ptr,
    N, V, H, split_length, scale, among,
    BLOCK_N: tl.constexpr, BLOCK_V: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_K: tl.constexpr,
    HAS_BIAS: tl.constexpr, HAS_KEEP: tl.constexpr, FUSED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The likeliest tokens of every split, (N, splits, among) in no order, and the softmax's state, (splits, N)."""
    offs_n, mask_n, split, top, total = common.start_rows(N, BLOCK_N)
    place = tl.arange(0, BLOCK_K)
    blank = tl.zeros((BLOCK_N, BLOCK_K), dtype=tl.int32)
    # Places behind `among` are taken from the start, by scores that nothing displaces.
    scores = tl.where(blank + place[None, :] < among, float("-inf"), float("inf"))
    tokens = NO_TOKEN - BLOCK_K + blank + place[None, :]  # of an empty place: larger than any, and each its own
    for first in range(split * split_length, tl.minimum((split + 1) * split_length, V), BLOCK_V):
        logits, offs_v, _ = common.logits_tile(
            x_ptr, x_stride_n, x_stride_k, weight_ptr, weight_stride_v, weight_stride_h, bias_ptr, keep_ptr,
            offs_n, mask_n, first, V, H, scale, BLOCK_N, BLOCK_V, BLOCK_H, HAS_BIAS, HAS_KEEP, FUSED, PRECISION,
        )  # fmt: skip
        top, total, _, _ = common.softmax_step(logits, top, total)
        logits = tl.where(mask_n[:, None], logits, float("-inf"))
        column = offs_v.to(tl.int32)[None, :]
        best, lowest = tl.max(logits, 1), tl.min(scores, 1)
        while tl.sum((best > lowest).to(tl.int32), 0) > 0:  # the tile's best takes the place of the worst so far
            wins = best > lowest
            token = tl.min(tl.where(logits == best[:, None], column, NO_TOKEN), 1)
            worst = tl.max(tl.where(scores == lowest[:, None], tokens, -1), 1)
            here = (tokens == worst[:, None]) & wins[:, None]
            scores = tl.where(here, best[:, None], scores)
            tokens = tl.where(here, token[:, None], tokens)
            logits = tl.where(column == token[:, None], float("-inf"), logits)
            best, lowest = tl.max(logits, 1), tl.min(scores, 1)
    at = (offs_n * tl.num_programs(1) + split) * among
    mask = mask_n[:, None] & (place < among)[None, :]
    tl.store(score_ptr + at[:, None] + place[None, :], scores, mask=mask)
    tl.store(token_ptr + at[:, None] + place[None, :], tokens, mask=mask)
    tl.store(top_ptr + split * N + offs_n, top, mask=mask_n)
    tl.store(total_ptr + split * N + offs_n, total, mask=mask_n)


@triton.jit
def likely_of_all_kernel(
    score_ptr, token_ptr, seed_ptr, counter_ptr, likely_ptr, log_p_ptr, set_ptr, drawn_ptr,
    candidates, among, log_min_p,
    BLOCK_C: tl.constexpr, BLOCK_K: tl.constexpr, HAS_SEED: tl.constexpr,
):  # fmt: skip
    """Of a row's candidates the likeliest in order, their log_p (N, among), the sum of exp(score - best) and a draw."""
    row = tl.program_id(0).to(tl.int64)
    offs_c = tl.arange(0, BLOCK_C)
    mask_c = offs_c < candidates
    scores = tl.load(score_ptr + row * candidates + offs_c, mask=mask_c, other=float("-inf"))
    tokens = tl.load(token_ptr + row * candidates + offs_c, mask=mask_c, other=NO_TOKEN)
    top = tl.max(scores, 0)
    place = tl.arange(0, BLOCK_K)
    found = tl.full((BLOCK_K,), float("-inf"), dtype=tl.float32)
    likely = tl.full((BLOCK_K,), -1, dtype=tl.int32)
    for i in range(among):
        best = tl.max(scores, 0)
        token = tl.min(tl.where(scores == best, tokens, NO_TOKEN), 0)
        found = tl.where(place == i, best, found)
        likely = tl.where(place == i, token, likely)
        scores = tl.where(tokens == token, float("-inf"), scores)
    inside = (found > float("-inf")) & (found >= top + log_min_p)
    likely = tl.where(inside, likely, -1)
    total = tl.sum(tl.where(inside, tl.exp(found - top), 0.0), 0)
    log_p = tl.where(inside, found - top - tl.log(total), float("-inf"))
    at = row * among + place
    tl.store(likely_ptr + at, likely.to(tl.int64), mask=place < among)
    tl.store(log_p_ptr + at, log_p, mask=place < among)
    tl.store(set_ptr + row, total)
    if HAS_SEED:
        seed = tl.load(seed_ptr + row) + tl.zeros((1, 1), dtype=tl.int64)
        counter = tl.load(counter_ptr + row) + tl.zeros((1, 1), dtype=tl.int64)
        block = tl.where(inside, likely // 4, 0).to(tl.uint32)[None, :]
        word_0, word_1, word_2, word_3 = common.philox(seed, counter, block)
        word = (likely & 3)[None, :]
        words = tl.where(word == 0, word_0, tl.where(word == 1, word_1, tl.where(word == 2, word_2, word_3)))
        noise = tl.sum(common.gumbel(words), 0)  # of one row: itself
        perturbed = tl.where(inside, found + noise, float("-inf"))
        winner = tl.min(tl.where(inside & (perturbed == tl.max(perturbed, 0)), likely, NO_TOKEN), 0)
        tl.store(drawn_ptr + row, winner.to(tl.int64))


@triton.jit
def mean_rows_kernel(
    likely_ptr, log_p_ptr, table_ptr, table_stride_v, table_stride_d, mean_ptr, D, among, BLOCK_D: tl.constexpr
):  # fmt: skip
    """Mean rows of a table (V, D) over a row's likely tokens, (N, D); places without a token weigh nothing."""
    row = tl.program_id(0).to(tl.int64)
    offs_d = tl.program_id(1).to(tl.int64) * BLOCK_D + tl.arange(0, BLOCK_D)
    mask_d = offs_d < D
    mean = tl.zeros((BLOCK_D,), dtype=tl.float32)
    for i in range(among):
        token = tl.load(likely_ptr + row * among + i)
        p = tl.exp(tl.load(log_p_ptr + row * among + i))
        values = tl.load(table_ptr + token * table_stride_v + offs_d * table_stride_d, mask=mask_d, other=0.0)
        mean += p * values.to(tl.float32)
    tl.store(mean_ptr + row * D + offs_d, mean, mask=mask_d)


def launch_fused(
    hidden, weight, tables, bias, keep, temperature, vocabulary, among, min_p, seed, counter
) -> list[Tensor]:
    """`likely_rows` on Triton; arguments in the order of the op's schema."""
    weight = _head.rows_of(weight, vocabulary).to(hidden.dtype)
    return _launch(common.Head(hidden, weight, bias, keep), tables, temperature, among, min_p, seed, counter)


def launch_from_logits(logits, tables, keep, temperature, among, min_p, seed, counter) -> list[Tensor]:
    """`likely_rows_from_logits` on Triton; arguments in the order of the op's schema."""
    return _launch(common.Head(logits, None, None, keep), tables, temperature, among, min_p, seed, counter)


def _launch(
    head: common.Head,
    tables: Sequence[Tensor],
    temperature: float,
    among: int,
    min_p: float,
    seed: Tensor | None,
    counter: Tensor | None,
) -> list[Tensor]:
    x, rows = head.x, head.rows
    likely = x.new_empty((rows, among), dtype=torch.int64)
    log_p = torch.empty_like(likely, dtype=torch.float32)
    inside = x.new_empty((rows,), dtype=torch.float32)
    drawn = None if seed is None else x.new_empty((rows,), dtype=torch.int64)
    means = [x.new_empty((rows, table.shape[1]), dtype=torch.float32) for table in tables]
    if rows > 0:
        config = (FROM_LOGITS if head.weight is None else FUSED)[x.dtype].choose(rows, x.dtype, x.device)
        splits, length = head.splits(config.blocks)
        block_k = max(16, triton.next_power_of_2(among))
        score = x.new_empty((rows, splits, among), dtype=torch.float32)
        token = torch.empty_like(score, dtype=torch.int32)
        top = x.new_empty((splits, rows), dtype=torch.float32)
        total = torch.empty_like(top)
        with common.on_device(x):
            likely_in_range_kernel[triton.cdiv(rows, config.blocks["BLOCK_N"]), splits](
                *head.arguments, score, token, top, total,
                rows, head.vocabulary, head.depth, length, 1.0 / temperature, among,
                **head.constants, **config.options, **config.blocks, BLOCK_K=block_k,
            )  # fmt: skip
            likely_of_all_kernel[(rows,)](
                score, token, None if seed is None else seed.contiguous(),
                None if counter is None else counter.contiguous(), likely, log_p, inside, drawn,
                splits * among, among, math.log(min_p) if min_p > 0 else -math.inf,
                BLOCK_C=max(16, triton.next_power_of_2(splits * among)), BLOCK_K=block_k, HAS_SEED=seed is not None,
                **MERGE.options,
            )  # fmt: skip
            whole = (torch.exp(top - top.amax(0)) * total).sum(0)
            bad = ~((whole > 0) & (whole < math.inf))
            likely.masked_fill_(bad[:, None], -1)
            log_p.masked_fill_(bad[:, None], math.nan)
            inside = (torch.log(inside) - torch.log(whole)).masked_fill(bad, math.nan)
            drawn = None if drawn is None else drawn.masked_fill(bad, -1)
            # The place of no token is taken by the first one: a table's row that is not asked for may be NaN.
            picked = torch.where(likely < 0, likely[:, :1], likely).clamp(min=0)
            for mean, table in zip(means, tables):
                grid = (rows, triton.cdiv(table.shape[1], MEAN.blocks["BLOCK_D"]))
                if table.shape[1] > 0:
                    mean_rows_kernel[grid](
                        picked, log_p, table, *table.stride(), mean, table.shape[1], among,
                        **MEAN.options, **MEAN.blocks,
                    )  # fmt: skip
    return [likely, log_p, inside, *([] if drawn is None else [drawn]), *means]


def variants(target: str) -> list[common.Variant]:
    """Everything that is shipped for an architecture, for ahead-of-time compilation."""
    types = dict.fromkeys(("seed_ptr", "counter_ptr", "likely_ptr", "drawn_ptr"), "*i64") | {"token_ptr": "*i32"}
    types |= dict.fromkeys(("score_ptr", "set_ptr", "log_p_ptr", "mean_ptr"), "*fp32") | {"log_min_p": "fp32"}
    found = []
    for dtype, pointer in common.POINTER.items():
        for fused in (True, False):
            shipped = (FUSED if fused else FROM_LOGITS)[dtype]
            for most, bucket in itertools.product((16, 64), common.buckets(shipped)):
                config = shipped.of(bucket, dtype, (target,))
                constants = common.head_constants(fused, bias=fused, keep=True, precision="ieee") | {"BLOCK_K": most}
                name = f"likely_rows{'' if fused else '_from_logits'} of {most} {pointer[1:]} {bucket}"
                found.append(common.variant(name, likely_in_range_kernel, pointer, types, constants, config))
        name = f"likely_rows mean {pointer[1:]}"
        found.append(common.variant(name, mean_rows_kernel, pointer, types, {}, MEAN))
    for most in (16, 64):
        constants = {"BLOCK_C": 64 * most, "BLOCK_K": most, "HAS_SEED": True}
        name = f"likely_rows of all {most} fp32"
        found.append(common.variant(name, likely_of_all_kernel, "*fp32", types, constants, MERGE))
    return found
