"""Sampling many continuations of one prefix, batched on the key-value cache."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from scone.lm import CausalLM

__all__ = ["PAD", "continue_batch", "truncated"]

PAD = -1  # stands after the end of a continuation; never a token
ROWS_AT_ONCE = 100  # continuations in one batch of the LM


def truncated(
    logits: torch.Tensor, top_k: int, temperature: float = 1.0, *, top_p: float = 1.0, min_p: float = 0.0
) -> tuple[torch.Tensor, torch.Tensor]:
    """The k likeliest tokens of (N, V) logits and their renormalised log-probabilities, both (N, k).

    `-inf` outside the nucleus of mass `top_p` and below `min_p` times the largest probability.

    >>> truncated(torch.tensor([[0.6, 0.1, 0.3]]).log(), 2, min_p=0.4)[1].exp()
    tensor([[0.6667, 0.3333]])
    """
    values, tokens = torch.topk(logits.float() / temperature, min(top_k, logits.shape[1]), dim=-1)
    log_p = torch.log_softmax(values, dim=-1)
    if top_p == 1 and min_p == 0:
        return tokens, log_p
    p = log_p.exp()
    outside = (p.cumsum(-1) - p >= top_p) | (p < min_p * p[:, :1])  # p.cumsum - p: the mass ahead of a token
    return tokens, log_p.masked_fill(outside, -torch.inf).log_softmax(-1)


@torch.inference_mode()
def continue_batch(
    lm: CausalLM, prefix: Sequence[int], n: int, length: int, *, top_k: int, top_p: float = 1.0, min_p: float = 0.0,
    seed: int, first: int | None = None,
) -> torch.Tensor:  # fmt: skip
    """`n` continuations of `prefix` by `length` tokens, drawn from the truncated distribution: (n, length) int64.

    With `first` all of them start with that token. After an end token stands PAD.
    The prefix runs through the LM once; its cache is repeated for the n rows.
    """
    generator = torch.Generator().manual_seed(seed)
    prefilled = lm.prefill([prefix])
    sizes = [min(ROWS_AT_ONCE, n - begin) for begin in range(0, n, ROWS_AT_ONCE)]
    tokens = torch.full((n, length), PAD, dtype=torch.int64)
    stops = torch.tensor(sorted(lm.stop_ids), dtype=torch.int64)
    for written, size in zip(tokens.split(sizes), sizes):
        state = lm.select(prefilled, torch.zeros(size, dtype=torch.int64))
        alive = torch.ones(size, dtype=torch.bool)
        for position in range(length):
            if position == 0 and first is not None:
                drawn = torch.full((size,), first)
            else:
                candidates, log_p = truncated(state.logits.cpu(), top_k, top_p=top_p, min_p=min_p)
                choice = torch.multinomial(log_p.exp(), 1, generator=generator)  # (size, 1)
                drawn = candidates.gather(1, choice)[:, 0]
            written[:, position] = torch.where(alive, drawn, PAD)
            alive = alive & ~torch.isin(drawn, stops)
            if position == length - 1 or not alive.any():
                break
            state = lm.step(state, drawn)
    return tokens
