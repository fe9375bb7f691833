"""What is shown of a text while it is written, and when it is given up."""

from __future__ import annotations

from collections import deque

__all__ = ["Guard"]


class Guard:
    """Holds back the last tokens of a text; where the best q stays below a threshold for as many, they are never shown.

    >>> guard = Guard(threshold=0.5, hold_back=2)
    >>> [guard.shown("".join("abcdef"[: i + 1]), best) for i, best in enumerate([0.9, 0.9, 0.8, 0.2, 0.1])]
    [0, 0, 1, 2, 3]
    >>> guard.tripped
    True
    """

    def __init__(self, threshold: float, hold_back: int) -> None:
        self.threshold, self.hold_back = threshold, hold_back
        self._lengths: deque[int] = deque([0], maxlen=hold_back + 1)  # of the text, some tokens ago
        self._low = 0

    @property
    def tripped(self) -> bool:
        """Whether the text is to be given up."""
        return self._low >= self.hold_back

    def shown(self, text: str, best: float | None) -> int:
        """How many characters may be seen now; `best` is the best q of the step, None where nothing was judged."""
        self._lengths.append(len(text))
        if best is not None:
            self._low = self._low + 1 if best < self.threshold else 0
        return self._lengths[0] if len(self._lengths) > self.hold_back else 0
