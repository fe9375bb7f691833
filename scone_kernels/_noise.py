"""The noise of the sampler in plain torch: Philox 4x32-10 and a Gumbel variable that has the same bits on every backend.

docs/kernels.md states the layout. The C++ and the Triton kernels repeat these steps one by one, each a single float32
operation without fused multiply-add, so that the three agree bit for bit.
"""

from __future__ import annotations

import torch
from torch import Tensor

WORD = 0xFFFFFFFF
ROUND_A, ROUND_B = 0xD2511F53, 0xCD9E8D57  # Philox's multipliers
WEYL_A, WEYL_B = 0x9E3779B9, 0xBB67AE85  # what its key grows by in each round
TAG = 0x53434F4E  # fourth counter word: keeps this noise apart from any other use of the same seed

# log(1 + t) = t + t^2 * (LOG[0] + LOG[1] t + ...) on [sqrt(1/2) - 1, sqrt(2) - 1], least squares at Chebyshev nodes;
# relative error 1e-7.
LOG = (
    -0.49999988079071045,
    0.3333394229412079,
    -0.250020831823349,
    0.19962626695632935,
    -0.16564123332500458,
    0.14906279742717743,
    -0.14344751834869385,
    0.08810625225305557,
)
LN2 = 0.6931471824645996
SQRT_HALF_BITS = 0x3F3504F3


def philox(seed: Tensor, counter: Tensor, block: Tensor, tag: int = TAG) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Four random words per element. `seed`, `counter`: int64; `block`: int64 in [0, 2^32); they broadcast."""
    a, b, c, d = torch.broadcast_tensors(block, counter & WORD, (counter >> 32) & WORD, torch.full_like(block, tag))
    key_a, key_b = seed & WORD, (seed >> 32) & WORD
    for _ in range(10):
        product_a, product_b = a * ROUND_A, c * ROUND_B  # wrap modulo 2^64, which keeps both halves right
        a, b, c, d = (
            ((product_b >> 32) & WORD) ^ b ^ key_a,
            product_b & WORD,
            ((product_a >> 32) & WORD) ^ d ^ key_b,
            product_a & WORD,
        )
        key_a, key_b = (key_a + WEYL_A) & WORD, (key_b + WEYL_B) & WORD
    return a, b, c, d


def log(x: Tensor) -> Tensor:
    """Natural logarithm of positive normal float32 numbers."""
    bits = x.view(torch.int32)
    exponent = (bits - SQRT_HALF_BITS) >> 23
    t = (bits - (exponent << 23)).view(torch.float32) - 1.0
    series = torch.full_like(t, LOG[-1])
    for coefficient in reversed(LOG[:-1]):
        series = series * t + coefficient
    return exponent.to(torch.float32) * LN2 + ((t * t) * series + t)


def gumbel_of_bits(bits: Tensor) -> Tensor:
    """-log(-log(1 - v)) for v = (bits / 2 + 1/2) / 2^31, with full relative precision where it matters: at small v."""
    v = ((bits >> 1).to(torch.float32) + 0.5) * 2.0**-31
    v = v.clamp(max=1.0 - 2.0**-24)
    series = torch.full_like(v, 1.0 / 8.0)
    for power in range(7, 0, -1):
        series = series * v + 1.0 / power
    exponential = torch.where(v < 0.125, series * v, -log(1.0 - v))
    return -log(exponential)


def gumbel(seed: Tensor, counter: Tensor, tokens: int) -> Tensor:
    """Noise (N, tokens) float32 of the rows' `seed` (N,) and `counter` (N,): token i takes word i % 4 of block i // 4."""
    block = torch.arange((tokens + 3) // 4, device=seed.device)
    words = torch.stack(philox(seed[:, None], counter[:, None], block), dim=-1)  # (N, V / 4, 4)
    return gumbel_of_bits(words.flatten(1)[:, :tokens])


def gumbel_at(seed: Tensor, counter: Tensor, tokens: Tensor) -> Tensor:
    """Noise float32 of single tokens, int64; the three broadcast."""
    words = torch.stack(philox(seed, counter, tokens // 4), dim=-1)
    return gumbel_of_bits(words.gather(-1, (tokens % 4)[..., None])[..., 0])
