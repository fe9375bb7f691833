"""The decoder's estimate in the middle of a text, with the lookahead that it would have carried there."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from scone.decode import Scone
from scone.hf import open_texts
from scone.output import Step, Timer
from scone.sampling import propose
from scone.text import Writer

__all__ = ["next_token_after"]


def next_token_after(
    engine: Scone, prompt: Sequence[int], written: Sequence[int], *, max_new_tokens: int, seed: int
) -> Step:
    """`engine.next_token` as it would be in `generate` after `written`: every earlier step is judged again, and the
    lookahead of the token that was written is kept from each to the next.

    `max_new_tokens` counts from here, as in `next_token`.
    """
    lm, config, timer = engine.causal_lm, engine.config, Timer()
    ids = torch.tensor([list(prompt)])
    texts, writer = open_texts(lm, ids, torch.ones_like(ids), seed), Writer(lm)
    state = lm.prefill([prompt])
    length = len(written) + max_new_tokens
    for i in range(len(written) + 1):
        candidates = propose(state.logits, config)
        remaining = length - i - 1
        decision = engine.decide(texts, candidates, writer, remaining=remaining, timer=timer, state=state)
        if i == len(written):
            break
        found = (candidates.tokens[0] == written[i]).nonzero()
        taken = int(found[0]) if len(found) else -1  # -1: no candidate, the old lookahead moves on
        engine.controller.carry(texts[0], decision.judged, 0, taken, config, remaining=remaining)
        writer.append(texts[0], written[i])
        state = lm.step(state, torch.tensor([written[i]]))
    return decision.step(0, None, timer.take())
