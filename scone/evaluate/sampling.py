"""Sampling many continuations of one prefix, batched on the key-value cache."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from scone.lm import CausalLM

__all__ = ["PAD", "continue_batch", "truncated"]

PAD = -1  # stands after the end of a continuation; never a token


def truncated(logits: torch.Tensor, top_k: int, temperature: float = 1.0) -> tuple[torch.Tensor, torch.Tensor]:
    """The k likeliest tokens of (N, V) logits and their renormalised log-probabilities, both (N, k)."""
    top = torch.topk(logits.float() / temperature, top_k, dim=-1)
    return top.indices, torch.log_softmax(top.values, dim=-1)


@torch.inference_mode()
def continue_batch(
    lm: CausalLM, prefix: Sequence[int], n: int, length: int, *, top_k: int, seed: int, first: int | None = None
) -> torch.Tensor:
    """`n` continuations of `prefix` by `length` tokens, drawn from the top-k distribution: (n, length) int64.

    With `first` all of them start with that token. After an end token stands PAD.
    The prefix runs through the LM once; its cache is repeated for the n rows.
    """
    tokens = torch.full((n, length), PAD, dtype=torch.int64)
    generator = torch.Generator().manual_seed(seed)
    stops = torch.tensor(sorted(lm.stop_ids), dtype=torch.int64)
    state = lm.select(lm.prefill([prefix]), torch.zeros(n, dtype=torch.int64))

    alive = torch.ones(n, dtype=torch.bool)
    for position in range(length):
        if position == 0 and first is not None:
            drawn = torch.full((n,), first)
        else:
            candidates, log_p = truncated(state.logits.cpu(), top_k)
            choice = torch.multinomial(log_p.exp(), 1, generator=generator)  # (n, 1)
            drawn = candidates.gather(1, choice)[:, 0]
        tokens[:, position] = torch.where(alive, drawn, PAD)
        alive = alive & ~torch.isin(drawn, stops)
        if position == length - 1 or not alive.any():
            break
        state = lm.step(state, drawn)
    return tokens
