"""Sampling many continuations of one prefix, batched on the key-value cache."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

__all__ = ["PAD", "continue_batch", "encode", "end_tokens", "truncated"]

PAD = -1  # stands after the end of a continuation; never a token


def encode(tokenizer: Any, text: str) -> torch.Tensor:
    """(L,) token ids of `text`, with the special tokens that the tokenizer adds by itself."""
    return torch.tensor(tokenizer(text).input_ids, dtype=torch.int64)


def end_tokens(lm: Any, tokenizer: Any) -> frozenset[int]:
    """Every token that ends a text: the tokenizer's and the generation config's."""
    configured = getattr(lm.generation_config, "eos_token_id", None)
    several: Iterable[int | None] = configured if isinstance(configured, (list, tuple)) else [configured]
    return frozenset(int(token) for token in [tokenizer.eos_token_id, *several] if token is not None)


def truncated(logits: torch.Tensor, top_k: int, temperature: float = 1.0) -> tuple[torch.Tensor, torch.Tensor]:
    """The k likeliest tokens of (N, V) logits and their renormalised log-probabilities, both (N, k)."""
    top = torch.topk(logits.float() / temperature, top_k, dim=-1)
    return top.indices, torch.log_softmax(top.values, dim=-1)


@torch.inference_mode()
def continue_batch(
    lm: Any, prefix: torch.Tensor, first: torch.Tensor | None, n: int, length: int, *, ends: frozenset[int], top_k: int,
    temperature: float = 1.0, seed: int,
) -> torch.Tensor:  # fmt: skip
    """`n` continuations of `prefix` (L,) by `length` tokens, drawn from the top-k distribution: (n, length) int64.

    With `first` the first token of each is given, (n,), and the others are drawn. After an end token stands PAD.
    The prefix runs through the LM once; its cache is repeated for the n rows.
    """
    device = next(lm.parameters()).device
    tokens = torch.full((n, length), PAD, dtype=torch.int64)
    if n == 0 or length == 0:
        return tokens
    generator = torch.Generator().manual_seed(seed)
    end_ids = torch.tensor(sorted(ends), dtype=torch.int64)

    out = lm(input_ids=prefix[None].to(device), use_cache=True, logits_to_keep=1)
    cache = out.past_key_values
    cache.batch_repeat_interleave(n)
    logits = out.logits[:, -1].cpu().expand(n, -1)  # (n, V)

    alive = torch.ones(n, dtype=torch.bool)
    for position in range(length):
        if position == 0 and first is not None:
            drawn = first.to(torch.int64)
        else:
            candidates, log_p = truncated(logits, top_k, temperature)
            choice = torch.multinomial(log_p.exp(), 1, generator=generator)  # (n, 1)
            drawn = candidates.gather(1, choice)[:, 0]
        tokens[:, position] = torch.where(alive, drawn, PAD)
        alive = alive & ~torch.isin(drawn, end_ids)
        if position == length - 1 or not alive.any():
            break
        out = lm(input_ids=drawn[:, None].to(device), past_key_values=cache, use_cache=True)
        logits = out.logits[:, -1].cpu()
    return tokens
