"""Streaming with a promise: pieces go out only once so much behind them has been judged too.

A server sends each token when it is drawn. Whoever reads its stream through `released` shows a text with some delay, and
where the server ended it because nothing that may follow is good enough, drops what was held.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

from scone.errors import InputError

__all__ = ["FILTERED", "released"]

FILTERED = "content_filter"

_SENTENCE = re.compile(r"[.!?…]+[\"'”’)]*(?=\s)|\n")


def released(
    chunks: Iterable[Any], *, tokens: int | None = None, sentence: bool = False, end_token: int | None = None
) -> Iterator[tuple[str, str | None]]:
    """(text, finish reason or None) of a stream of completions or chat completions of the `openai` package.

    tokens: pieces are held until as many others have come   sentence: until their sentence is whole
    end_token: the request's `scone_end_token`: a text that it ended has the reason "content_filter", and what was held is dropped

    >>> from types import SimpleNamespace as Made
    >>> said = [("Fine. ", None, None), ("But", None, None), ("", "stop", 2)]
    >>> chunks = [Made(choices=[Made(text=text, finish_reason=why, stop_reason=by)]) for text, why, by in said]
    >>> list(released(chunks, sentence=True, end_token=2))
    [('Fine.', None), ('', 'content_filter')]
    """
    if (tokens is None) == (not sentence):
        raise InputError(f"one of tokens and sentence must be given, got tokens={tokens!r}, sentence={sentence!r}")
    held: list[str] = []
    for chunk in chunks:
        if not chunk.choices:  # the usage, at the end
            continue
        choice = chunk.choices[0]
        piece = choice.text if hasattr(choice, "text") else choice.delta.content
        if piece:
            held.append(piece)
        if choice.finish_reason is not None:
            filtered = end_token is not None and _stop_reason(choice) == end_token
            yield ("", FILTERED) if filtered else ("".join(held), choice.finish_reason)
            return
        ready, held = _ready(held, tokens)
        if ready:
            yield ready, None
    yield "".join(held), None


def _ready(held: list[str], tokens: int | None) -> tuple[str, list[str]]:
    """What may go out, and what is still held."""
    if tokens is not None:
        count = max(0, len(held) - tokens)
        return "".join(held[:count]), held[count:]
    text = "".join(held)
    ends = [match.end() for match in _SENTENCE.finditer(text)]
    return (text[: ends[-1]], [text[ends[-1] :]]) if ends else ("", held)


def _stop_reason(choice: Any) -> Any:
    """A field that vLLM adds to what the `openai` package knows."""
    extra = getattr(choice, "model_extra", None) or {}
    return extra["stop_reason"] if "stop_reason" in extra else getattr(choice, "stop_reason", None)
