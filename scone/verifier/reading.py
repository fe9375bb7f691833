"""Verifiers that are shown a part of the text: `verifier.reading(view)`, where view(text) is what they are to judge."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from scone.errors import InputError
from scone.verifier.algebra import Leaf

__all__ = ["Reading", "ReadingOfEmbeddings", "reading"]

_PROBE = "\ue000"  # for private use: in no text


def reading(leaf: Leaf, view: Callable[[str], str]) -> Reading:
    """A leaf that judges view(text); it reads embeddings if the given one does.

    >>> from scone.verifier import Verifier
    >>> long = Verifier.from_callable(lambda texts: [len(text) / 10 for text in texts])
    >>> reading(long, lambda text: text.partition(":")[2]).score("title: 12")
    tensor([0.3000])
    """
    if not callable(view):
        raise InputError(f"view must be a function from a text to the part that is judged, got {view!r}")
    return (ReadingOfEmbeddings if leaf.reads_embeddings else Reading)(leaf, view)


class Reading(Leaf):
    """A verifier of a part of each text.

    >>> from scone.verifier import Verifier
    >>> loud = Verifier.from_callable(lambda texts: [float(text.isupper()) for text in texts])
    >>> loud.reading(lambda text: text[:3]).score("HEY you")
    tensor([1.])
    """

    def __init__(self, inner: Leaf, view: Callable[[str], str]) -> None:
        super().__init__(inner.strength)
        self.inner: Any = inner
        self.view = view
        self.name = inner.name

    @property
    def reads_conversations(self) -> bool:  # type: ignore[override]
        """Whether the verifier that reads has to be told the prompt."""
        return self.inner.reads_conversations

    def told(self, prompt: Any) -> Leaf:
        leaf = reading(self.inner.told(prompt), self.view)
        leaf.strength, leaf.key = self.strength, (self.key, str(prompt))
        return leaf

    def evaluate(self, texts: Sequence[str]) -> Tensor:
        return self.inner.evaluate([self.shown(text) for text in texts])

    def measure(self, texts: Sequence[str]) -> Tensor:
        return self.inner.measure([self.shown(text) for text in texts])

    def shown(self, text: str) -> str:
        """The part of a text that is judged."""
        part = self.view(text)
        if not isinstance(part, str):
            raise InputError(f"view must return a string, got {part!r}")
        return part


class ReadingOfEmbeddings(Reading):
    """The same where what follows a text may be known by its mean embeddings only.

    >>> from scone.verifier import Verifier
    >>> positive = Verifier.from_pretrained("embedded:sentiment", target="positive")
    >>> title = positive.reading(lambda text: text.partition(".")[0])
    >>> means = torch.zeros(2, 3, 384)
    >>> open_still, settled = title.value_of_expected(["A gem", "A gem. A bore"], means)
    >>> bool(settled == positive.score("A gem")), bool(open_still == settled)
    (True, False)
    """

    reads_embeddings = True

    def __getattr__(self, name: str) -> Any:
        """Table, tokenizer, device: those of the verifier that reads."""
        if name == "inner":
            raise AttributeError(name)  # while it is copied
        return getattr(self.inner, name)

    @torch.no_grad()
    def value_of_expected(self, texts: Sequence[str], means: Tensor) -> Tensor:
        """φ of texts that go on with tokens of which only the mean embedding is known: (R,); means: (R, n, D).

        What follows counts where it would be shown: where a mark put behind the text comes last in the view.
        """
        shown = [self.shown(text) for text in texts]
        goes_on = [self.shown(text + _PROBE).endswith(_PROBE) for text in texts]
        value = torch.empty(len(texts), device=self.inner.device)
        follow, settled = ([r for r, on in enumerate(goes_on) if on == which] for which in (True, False))
        if follow:
            value[follow] = self.inner.value_of_expected([shown[r] for r in follow], means[follow])
        if settled:
            value[settled] = self.inner.measure([shown[r] for r in settled]).to(value.device)
        return value
