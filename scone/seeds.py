"""Seeds: every draw is a pure function of (seed, counter), so that nothing depends on order or batch."""

from __future__ import annotations

import hashlib

import torch

__all__ = ["derive", "mix"]

_MASK64 = (1 << 64) - 1


def derive(*parts: object) -> int:
    """A 63-bit seed from any printable parts; the same parts give the same seed on every machine.

    >>> derive(0, "prompt", 1) == derive(0, "prompt", 1) != derive(0, "prompt", 2)
    True
    """
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def mix(seed: torch.Tensor, counter: torch.Tensor | int) -> torch.Tensor:
    """Well-mixed non-negative int64 from (seed, counter), element by element (the finaliser of splitmix64).

    >>> mix(torch.tensor([7, 7]), 3).unique().numel()
    1
    """
    x = seed + (torch.as_tensor(counter, device=seed.device) + 1) * _signed(0x9E3779B97F4A7C15)
    x = (x ^ _shift(x, 30)) * _signed(0xBF58476D1CE4E5B9)
    x = (x ^ _shift(x, 27)) * _signed(0x94D049BB133111EB)
    return (x ^ _shift(x, 31)) & ((1 << 63) - 1)


def _shift(x: torch.Tensor, bits: int) -> torch.Tensor:
    """Logical right shift of int64, which torch has only as an arithmetic one."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def _signed(value: int) -> int:
    value &= _MASK64
    return value - (1 << 64) if value >> 63 else value
