"""Prompts as users give them, checked and turned into texts to be continued."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from scone.errors import InputError
from scone.lm import CausalLM
from scone.seeds import text_seed
from scone.text import Text

__all__ = ["Prompt", "check_counts", "open_prompts"]

Prompt = str | Sequence[dict[str, str]]
"""A text, or a conversation: a list of {"role", "content"}."""


def open_prompts(
    lm: CausalLM, prompts: Prompt | Sequence[Prompt], max_new_tokens: int, *, copies: int, seed: int
) -> list[Text]:
    """A Text for each prompt and copy; its seed hangs on the prompt itself, not on its place in the batch.

    >>> from scone.embedded import load_lm
    >>> [text.context for text in open_prompts(CausalLM(*load_lm()), ["One", "Two"], 5, copies=2, seed=0)]
    ['One', 'One', 'Two', 'Two']
    """
    if not isinstance(seed, int) or isinstance(seed, bool):
        raise InputError(f"seed must be an integer, got {seed!r}")
    opened = []
    for prompt in _as_list(prompts):
        chat = not isinstance(prompt, str)
        ids = lm.encode_chat(prompt) if chat else lm.encode(prompt)  # type: ignore[arg-type]
        _check_length(lm, prompt, ids, max_new_tokens)
        for copy in range(copies):
            opened.append(Text("" if chat else str(prompt), ids, text_seed(seed, copy, ids)))
    return opened


def check_counts(**counts: int) -> None:
    """Raise InputError for the first argument that is no integer of at least 1.

    >>> check_counts(max_new_tokens=0)
    Traceback (most recent call last):
    scone.errors.InputError: max_new_tokens must be an integer of at least 1, got 0
    """
    for name, value in counts.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise InputError(f"{name} must be an integer of at least 1, got {value!r}")


def _as_list(prompts: Any) -> list[Prompt]:
    if isinstance(prompts, str):
        return [prompts]
    listed = list(prompts)
    if not listed:
        raise InputError("prompts must hold at least one prompt, got an empty list")
    if _is_chat(listed):
        return [listed]
    for prompt in listed:
        if not isinstance(prompt, str) and not _is_chat(prompt):
            raise InputError(f"prompts must be strings or lists of messages, got {type(prompt).__name__}")
    return listed


def _is_chat(prompt: Any) -> bool:
    return isinstance(prompt, list | tuple) and len(prompt) > 0 and all(isinstance(m, dict) for m in prompt)


def _check_length(lm: CausalLM, prompt: Any, ids: list[int], max_new_tokens: int) -> None:
    if not ids:
        raise InputError(f"prompts must give at least one token each, got {prompt!r}")
    limit = lm.max_length
    if limit is not None and len(ids) + max_new_tokens > limit:
        raise InputError(
            f"prompts must leave room for max_new_tokens={max_new_tokens} in the LM's context of {limit} tokens, "
            f"got a prompt of {len(ids)}"
        )
