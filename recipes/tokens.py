"""Token windows for the masked LM, cut so that no batch needs padding."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from tokenizers import Tokenizer

from recipes.text import sentences

CLS, SEP, MASK, UNK, FIRST_WORD, VOCABULARY = 101, 102, 103, 100, 999, 30522


@dataclass(frozen=True)
class TokenStore:
    """Documents as one row of token ids.

    ids: (T,) uint16   starts: (S+1,) int64 where each sentence begins   ends: (S,) int64 where its document ends
    """

    ids: np.ndarray
    starts: np.ndarray
    ends: np.ndarray


def tokenise(documents: Iterable[list[str]], tokenizer: Tokenizer) -> TokenStore:
    """Tokenise documents (lists of paragraphs) sentence by sentence."""
    ids, starts, ends, position = [], [], [], 0
    for document in documents:
        parts = [sentence for paragraph in document for sentence in sentences(paragraph)]
        lengths = []
        for encoding in tokenizer.encode_batch(parts, add_special_tokens=False):
            ids.append(np.asarray(encoding.ids, dtype=np.uint16))
            lengths.append(len(encoding.ids))
        end = position + sum(lengths)
        for length in lengths:
            starts.append(position)
            ends.append(end)
            position += length
    return TokenStore(np.concatenate(ids), np.asarray([*starts, position]), np.asarray(ends))


class Windows:
    """Draws windows of one length from a store: whole sentences, or a text that begins one and breaks off anywhere."""

    def __init__(self, store: TokenStore, shortest: int = 14, longest: int = 126) -> None:
        self.store = store
        self.room = store.ends - store.starts[:-1]
        self.whole: dict[int, np.ndarray] = _sentence_runs(store, shortest, longest)

    def whole_sentences(self, rows: int, length: int, random: np.random.Generator) -> np.ndarray:
        """(rows, length): runs of sentences, the last of which ends right before [SEP]."""
        return self._cut(random.choice(self.whole[length - 2], rows), length)

    def cut_off(self, rows: int, length: int, random: np.random.Generator) -> np.ndarray:
        """(rows, length): from the beginning of a sentence to wherever the length runs out."""
        first = random.integers(0, len(self.room), size=8 * rows)
        first = first[self.room[first] >= length - 2][:rows]
        return self._cut(self.store.starts[first], length)

    def _cut(self, begin: np.ndarray, length: int) -> np.ndarray:
        window = np.empty((len(begin), length), dtype=np.int64)
        window[:, 0], window[:, -1] = CLS, SEP
        window[:, 1:-1] = self.store.ids[begin[:, None] + np.arange(length - 2)]
        return window


def _sentence_runs(store: TokenStore, shortest: int, longest: int) -> dict[int, np.ndarray]:
    """Where a run of one to five whole sentences of one document begins, for each length of a run in tokens."""
    runs = defaultdict(list)
    for count in range(1, 6):
        begin, stop = store.starts[:-count], store.starts[count:]
        length = stop - begin
        inside = (stop <= store.ends[: len(begin)]) & (length >= shortest) & (length <= longest)
        for size in np.unique(length[inside]):
            runs[int(size)].append(begin[inside & (length == size)])
    return {size: np.concatenate(parts) for size, parts in runs.items()}


def corrupt(
    window: np.ndarray, random: np.random.Generator, *, scattered: float = 0.20, spans: float = 0.25
) -> tuple[np.ndarray, np.ndarray]:
    """A training example of the masked LM: (what it sees, which positions it must predict).

    Most rows lose a share of `scattered` tokens here and there; a share of `spans` rows loses spans, and some rows up
    to half of all tokens or much of their tail, because block Gibbs and a lookahead that starts from [MASK] look like
    that. One predicted token in ten is left as it is and one in twenty is a random word: chains are full of words that
    do not fit.
    """
    rows, length = window.shape
    position = np.arange(length)
    kind = random.random((rows, 1))
    plain = 0.85 - spans
    rate = np.where(kind < plain, scattered, random.uniform(0.25, 0.50, (rows, 1)))
    chosen = random.random((rows, length)) < rate
    # spans: each start, with a quarter of the chance, takes the following two to five tokens along
    begins = random.random((rows, length)) < rate / 3.5
    reach = random.integers(2, 6, (rows, length))
    covered = np.maximum.accumulate(np.where(begins, position + reach, 0), axis=1) > position
    chosen = np.where((kind >= plain) & (kind < 0.85), covered, chosen)
    # tails: only the last third to two thirds can be chosen
    tail = position >= length * random.uniform(0.33, 0.67, (rows, 1))
    chosen = np.where(kind >= 0.93, chosen & tail, chosen)
    chosen &= (window > MASK) & (window != UNK)
    return hide(window, chosen, random, hidden=0.85, left=0.10), chosen


def hide(
    window: np.ndarray, chosen: np.ndarray, random: np.random.Generator, *, hidden: float, left: float
) -> np.ndarray:
    """Of the chosen tokens a share of `hidden` becomes [MASK], a share of `left` stays, and the rest are random words."""
    how = random.random(window.shape)
    noise = random.integers(FIRST_WORD, VOCABULARY, window.shape)
    seen = np.where(chosen & (how < hidden), MASK, window)
    return np.where(chosen & (how >= hidden + left), noise, seen)
