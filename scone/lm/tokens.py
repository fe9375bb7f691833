"""What is asked of tokenizers: their special tokens, their limits, and whether two of them speak the same language."""

from __future__ import annotations

import re
from typing import Any

import torch
from torch import Tensor

from scone.errors import InputError, ModelError

__all__ = ["check_known", "check_unicode", "drawable", "position_limit", "same_vocabulary", "special_frame"]

_PLACEHOLDER = re.compile(r"^(\[unused\d+\]|<unused_?\d+>|<extra_id_\d+>|madeupword\d+)$")
_PROBE = "The quick brown fox, naïve café — 漢字 🙂 don't  x_1=f(y);\n"


def special_frame(tokenizer: Any) -> tuple[list[int], list[int]]:
    """Special tokens that the tokenizer puts before and after a single text.

    >>> from scone.embedded import load_masked_lm
    >>> special_frame(load_masked_lm()[1])
    ([101], [102])
    """
    plain = list(tokenizer("a", add_special_tokens=False)["input_ids"])
    framed = list(tokenizer("a")["input_ids"])
    for start in range(len(framed) - len(plain) + 1):
        if framed[start : start + len(plain)] == plain:
            return framed[:start], framed[start + len(plain) :]
    return [], []


def check_unicode(name: str, *texts: str) -> None:
    """Raise InputError for a lone surrogate: half a character, which no tokenizer reads.

    >>> check_unicode("prompts", "fine", "half \\ud83d")
    Traceback (most recent call last):
    scone.errors.InputError: prompts must be valid Unicode, got a lone surrogate at character 5: 'half \\ud83d'
    """
    for text in texts:
        try:
            text.encode()
        except UnicodeEncodeError as error:
            near = text[max(0, error.start - 20) : error.start + 20]
            raise InputError(
                f"{name} must be valid Unicode, got a lone surrogate at character {error.start}: {near!a}"
            ) from None


def check_known(name: str, most: int, rows: int) -> None:
    """Raise ModelError for a token beyond the model's embeddings: tokenizers may know more than their model was given.

    >>> check_known("lm", 12, rows=10)
    Traceback (most recent call last):
    scone.errors.ModelError: lm must have an embedding for each token of its tokenizer, got token 12 where it has 10
    """
    if most >= rows:
        raise ModelError(
            f"{name} must have an embedding for each token of its tokenizer, got token {most} where it has {rows}"
        )


def position_limit(model: Any, tokenizer: Any) -> int:
    """Tokens that a model takes at most, special ones included.

    >>> from scone.embedded import load_masked_lm
    >>> position_limit(*load_masked_lm())
    512
    """
    config: Any = getattr(model, "config", None)
    limit = getattr(config, "max_position_embeddings", None) or 1 << 30
    if getattr(config, "model_type", "") in {"roberta", "xlm-roberta", "camembert"}:
        limit -= config.pad_token_id + 1  # their positions are counted from pad_token_id + 1
    return min(limit, getattr(tokenizer, "model_max_length", None) or 1 << 30)


def drawable(tokenizer: Any, size: int) -> Tensor:
    """(size,) bool: False for special tokens, placeholders such as [unused7], and rows that no token uses."""
    keep = torch.zeros(size, dtype=torch.bool)
    special = set(tokenizer.all_special_ids)
    special |= {i for i, added in getattr(tokenizer, "added_tokens_decoder", {}).items() if added.special}
    ids = [i for token, i in tokenizer.get_vocab().items() if i not in special and not _PLACEHOLDER.match(token)]
    keep[torch.tensor([i for i in ids if i < size], dtype=torch.long)] = True
    return keep


def same_vocabulary(one: Any, other: Any) -> bool:
    """Whether two tokenizers give the same ids for the same text.

    >>> from scone.embedded import load_classifier, load_masked_lm
    >>> same_vocabulary(load_masked_lm()[1], load_classifier("sentiment")[1])
    True
    """
    if one is other:
        return True
    if one.get_vocab() != other.get_vocab() or special_frame(one) != special_frame(other):
        return False
    return one(_PROBE)["input_ids"] == other(_PROBE)["input_ids"]
