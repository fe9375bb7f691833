"""What the Triton kernels share: a program's rows, a tile of logits, the softmax, the noise, and how a kernel is launched.

Importing this module imports triton; `scone_kernels` does so only when a kernel is launched.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from .. import _backend, _noise
from .._configs import BUCKETS, Config, Shipped

ROUND_A = tl.constexpr(_noise.ROUND_A)
ROUND_B = tl.constexpr(_noise.ROUND_B)
WEYL_A = tl.constexpr(_noise.WEYL_A)
WEYL_B = tl.constexpr(_noise.WEYL_B)
TAG = tl.constexpr(_noise.TAG)
LN2 = tl.constexpr(_noise.LN2)
SQRT_HALF_BITS = tl.constexpr(_noise.SQRT_HALF_BITS)
LOG_0 = tl.constexpr(_noise.LOG[0])
LOG_1 = tl.constexpr(_noise.LOG[1])
LOG_2 = tl.constexpr(_noise.LOG[2])
LOG_3 = tl.constexpr(_noise.LOG[3])
LOG_4 = tl.constexpr(_noise.LOG[4])
LOG_5 = tl.constexpr(_noise.LOG[5])
LOG_6 = tl.constexpr(_noise.LOG[6])
LOG_7 = tl.constexpr(_noise.LOG[7])


@triton.jit
def dot(x, y, acc, PRECISION: tl.constexpr):
    """acc + x @ y. Triton's interpreter multiplies the bit patterns of bfloat16, so it gets float32."""
    if PRECISION == "interpreted":
        return tl.dot(x.to(tl.float32), y.to(tl.float32), acc, input_precision="ieee")
    else:
        return tl.dot(x, y, acc, input_precision=PRECISION)


@triton.jit
def start_rows(N, BLOCK_N: tl.constexpr):
    """This program's rows and its range of the vocabulary, with an empty softmax: offs_n, mask_n, split, top, total."""
    pid_n = tl.program_id(0).to(tl.int64)
    split = tl.program_id(1).to(tl.int64)
    offs_n = pid_n * BLOCK_N + tl.arange(0, BLOCK_N)
    top = tl.full((BLOCK_N,), float("-inf"), dtype=tl.float32)
    return offs_n, offs_n < N, split, top, tl.zeros((BLOCK_N,), dtype=tl.float32)


@triton.jit
def matmul_tile(
    x_ptr, x_rows, x_stride_k, y_ptr, y_rows, y_stride_k, mask_x, mask_y, K,
    BLOCK_X: tl.constexpr, BLOCK_Y: tl.constexpr, BLOCK_K: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """x @ y.T for a tile, (BLOCK_X, BLOCK_Y) float32; `x_rows` and `y_rows` are the offsets of the rows."""
    acc = tl.zeros((BLOCK_X, BLOCK_Y), dtype=tl.float32)
    for k in range(0, K, BLOCK_K):
        offs_k = k + tl.arange(0, BLOCK_K).to(tl.int64)
        mask_k = offs_k < K
        x = tl.load(
            x_ptr + x_rows[:, None] + (offs_k * x_stride_k)[None, :], mask=mask_x[:, None] & mask_k[None, :], other=0.0
        )
        y = tl.load(
            y_ptr + y_rows[None, :] + (offs_k * y_stride_k)[:, None], mask=mask_y[None, :] & mask_k[:, None], other=0.0
        )
        acc = dot(x, y, acc, PRECISION)
    return acc


@triton.jit
def logits_tile(
    x_ptr, x_stride_n, x_stride_k, weight_ptr, weight_stride_v, weight_stride_h, bias_ptr, keep_ptr,
    offs_n, mask_n, first, V, H, scale,
    BLOCK_N: tl.constexpr, BLOCK_V: tl.constexpr, BLOCK_H: tl.constexpr,
    HAS_BIAS: tl.constexpr, HAS_KEEP: tl.constexpr, FUSED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Masked, tempered logits (BLOCK_N, BLOCK_V) float32 of the tokens from `first` on, with offs_v and mask_v.

    From a head if FUSED, else read from x (N, V).
    """
    offs_v = first + tl.arange(0, BLOCK_V).to(tl.int64)
    mask_v = offs_v < V
    if FUSED:
        logits = matmul_tile(
            x_ptr, offs_n * x_stride_n, x_stride_k, weight_ptr, offs_v * weight_stride_v, weight_stride_h,
            mask_n, mask_v, H, BLOCK_N, BLOCK_V, BLOCK_H, PRECISION,
        )  # fmt: skip
    else:
        logits = load_rows(x_ptr, offs_n * x_stride_n, mask_n, offs_v * x_stride_k, mask_v).to(tl.float32)
    if HAS_BIAS:
        logits += tl.load(bias_ptr + offs_v, mask=mask_v, other=0.0).to(tl.float32)[None, :]
    counted = mask_v
    if HAS_KEEP:
        counted = counted & (tl.load(keep_ptr + offs_v, mask=mask_v, other=0) != 0)
    return tl.where(counted[None, :], logits * scale, float("-inf")), offs_v, mask_v


@triton.jit
def load_rows(ptr, rows, mask_rows, columns, mask_columns):
    """A tile whose element (i, j) lies at `rows[i] + columns[j]`; zero outside the masks."""
    return tl.load(ptr + rows[:, None] + columns[None, :], mask=mask_rows[:, None] & mask_columns[None, :], other=0.0)


@triton.jit
def softmax_step(logits, top, total):
    """One step of the online softmax over axis 1: new maximum, new sum, exp(logits - maximum), and the rescaling."""
    new_top = tl.maximum(top, tl.max(logits, 1))
    base = tl.where(new_top == float("-inf"), 0.0, new_top)
    weights = tl.exp(logits - base[:, None])
    rescale = tl.exp(top - base)
    return new_top, total * rescale + tl.sum(weights, 1), weights, rescale


@triton.jit
def philox(seed, counter, block):
    """Four words (uint32) for int64 `seed` (N, 1), `counter` (N, 1) and uint32 `block` (1, B); see _noise.philox."""
    key_a = (seed & 0xFFFFFFFF).to(tl.uint32)
    key_b = ((seed >> 32) & 0xFFFFFFFF).to(tl.uint32)
    zero = (key_a & 0) | (block & 0)  # (N, B)
    a = zero | block
    b = zero | (counter & 0xFFFFFFFF).to(tl.uint32)
    c = zero | ((counter >> 32) & 0xFFFFFFFF).to(tl.uint32)
    d = zero + TAG
    for _ in tl.static_range(10):
        high_a = tl.umulhi(a, zero + ROUND_A)
        low_a = a * (zero + ROUND_A)
        high_b = tl.umulhi(c, zero + ROUND_B)
        low_b = c * (zero + ROUND_B)
        a = high_b ^ b ^ key_a
        b = low_b
        c = high_a ^ d ^ key_b
        d = low_a
        key_a = key_a + WEYL_A
        key_b = key_b + WEYL_B
    return a, b, c, d


@triton.jit
def log_positive(x):
    """_noise.log, operation by operation."""
    bits = x.to(tl.int32, bitcast=True)
    exponent = (bits - SQRT_HALF_BITS) >> 23
    t = (bits - (exponent << 23)).to(tl.float32, bitcast=True) - 1.0
    series = t * LOG_7 + LOG_6
    series = series * t + LOG_5
    series = series * t + LOG_4
    series = series * t + LOG_3
    series = series * t + LOG_2
    series = series * t + LOG_1
    series = series * t + LOG_0
    return exponent.to(tl.float32) * LN2 + ((t * t) * series + t)


@triton.jit
def gumbel(bits):
    """_noise.gumbel_of_bits, operation by operation; launch with enable_fp_fusion=False."""
    v = ((bits >> 1).to(tl.int32).to(tl.float32) + 0.5) * 4.656612873077393e-10  # 2^-31
    v = tl.minimum(v, 0.999999940395355224609375)  # 1 - 2^-24
    series = v * 0.125 + 0.14285714285714285
    series = series * v + 0.16666666666666666
    series = series * v + 0.2
    series = series * v + 0.25
    series = series * v + 0.3333333333333333
    series = series * v + 0.5
    series = series * v + 1.0
    exponential = tl.where(v < 0.125, series * v, -log_positive(1.0 - v))
    return -log_positive(exponential)


@dataclass(frozen=True)
class Head:
    """Where logits come from, as the kernels' first arguments have it: a weight, or ready logits `x` if there is none."""

    x: Tensor
    weight: Tensor | None
    bias: Tensor | None
    keep: Tensor | None

    @property
    def rows(self) -> int:
        """N."""
        return self.x.shape[0]

    @property
    def vocabulary(self) -> int:
        """V."""
        return self.x.shape[1] if self.weight is None else self.weight.shape[0]

    @property
    def depth(self) -> int:
        """H; a kernel that reads ready logits does not look at it."""
        return 0 if self.weight is None else self.x.shape[1]

    @property
    def arguments(self) -> tuple[Any, ...]:
        """x_ptr to keep_ptr."""
        weight = self.x if self.weight is None else self.weight
        bias = None if self.bias is None else self.bias.contiguous()
        # Bytes are loaded alike by every version of Triton, bools are not.
        keep = None if self.keep is None else self.keep.contiguous().view(torch.uint8)
        return self.x, *self.x.stride(), weight, *weight.stride(), bias, keep

    @property
    def constants(self) -> dict[str, Any]:
        """HAS_BIAS to PRECISION."""
        return head_constants(self.weight is not None, self.bias is not None, self.keep is not None, precision())

    def splits(self, blocks: Mapping[str, int]) -> tuple[int, int]:
        """Into how many ranges the vocabulary is cut, and how long each is: enough programs for a large GPU."""
        tiles = triton.cdiv(self.vocabulary, blocks["BLOCK_V"])
        wanted = min(tiles, 64, max(1, 512 // triton.cdiv(self.rows, blocks["BLOCK_N"])))
        length = triton.cdiv(tiles, wanted) * blocks["BLOCK_V"]
        return triton.cdiv(self.vocabulary, length), length


def head_constants(fused: bool, bias: bool, keep: bool, precision: str) -> dict[str, Any]:
    """The compile-time arguments that every kernel with a head has."""
    return {"HAS_BIAS": bias, "HAS_KEEP": keep, "FUSED": fused, "PRECISION": precision}


def precision() -> str:
    """How float32 is multiplied: TF32 where the user allows it for torch's own matmuls, else exactly."""
    if _backend.interpreted():
        return "interpreted"
    return "tf32" if torch.backends.cuda.matmul.allow_tf32 else "ieee"


def on_device(tensor: Tensor):
    """The device guard for a launch; nothing for interpreted kernels."""
    return torch.cuda.device(tensor.device) if tensor.is_cuda else contextlib.nullcontext()


@dataclass(frozen=True)
class Variant:
    """A kernel as it is launched for one dtype: what ahead-of-time compilation compiles."""

    name: str
    kernel: Any
    signature: Mapping[str, str]
    constants: Mapping[str, Any]
    options: Mapping[str, Any]


POINTER = {torch.float32: "*fp32", torch.bfloat16: "*bf16", torch.float16: "*fp16"}
# Of the arguments that every kernel has; inputs have the pointer of their dtype.
TYPES = {"keep_ptr": "*u8", "scale": "fp32"} | dict.fromkeys(("sums_ptr", "top_ptr", "total_ptr"), "*fp32")


def buckets(shipped: Shipped) -> tuple[str, ...]:
    """Of a shipped choice the buckets that are launched differently."""
    return BUCKETS if shipped.few is not None else BUCKETS[-1:]


def variant(
    name: str, kernel: Any, inputs: str, types: Mapping[str, str], constants: Mapping[str, Any], config: Config
) -> Variant:
    """Describe `kernel` as a launch with row-major tensors specialises it: inner strides are the constant 1.

    Pointers that neither `TYPES` nor `types` name are `inputs`; what is no pointer either is a size or a stride.
    """
    inner = [argument for argument in kernel.arg_names if argument.endswith(("_stride_k", "_stride_h", "_stride_d"))]
    constants = {**constants, **config.blocks, **dict.fromkeys(inner, 1)}
    types = {argument: inputs for argument in kernel.arg_names if argument.endswith("_ptr")} | TYPES | {**types}
    signature = {
        argument: "constexpr" if argument in constants else types.get(argument, "i32") for argument in kernel.arg_names
    }
    return Variant(name, kernel, signature, constants, config.options)
