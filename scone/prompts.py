"""Prompts as users give them, checked and turned into texts to be continued."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from scone.errors import InputError
from scone.lm import CausalLM, check_unicode
from scone.seeds import text_seed
from scone.text import Text
from scone.verifier import Expression, as_verifier

__all__ = [
    "Prompt", "as_list", "check_counts", "check_prompts", "check_sampling", "check_seed", "check_stops", "check_verifiers",
    "open_prompts",
]  # fmt: skip

Prompt = str | Sequence[dict[str, str]]
"""A text, or a conversation: a list of {"role", "content"}."""


def open_prompts(
    lm: CausalLM,
    prompts: Prompt | Sequence[Prompt],
    max_new_tokens: int,
    *,
    copies: int,
    seed: int,
    judging: Callable[[Prompt, Expression | None], Mapping[str, Any]],
    verifiers: Sequence[Expression] | None = None,
) -> list[Text]:
    """A Text for each prompt and copy; its seed hangs on the prompt itself, not on its place in the batch.

    judging: (prompt, its own verifier or None) -> the fields of a Text that say how it is judged

    >>> from scone.decode import Scone
    >>> engine = Scone.from_pretrained()
    >>> texts = open_prompts(engine.parts.lm, ["One", "Two"], 5, copies=2, seed=0, judging=engine.judging)
    >>> [text.context for text in texts]
    ['One', 'One', 'Two', 'Two']
    """
    check_seed(seed)
    listed = as_list(prompts)
    opened = []
    for prompt, verifier in zip(listed, [None] * len(listed) if verifiers is None else verifiers):
        ids = lm.encode(prompt) if isinstance(prompt, str) else lm.encode_chat(prompt)  # type: ignore[arg-type]
        _check_length(lm, prompt, ids, max_new_tokens)
        how = judging(prompt, verifier)
        opened += [Text(prompt_ids=ids, seed=text_seed(seed, copy, ids), **how) for copy in range(copies)]
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


def check_timeout(timeout: Any) -> None:
    """Raise InputError unless it is None or a positive number of seconds.

    >>> check_timeout(0)
    Traceback (most recent call last):
    scone.errors.InputError: timeout must be a number of seconds above 0 or None, got 0
    """
    number = isinstance(timeout, int | float) and not isinstance(timeout, bool)
    if timeout is not None and not (number and timeout > 0):
        raise InputError(f"timeout must be a number of seconds above 0 or None, got {timeout!r}")


def check_seed(seed: Any) -> None:
    """Raise InputError unless the seed is an integer, of any sign and size.

    >>> check_seed(0.5)
    Traceback (most recent call last):
    scone.errors.InputError: seed must be an integer, got 0.5
    """
    if not isinstance(seed, int) or isinstance(seed, bool):
        raise InputError(f"seed must be an integer, got {seed!r}")


def check_sampling(logits_processor: Any, do_sample: Any = True) -> None:
    """Raise InputError unless the processors are a list of callables and `do_sample` is a bool.

    >>> check_sampling([3])
    Traceback (most recent call last):
    scone.errors.InputError: logits_processor must be a list of callables, got [3]
    """
    if not isinstance(logits_processor, list | tuple) or not all(map(callable, logits_processor)):
        raise InputError(f"logits_processor must be a list of callables, got {logits_processor!r}")
    if not isinstance(do_sample, bool):
        raise InputError(f"do_sample must be True or False, got {do_sample!r}")


def check_stops(stop: Any, stop_token_ids: Any, *, vocabulary: int) -> list[str]:
    """The stop strings as a list; raises InputError unless all are strings, and the ids those of tokens.

    >>> check_stops(".", [0], vocabulary=10)
    ['.']
    >>> check_stops(".", [10], vocabulary=10)
    Traceback (most recent call last):
    scone.errors.InputError: stop_token_ids must be a list of integers in [0, 10), got [10]
    """
    strings = [stop] if isinstance(stop, str) else stop
    if not isinstance(strings, Iterable) or not all(isinstance(s, str) and s for s in strings):
        raise InputError(f"stop must be non-empty strings, got {stop!r}")
    ids = stop_token_ids if isinstance(stop_token_ids, Iterable) else [None]
    if not all(isinstance(i, int) and not isinstance(i, bool) and 0 <= i < vocabulary for i in ids):
        raise InputError(f"stop_token_ids must be a list of integers in [0, {vocabulary}), got {stop_token_ids!r}")
    return list(strings)


def check_verifiers(verifiers: Any, prompts: Sequence[Prompt]) -> list[Expression]:
    """One verifier for each prompt; raises InputError where there are more, or fewer.

    >>> check_verifiers([str.islower], ["One", "Two"])
    Traceback (most recent call last):
    scone.errors.InputError: verifiers must be one for each of the 2 prompts, got 1
    """
    if not isinstance(verifiers, list | tuple):
        raise InputError(f"verifiers must be a list with one for each prompt, got {verifiers!r}")
    if len(verifiers) != len(prompts):
        raise InputError(f"verifiers must be one for each of the {len(prompts)} prompts, got {len(verifiers)}")
    return [as_verifier(verifier) for verifier in verifiers]


def as_list(prompts: Any) -> list[Prompt]:
    """The prompts of a call as a list, checked.

    >>> as_list("One")
    ['One']
    """
    if isinstance(prompts, str):
        prompts = [prompts]
    if not isinstance(prompts, Iterable) or isinstance(prompts, dict):
        raise InputError(f"prompts must be strings or lists of messages, got {prompts!r}")
    listed = list(prompts)
    if not listed:
        raise InputError("prompts must hold at least one prompt, got an empty list")
    listed = [listed] if _is_chat(listed) else listed
    check_prompts(listed)
    return listed


def check_prompts(prompts: Iterable[Any]) -> None:
    """Raise InputError for the first that is neither a text nor a conversation.

    >>> check_prompts(["Once", [{"role": "user", "content": "Hello"}]])
    >>> check_prompts([7])
    Traceback (most recent call last):
    scone.errors.InputError: prompts must be strings or lists of messages, got 7
    """
    for prompt in prompts:
        if not isinstance(prompt, str) and not _is_chat(prompt):
            raise InputError(f"prompts must be strings or lists of messages, got {prompt!r}")
        if isinstance(prompt, str):
            check_unicode("prompts", prompt)
            continue
        for message in prompt:
            if not {"role", "content"} <= set(message):
                raise InputError(f"prompts must have 'role' and 'content' in each message, got {message!r}")
            check_unicode("prompts", *(part for part in message.values() if isinstance(part, str)))


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
