"""The decoder's estimate in the middle of a text, with what its lookahead would have carried there."""

from __future__ import annotations

from collections.abc import Sequence

from scone.decode import Scone
from scone.loop import Decision, commit, prefill
from scone.output import Step
from scone.seeds import text_seed
from scone.text import Text

__all__ = ["carries", "next_token_after"]


def carries(engine: Scone, prompt: Sequence[int], *, max_new_tokens: int, seed: int) -> bool | None:
    """Whether the lookahead leaves something from one step to the next; None where this step judges nothing."""
    texts = [_text(engine, prompt, seed)]
    judged = engine.loop().decide(texts, prefill(engine.parts.lm, texts), max_new_tokens - 1).judged
    return judged.carried is not None if bool(judged.seen[0]) and judged.place else None


def next_token_after(
    engine: Scone, prompt: Sequence[int], written: Sequence[int], *, max_new_tokens: int, seed: int
) -> Step:
    """`engine.next_token` as it would be in `generate` after `written`: every earlier step is judged again, and what
    the lookahead carries is kept from each to the next.

    `max_new_tokens` counts from here, as in `next_token`.
    """
    lm, loop, text = engine.parts.lm, engine.loop(), _text(engine, prompt, seed)
    state = prefill(lm, [text])
    remaining = len(written) + max_new_tokens - 1
    for token in written:
        decision: Decision = loop.decide([text], state, remaining).on_host()
        loop.take(text, decision, 0, token, remaining)
        state = commit(lm, state, [0], [token], decision)
        remaining -= 1
    return loop.decide([text], state, remaining).on_host().step(0, None, loop.timer.take(), loop.writer)


def _text(engine: Scone, prompt: Sequence[int], seed: int) -> Text:
    """As `generate` opens the first copy of a prompt."""
    ids = list(prompt)
    return Text(prompt_ids=ids, seed=text_seed(seed, 0, ids), **engine.judging(engine.parts.lm.decode(ids)))
