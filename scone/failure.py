"""What becomes of a call when something under it fails: less at once, what was written, an end to waiting."""

from __future__ import annotations

import queue
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TypeVar

import torch

from scone.blame import ran_out_of_memory, waiting_for
from scone.errors import ForwardError, SconeError, StallError
from scone.output import Cost, Output
from scone.text import Text
from scone.trace import Trace

__all__ = ["Room", "limited", "told", "unfinished", "watched"]

T = TypeVar("T")


class Room:
    """How much is done at once: less after memory has run out, with one warning however often that happens.

    >>> Room().spread("numbers", 5, list)
    [[0, 1, 2, 3, 4]]
    """

    def __init__(self) -> None:
        self._most: dict[str, int] = {}
        self._warned = False

    def spread(self, what: str, count: int, work: Callable[[range], T]) -> list[T]:
        """`work` of all of range(count), in as few parts as memory has room for."""
        results: list[T] = []
        begin = 0
        while begin < count:
            part = range(begin, min(count, begin + self._most.get(what, count)))
            try:
                results.append(work(part))
                begin = part.stop
            except Exception as problem:
                if not self.shrinks(problem, what, len(part)):
                    raise
        return results

    def shrinks(self, problem: Exception, what: str, count: int) -> bool:
        """Whether memory ran out with `count` of something at once and half of it may do: half is the most from here on."""
        if count < 2 or not ran_out_of_memory(problem):
            return False
        self._most[what] = (count + 1) // 2
        if not self._warned:
            self._warned = True
            words = (
                f"memory ran out with {count} {what} at once: going on with {self._most[what]}, more slowly ({problem})"
            )
            warnings.warn(words, RuntimeWarning, stacklevel=2)
        return True


def unfinished(texts: Sequence[Text]) -> Output:
    """Texts as far as they are written, without scores.

    >>> unfinished([Text("One", [3], seed=0, continuation=" two", new_ids=[4])]).texts
    ['One two']
    """
    return Output(
        texts=[text.text for text in texts],
        continuations=[text.continuation for text in texts],
        token_ids=[list(text.new_ids) for text in texts],
        scores=torch.full((len(texts),), torch.nan),
        finish_reasons=[text.finish_reason or "unfinished" for text in texts],
        trace=Trace([list(text.trace) for text in texts], told=[]),
        seconds={},
        cost=Cost(),
    )


@contextmanager
def told(texts: Callable[[], Sequence[Text]], *, after_all: bool = False) -> Iterator[None]:
    """What is raised inside has the texts so far as `.partial`; what a model did says at which token it was.

    `after_all`: all tokens are written, and what fails is what comes after them.
    """
    try:
        yield
    except Exception as problem:
        written = texts()
        error = problem
        if ran_out_of_memory(problem) and not isinstance(problem, SconeError):
            error = ForwardError(f"memory ran out: {problem}")
        if isinstance(error, ForwardError):
            token = max((len(text.new_ids) for text in written), default=0) + 1
            error.args = (f"{error}, {'after the last token' if after_all else f'at token {token}'}",)
        with suppress(AttributeError):  # not every class lets others add to it
            error.partial = unfinished(written)  # type: ignore[attr-defined]
        if error is problem:
            raise
        raise error from problem


def watched(steps: Iterator[T], texts: Callable[[], Sequence[Text]]) -> Iterator[T]:
    """The steps; what is raised in one has the texts so far.

    >>> list(watched(iter("ab"), list))
    ['a', 'b']
    """
    with told(texts):
        yield from steps


def limited(steps: Iterator[T], seconds: float | None) -> Iterator[T]:
    """The steps, each made within so many seconds, or StallError; a step that takes longer is left to itself.

    With a limit the steps are made in a thread of their own.

    >>> list(limited(iter("ab"), seconds=5.0))
    ['a', 'b']
    """
    if seconds is None:
        yield from steps
        return
    asked: queue.SimpleQueue[bool] = queue.SimpleQueue()
    made: queue.SimpleQueue[tuple[str, object]] = queue.SimpleQueue()
    gradients = torch.is_grad_enabled()

    def work() -> None:
        torch.set_grad_enabled(gradients)  # of this thread
        while asked.get():
            try:
                made.put(("step", next(steps)))
            except StopIteration:
                return made.put(("end", None))
            except BaseException as problem:
                return made.put(("raised", problem))

    thread = threading.Thread(target=work, name="scone-steps", daemon=True)
    thread.start()
    try:
        while True:
            asked.put(True)
            try:
                kind, value = made.get(timeout=seconds)
            except queue.Empty:
                raise StallError(f"{waiting_for(thread.ident)} did not answer within {seconds:g} s") from None
            if kind == "end":
                return
            if kind == "raised":
                raise value  # type: ignore[misc]
            yield value  # type: ignore[misc]
    finally:
        asked.put(False)
