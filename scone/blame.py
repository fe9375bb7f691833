"""Which model is to blame: what one raises names it, and what each thread waits for can be asked."""

from __future__ import annotations

import threading
from types import TracebackType

import torch

from scone.errors import ForwardError, SconeError

__all__ = ["blamed", "ran_out_of_memory", "waiting_for"]

_RUNNING: dict[int, str] = {}  # by thread


class blamed:
    """Whatever a model raises inside becomes a ForwardError that names it; what is ours passes as it is.

    >>> with blamed("the causal LM Demo"):
    ...     [][0]
    Traceback (most recent call last):
    scone.errors.ForwardError: the causal LM Demo raised IndexError: list index out of range
    """

    def __init__(self, source: str) -> None:
        self.source = source

    def __enter__(self) -> None:
        self._before = _RUNNING.get(threading.get_ident())
        _RUNNING[threading.get_ident()] = self.source

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._before is None:
            del _RUNNING[threading.get_ident()]
        else:
            _RUNNING[threading.get_ident()] = self._before
        if not isinstance(problem, Exception) or isinstance(problem, SconeError):
            return
        if ran_out_of_memory(problem):
            raise ForwardError(f"{self.source} ran out of memory: {problem}") from problem
        raise ForwardError(f"{self.source} raised {type(problem).__name__}: {problem}") from problem


def waiting_for(thread: int | None) -> str:
    """The model that a thread, by its `ident`, is running.

    >>> with blamed("the verifier Demo"):
    ...     waiting_for(threading.get_ident())
    'the verifier Demo'
    """
    return _RUNNING.get(thread or 0, "the engine")


def ran_out_of_memory(problem: BaseException | None) -> bool:
    """Whether memory ran out, of a device or of the machine, at the root of what was raised.

    >>> ran_out_of_memory(MemoryError()), ran_out_of_memory(RuntimeError("shapes do not match"))
    (True, False)
    """
    while problem is not None:
        if isinstance(problem, MemoryError | torch.OutOfMemoryError):
            return True
        if isinstance(problem, RuntimeError) and not isinstance(problem, SconeError) and _says_so(str(problem)):
            return True
        problem = problem.__cause__
    return False


def _says_so(message: str) -> bool:
    """Torch has no class of its own for the machine's memory, nor for that of some libraries of a device."""
    return any(words in message for words in ("can't allocate memory", "out of memory", "ALLOC_FAILED"))
