"""Logits processors of other people in a batch: each is called as transformers calls it, or one text at a time.

A processor may keep state from call to call, such as the place in a grammar of each row. It is therefore called once a
step on the whole batch, prompts padded on the left and rows that have ended kept in place behind padding. Only functions
of a single row (transformers' own, and what is wrapped in `OneByOne`) are asked about each text by itself, so that neither
padding nor the rest of the batch plays a part; `PerText` makes a processor with its own state for every text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import LogitsProcessor

from scone.errors import InputError
from scone.text import Text

__all__ = ["OneByOne", "PerText", "Processor", "Processors", "may_change_places", "of_all", "with_new"]

Processor = Callable[[Tensor, Tensor], Tensor]
"""(ids (B, T), scores (B, V)) -> scores (B, V), as transformers has it."""

_OF_ONE_ROW = {
    "MinLengthLogitsProcessor", "MinNewTokensLengthLogitsProcessor", "TemperatureLogitsWarper",
    "RepetitionPenaltyLogitsProcessor", "TopPLogitsWarper", "TopKLogitsWarper", "TopHLogitsWarper", "MinPLogitsWarper",
    "TypicalLogitsWarper", "EpsilonLogitsWarper", "EtaLogitsWarper", "NoRepeatNGramLogitsProcessor",
    "SequenceBiasLogitsProcessor", "NoBadWordsLogitsProcessor", "ForcedBOSTokenLogitsProcessor",
    "ForcedEOSTokenLogitsProcessor", "InfNanRemoveLogitsProcessor", "ExponentialDecayLengthPenalty",
    "LogitNormalization", "SuppressTokensAtBeginLogitsProcessor", "SuppressTokensLogitsProcessor",
    "WatermarkLogitsProcessor",
}  # fmt: skip
"""Those of transformers that look at one row at a time and remember nothing."""


class OneByOne(LogitsProcessor):
    """A processor that keeps no state, asked about each text by itself: no padding, and particles may change places.

    >>> first = OneByOne(lambda ids, scores: scores + len(ids))
    >>> first(torch.zeros(2, 3), torch.zeros(2, 1))
    tensor([[1.],
            [1.]])
    """

    def __init__(self, processor: Processor) -> None:
        self.processor = processor

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        """New scores (B, V), a row at a time."""
        rows = [self.processor(ids, own) for ids, own in zip(input_ids.split(1), scores.split(1))]
        return torch.cat(rows)


class PerText(LogitsProcessor):
    """A processor for each text, made by `factory()` when the text begins and shown its tokens as they come, unpadded.

    A text that goes on from another one's past (particles, beams) gets a new processor, which is shown that past token by
    token. In a loop of transformers one object serves one call of `generate`.

    >>> class Counts:
    ...     calls = 0
    ...     def __call__(self, ids, scores):
    ...         self.calls += 1
    ...         return scores + self.calls
    >>> counts, ids = PerText(Counts), torch.tensor([[5, 6], [7, 8]])
    >>> _ = counts(ids, torch.zeros(2, 1))
    >>> counts(torch.cat([ids, ids[:, :1]], 1), torch.zeros(2, 1))
    tensor([[2.],
            [2.]])
    """

    def __init__(self, factory: Callable[[], Processor]) -> None:
        if not callable(factory):
            raise InputError(f"factory must be a function that makes a logits processor, got {factory!r}")
        self.factory = factory
        self._rows: list[_Follower] = []

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        """New scores (B, V) in a loop of transformers, where row b goes on from row b or from another one's past."""
        rows = input_ids.tolist()
        if len(self._rows) != len(rows) or not all(map(_Follower.knows, self._rows, rows)):
            self._rows = [_Follower(self.factory, len(ids)) for ids in rows]
        return torch.cat([own(ids, row) for own, ids, row in zip(self._rows, rows, scores.split(1))])

    def follower(self, text: Text) -> _Follower:
        """The processor of a text, which begins after its prompt."""
        return _Follower(self.factory, len(text.prompt_ids))


class _Follower:
    """A processor and the tokens that it has seen."""

    def __init__(self, factory: Callable[[], Processor], begin: int) -> None:
        self._factory, self._begin = factory, begin
        self._processor = _made(factory)
        self._seen: list[int] | None = None

    def __call__(self, ids: list[int], scores: Tensor) -> Tensor:
        """New scores (1, V) after these ids."""
        if self._seen != (ids[:-1] if len(ids) > self._begin else None):
            self._processor = _made(self._factory)
            for end in range(self._begin, len(ids)):
                self._processor(torch.tensor([ids[:end]], device=scores.device), torch.zeros_like(scores))
        self._seen = ids
        return self._processor(torch.tensor([ids], device=scores.device), scores)

    def knows(self, ids: list[int]) -> bool:
        """Whether ids are one token more than it has seen, after the same prompt."""
        seen = self._seen
        return seen is not None and len(seen) + 1 == len(ids) and seen[: self._begin] == ids[: self._begin]


class Processors:
    """All processors of one call, as the decode loop asks them: (texts that live, their logits) -> logits.

    Texts have the rows in which they came first, for as long as the call lasts.

    >>> text, seen = Text("", [5, 6], seed=0), []
    >>> after = Processors([lambda ids, scores: seen.append(ids.tolist()) or scores], pad=0)
    >>> after([text], torch.zeros(1, 9)).shape, seen
    (torch.Size([1, 9]), [[[5, 6]]])
    """

    def __init__(self, processors: Sequence[Processor], *, pad: int) -> None:
        self._processors, self._pad = processors, pad
        self._texts: list[Text] = []
        self._row: dict[int, int] = {}  # of each text, by `id`
        self._followers: dict[tuple[int, int], _Follower] = {}  # by processor and row

    def __call__(self, texts: Sequence[Text], logits: Tensor) -> Tensor:
        for text in texts:
            if id(text) not in self._row:
                self._row[id(text)] = len(self._texts)
                self._texts.append(text)
        rows = [self._row[id(text)] for text in texts]
        logits = logits.clone()  # some write into the scores that they are given
        for i, processor in enumerate(self._processors):
            logits = self._after(i, processor, texts, rows, logits)
        return logits

    def _after(
        self, i: int, processor: Processor, texts: Sequence[Text], rows: Sequence[int], logits: Tensor
    ) -> Tensor:
        if not of_one_row(processor) and not isinstance(processor, PerText):
            after = processor(self._padded(logits.device), of_all(logits, rows, len(self._texts)))
            _check_scores(processor, after, (len(self._texts), logits.shape[1]))
            return after[list(rows)]
        ids = [[*text.prompt_ids, *text.new_ids] for text in texts]
        if isinstance(processor, PerText):
            followers = [self._follower(i, row, processor) for row in rows]
            found = [own(line, scores) for own, line, scores in zip(followers, ids, logits.split(1))]
        else:
            alone = processor.processor if isinstance(processor, OneByOne) else processor
            lines = [torch.tensor([line], device=logits.device) for line in ids]
            found = [alone(line, scores) for line, scores in zip(lines, logits.split(1))]
        for scores in found:
            _check_scores(processor, scores, (1, logits.shape[1]))
        return torch.cat(found)

    def _follower(self, i: int, row: int, processor: PerText) -> _Follower:
        if (i, row) not in self._followers:
            self._followers[i, row] = processor.follower(self._texts[row])
        return self._followers[i, row]

    def _padded(self, device: torch.device) -> Tensor:
        """(all texts, T): prompts padded on the left, texts that have ended on the right."""
        width = max(len(text.prompt_ids) for text in self._texts)
        rows = [[self._pad] * (width - len(text.prompt_ids)) + text.prompt_ids for text in self._texts]
        return with_new(torch.tensor(rows, device=device), self._texts, self._pad)


def of_one_row(processor: object) -> bool:
    """Whether a processor is known to look at one row at a time and to remember nothing."""
    kind = type(processor)
    of_transformers = kind.__module__ == "transformers.generation.logits_process" and kind.__name__ in _OF_ONE_ROW
    return of_transformers or isinstance(processor, OneByOne)


def may_change_places(processors: Iterable[object]) -> bool:
    """Whether texts may go on from one another's past: a processor that may keep state by rows would not follow.

    >>> may_change_places([OneByOne(lambda ids, scores: scores)]), may_change_places([lambda ids, scores: scores])
    (True, False)
    """
    return all(of_one_row(processor) or isinstance(processor, PerText) for processor in processors)


def with_new(prompt: Tensor, texts: Sequence[Text], pad: int) -> Tensor:
    """The prompt (B, T) and all that has been written, padded behind texts that have ended.

    >>> with_new(torch.tensor([[5], [6]]), [Text("", [5], 0, new_ids=[7]), Text("", [6], 0)], pad=0)
    tensor([[5, 7],
            [6, 0]])
    """
    length = max(len(text.new_ids) for text in texts)
    rows = [[*text.new_ids, *[pad] * (length - len(text.new_ids))] for text in texts]
    new = torch.tensor(rows, dtype=prompt.dtype, device=prompt.device).view(len(texts), length)
    return torch.cat([prompt, new], dim=1)


def of_all(logits: Tensor, rows: Sequence[int], count: int) -> Tensor:
    """Logits (count, V) of the whole batch, zero in the rows that have ended.

    >>> of_all(torch.ones(1, 2), [1], 2)
    tensor([[0., 0.],
            [1., 1.]])
    """
    if list(rows) == list(range(count)):
        return logits
    return logits.new_zeros(count, logits.shape[1]).index_copy(0, torch.tensor(rows, device=logits.device), logits)


def _made(factory: Callable[[], Processor]) -> Processor:
    made = factory()
    if not callable(made):
        raise InputError(f"factory must make a logits processor, got {made!r}")
    return made


def _check_scores(processor: object, scores: Any, shape: tuple[int, ...]) -> None:
    name = getattr(processor, "__name__", type(processor).__name__)
    found = tuple(scores.shape) if isinstance(scores, Tensor) else type(scores).__name__
    if found != shape:
        raise InputError(f"logits_processor {name} must return scores of shape {shape}, got {found}")
    most = scores.amax()
    if bool(most.isnan() | most.isposinf()):
        raise InputError(f"logits_processor {name} must return numbers or -inf, got {float(most)}")
