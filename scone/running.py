"""A batch that texts join and leave between two steps: what a server runs.

    batch = Running(engine.loop())
    batch.join(engine.open("The movie was", max_new_tokens=25, seed=0), 25)
    while batch:
        batch.step()

What a text becomes hangs on its own prompt, seed and length, not on who else is there.
"""

from __future__ import annotations

from collections.abc import Sequence

from scone.errors import InputError
from scone.lm import LMState
from scone.loop import Loop, Taken, commit, prefill
from scone.text import Text

__all__ = ["Running"]


class Running:
    """Texts that are written together, each of them for as long as it lasts.

    >>> from scone.decode import Scone
    >>> engine = Scone.from_pretrained().with_config(particles=1)
    >>> batch, texts = Running(engine.loop()), engine.open(["One", "Two"], max_new_tokens=3, seed=0)
    >>> batch.join(texts[:1], 3)
    >>> _ = batch.step()
    >>> batch.join(texts[1:], 3)
    >>> while batch:
    ...     _ = batch.step()
    >>> [text.continuation for text in texts] == engine.generate(["One", "Two"], max_new_tokens=3).continuations
    True
    """

    def __init__(self, loop: Loop) -> None:
        if loop.population is not None:
            raise InputError(f"particles must be 1 in a running batch, got {loop.config.particles}")
        self.loop = loop
        self._last: Taken | None = None
        self._new: list[Text] = []
        self._limits: dict[int, int] = {}  # by `id`: new tokens at most

    def __len__(self) -> int:
        return len(self.texts)

    @property
    def texts(self) -> list[Text]:
        """Those that the next step writes: a text leaves when it has a `finish_reason`."""
        here = [*(self._last.texts if self._last else ()), *self._new]
        return [text for text in here if text.finish_reason is None]

    def join(self, texts: Sequence[Text], max_new_tokens: int) -> None:
        """Let texts that `engine.open` has made take part from the next step on."""
        self._new += texts
        self._limits.update({id(text): max_new_tokens for text in texts})

    def step(self) -> Taken | None:
        """A token for every text; one that is as long as it may be ends with "length". None where nobody is left."""
        texts, state = self._gone_on()
        if state is None:
            self._last, self._limits = None, {}
            return None
        self._limits = {id(text): self._limits[id(text)] for text in texts}
        remaining = [self._limits[id(text)] - len(text.new_ids) - 1 for text in texts]
        self._last = self.loop.advance(texts, state, remaining)
        for text, left in zip(texts, remaining):
            if left == 0 and text.finish_reason is None:
                text.finish_reason = "length"
        return self._last

    def _gone_on(self) -> tuple[list[Text], LMState | None]:
        """The texts of this step and the LM after them: those that stay, then those that have joined."""
        lm, last = self.loop.parts.lm, self._last
        texts, state, self._last = self.texts, None, None  # a step that fails is not gone on from
        old = [] if last is None else [b for b, text in enumerate(last.texts) if text.finish_reason is None]
        if old and last is not None:
            with self.loop.timer("commit"):
                state = commit(lm, last.state, old, [last.texts[b].new_ids[-1] for b in old], last.decision)
                state = lm.narrow(state)
        new, self._new = texts[len(old) :], []
        if new:
            with self.loop.timer("prefill"):
                begun = prefill(lm, new)
                state = begun if state is None else lm.join(state, begun, range(len(texts)))
        return texts, state
