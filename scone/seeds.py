"""Seeds: every draw is a pure function of (seed, counter), so that nothing depends on order or batch."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import torch
from torch import Tensor

__all__ = [
    "UPDATES",
    "block_start",
    "chain_seed",
    "derive",
    "mix",
    "rollout_seed",
    "text_seed",
    "token_seed",
    "update_counter",
]

UPDATES = 4096
"""Gibbs updates in a step whose noise is kept apart."""

_MASK64 = (1 << 64) - 1


def derive(*parts: object) -> int:
    """A 63-bit seed from any printable parts; the same parts give the same seed on every machine.

    >>> derive(0, "prompt", 1) == derive(0, "prompt", 1) != derive(0, "prompt", 2)
    True
    """
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def mix(seed: Tensor, counter: Tensor | int) -> Tensor:
    """Well-mixed non-negative int64 from (seed, counter), element by element (the finaliser of splitmix64).

    >>> mix(torch.tensor([7, 7]), 3).unique().numel()
    1
    """
    x = seed + (torch.as_tensor(counter, device=seed.device) + 1) * _signed(0x9E3779B97F4A7C15)
    x = (x ^ _shift(x, 30)) * _signed(0xBF58476D1CE4E5B9)
    x = (x ^ _shift(x, 27)) * _signed(0x94D049BB133111EB)
    return (x ^ _shift(x, 31)) & ((1 << 63) - 1)


def text_seed(seed: int, copy: int, prompt_ids: Sequence[int]) -> int:
    """Seed of one text: of the prompt itself and of which of its copies this is, not of its place in a batch.

    >>> text_seed(0, 0, [5, 6]) != text_seed(0, 1, [5, 6])
    True
    """
    return derive(seed, copy, list(prompt_ids))


def token_seed(text: int) -> int:
    """Seed by which a text's own tokens are drawn; the counter is the step.

    >>> token_seed(7) != chain_seed(7, 0)
    True
    """
    return derive(text, "token")


def chain_seed(text: int, chain: int) -> int:
    """Seed of one chain of a text's lookaheads.

    >>> chain_seed(7, 0) != chain_seed(7, 1)
    True
    """
    return derive(text, "chain", chain)


def rollout_seed(chain: Tensor, step: int | Sequence[int]) -> Tensor:
    """Seeds of the tokens that the LM draws for a chain's first guess; the counter is the place in the lookahead.

    >>> chains = torch.tensor([5, 6])
    >>> rollout_seed(chains, step=0).equal(rollout_seed(chains, step=1))
    False
    """
    if isinstance(step, int):
        return mix(chain, derive("rollout", step))
    own = {each: derive("rollout", each) for each in step}
    return mix(chain, torch.tensor([own[each] for each in step]))


def update_counter(step: int, update: int, offset: Tensor) -> Tensor:
    """Counter of the draw at a place of the lookahead in a Gibbs update (of `UPDATES` in a step).

    >>> update_counter(step=0, update=1, offset=torch.tensor([0, 1])) - (1 << 16)
    tensor([0, 1])
    """
    return ((step * UPDATES + update) << 16) + offset


def block_start(chain: Tensor, step: int, update: int, places: Tensor) -> Tensor:
    """Where a random block begins: one of `places` starts, by the chain's seed.

    >>> bool(block_start(torch.arange(100), step=0, update=0, places=torch.tensor(3)).unique().equal(torch.arange(3)))
    True
    """
    return mix(chain, step * UPDATES + update) % places


def _shift(x: Tensor, bits: int) -> Tensor:
    """Logical right shift of int64, which torch has only as an arithmetic one."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def _signed(value: int) -> int:
    value &= _MASK64
    return value - (1 << 64) if value >> 63 else value
