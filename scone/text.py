"""One text as it is written: its tokens, what they read as, and where it ends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from scone.lm import CausalLM
from scone.output import Step
from scone.verifier import Expression

__all__ = ["Text", "Writer", "scored"]

_OVERLAP = 8  # prompt tokens decoded with the continuation, so that spaces come out as in the whole text


@dataclass
class Text:
    """The state of one text between steps; everything that depends on the random seed hangs on `seed`.

    >>> Text("One two", prompt_ids=[3, 4], seed=0, continuation=" three").text
    'One two three'
    >>> Text("", prompt_ids=[3, 4], seed=0, continuation="Hm, 2 + 2 </think>Four", after="</think>").text
    'Four'
    """

    context: str  # text before the continuation, as the verifier sees it
    prompt_ids: list[int]
    seed: int
    new_ids: list[int] = field(default_factory=list)
    continuation: str = ""
    carried: Any = None  # what the lookahead keeps from step to step
    q: float | None = None  # of the text with its last token, as far as it was looked at
    rested: int = 0  # tokens since then that a safe text was written without a look
    finish_reason: str | None = None
    trace: list[Step] = field(default_factory=list)
    stop: tuple[str, ...] = ()  # strings of its own that end it
    after: str = ""  # the marker from which on the continuation is judged
    verifier: Expression | None = None  # its own, where texts are not all judged by the same

    @property
    def text(self) -> str:
        """What the verifier judges."""
        return self.judged(self.continuation)

    def judged(self, continuation: str) -> str:
        """What the verifier would judge with this continuation."""
        at = continuation.find(self.after)
        return self.context + (continuation[at + len(self.after) :] if at >= 0 else "")

    @property
    def begun(self) -> bool:
        """Whether the marker has come from which on it is judged."""
        return self.after in self.continuation

    @property
    def steered(self) -> bool:
        """Whether its next token is judged: its marker has come, and a verifier of its own has strength."""
        return self.begun and (self.verifier is None or any(term.strength for term in self.verifier.terms))


def scored(texts: Sequence[Text], verifier: Expression) -> Tensor:
    """φ of finished texts, each by its own verifier where it has one: (n,); 0 where nothing came that is to be judged.

    >>> from scone.verifier import Verifier
    >>> long = Verifier.from_callable(lambda texts: [len(text) / 10 for text in texts])
    >>> waits = Text("", [3], 0, continuation="Hm", after="</think>")
    >>> scored([Text("One", [3], 0), waits, Text("One", [3], 0, verifier=~long)], long)
    tensor([0.3000, 0.0000, 0.7000])
    """
    own = [text.verifier or verifier for text in texts]
    phi = torch.zeros(len(texts))
    for judge in dict.fromkeys(own):
        rows = [i for i, text in enumerate(texts) if own[i] is judge and text.begun]
        if rows:
            phi[rows] = judge.score([texts[i].text for i in rows])
    return phi


class Writer:
    """Turns tokens into text and says where a text ends: at a stop token or at the first stop string.

    >>> from scone.embedded import load_lm
    >>> lm = CausalLM(*load_lm())
    >>> writer, text = Writer(lm, stop=["."]), Text("One two", lm.encode("One two"), seed=0)
    >>> for token in lm.encode(" three. Four"):
    ...     if text.finish_reason is None:
    ...         writer.append(text, token)
    >>> text.text, text.finish_reason
    ('One two three', 'stop')
    """

    def __init__(self, lm: CausalLM, *, stop: Sequence[str] = (), stop_token_ids: Sequence[int] = ()) -> None:
        self.lm = lm
        self.stop = tuple(stop)
        self.stop_ids = frozenset(stop_token_ids) | lm.stop_ids

    def continuation(self, text: Text, token: int | None = None) -> tuple[str, bool]:
        """The continuation if `token` is appended, and whether the text ends there."""
        if token is not None and token in self.stop_ids:
            return text.continuation, True
        lead = text.prompt_ids[-_OVERLAP:]
        known = self.lm.decode(lead)
        written = self.lm.decode([*lead, *text.new_ids, *([] if token is None else [token])])
        written = written[len(known) :] if written.startswith(known) else written
        cuts = [at for at in (written.find(s) for s in (*self.stop, *text.stop)) if at >= 0]
        return (written[: min(cuts)], True) if cuts else (written, False)

    def append(self, text: Text, token: int) -> None:
        """Add a token to a text."""
        text.continuation, ended = self.continuation(text, token)
        text.new_ids.append(token)
        if ended:
            text.finish_reason = "stop"

    def pieces(self, tokens: Sequence[int]) -> tuple[str, ...]:
        """What each token reads as by itself: special tokens by name, and bytes of a split character as they are kept.

        >>> from scone.embedded import load_lm
        >>> lm = CausalLM(*load_lm())
        >>> Writer(lm).pieces([*lm.encode(" tea"), 0])
        (' tea', '<|endoftext|>')
        """
        return tuple(_piece(self.lm.tokenizer, token) for token in tokens)

    def held_back(self, text: Text) -> int:
        """Characters at the end that may turn out to be the start of a stop string."""
        if text.finish_reason is not None:
            return 0
        most = 0
        for s in (*self.stop, *text.stop):
            for n in range(1, min(len(s), len(text.continuation)) + 1):
                if text.continuation.endswith(s[:n]):
                    most = max(most, n)
        return most


def _piece(tokenizer: Any, token: int) -> str:
    kept = tokenizer.convert_ids_to_tokens(token)
    if kept is None:
        return ""  # some heads have more rows than there are tokens
    text = tokenizer.decode([token], clean_up_tokenization_spaces=False)
    if "\N{REPLACEMENT CHARACTER}" in text:
        return str(kept)
    return f" {text}" if kept.startswith("▁") and not text.startswith(" ") else text
