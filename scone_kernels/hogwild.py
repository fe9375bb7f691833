"""A token state that many workers read and write at once without locks.

Each position is one 64-bit word: the token in its low half, the number of writes so far (the version) in its high half.
A reader never sees half a write, no write is lost, and how stale a snapshot was is measured, not assumed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from . import _checks, _extension, _ops

__all__ = ["HogwildState", "Snapshot"]

_HALF = (1 << 32) - 1  # the largest token and the largest version
_CACHE_LINE = 8  # words: rows that start on their own line do not slow each other down


class Snapshot(NamedTuple):
    """What a worker saw: both (rows, positions) int64.

    >>> HogwildState(torch.tensor([[7, 8]])).read()
    Snapshot(tokens=tensor([[7, 8]]), versions=tensor([[0, 0]]))
    """

    tokens: Tensor
    versions: Tensor


class HogwildState:
    """Tokens (rows, positions) that any number of threads, or CUDA streams, share.

    `backend` is "cpu" (C++), "cuda" (kernels on the caller's current stream) or "reference" (plain torch under a mutex,
    any device); None takes the compiled one of the tokens' device where this install has it.

    >>> state = HogwildState(torch.tensor([[7, 7, 7, 7]]))
    >>> seen = state.read()
    >>> row, block = torch.tensor([0]), torch.tensor([[1, 2]])
    >>> state.write(row, torch.tensor([0]), block, seen).tolist()  # nobody else has written
    [[0, 0, 0, 0]]
    >>> state.write(row, torch.tensor([1]), block, seen).tolist()  # this snapshot is behind at positions 0 and 1
    [[1, 1, 0, 0]]
    >>> state.read().tokens.tolist()
    [[1, 1, 2, 7]]
    """

    def __init__(self, tokens: Tensor, *, backend: str | None = None) -> None:
        _checks.indices(
            "tokens", tokens, (None, None), tokens.device if isinstance(tokens, Tensor) else torch.device("cpu")
        )
        if tokens.is_meta:
            raise ValueError(f"tokens must hold values, got a tensor on {tokens.device}")
        _check_range(tokens)
        rows, positions = tokens.shape
        stride = -(-positions // _CACHE_LINE) * _CACHE_LINE
        self.backend = _choose(backend, tokens.device)
        self._words = tokens.new_zeros(rows, stride)[:, :positions].copy_(tokens)  # version 0
        self._shared = _Shared()
        self._read, self._write = _functions(self.backend, self._shared.mutex)

    @property
    def shape(self) -> tuple[int, int]:
        """(rows, positions)."""
        return self._words.shape[0], self._words.shape[1]

    @property
    def device(self) -> torch.device:
        """Where the state lives."""
        return self._words.device

    def read(self) -> Snapshot:
        """All tokens and versions as they are now; writes that happen meanwhile are seen or not, word by word."""
        if self._shared.closed:
            raise RuntimeError("this HogwildState is closed")
        return self._read(self._words, Snapshot)

    def write(self, rows: Tensor, starts: Tensor, tokens: Tensor, snapshot: Snapshot) -> Tensor:
        """Write blocks and return how stale the snapshot was that they were drawn from.

        rows: (n,)   starts: (n,)   tokens: (n, block)   snapshot: from `read()` of this state
        returns (n, positions) int64: for each block, by how many versions each position of its row had advanced past
        the snapshot when the block was written; at the block's own positions, the writes that it replaced unseen.

        Bad input raises and leaves the state as it was. On CUDA, where looking at values would wait for the device, a
        block out of range or a token outside 32 bits is not written and its staleness is -1.
        """
        if self._shared.closed:
            raise RuntimeError("this HogwildState is closed")
        if not isinstance(snapshot, Snapshot):
            raise TypeError(f"snapshot must be a Snapshot from read(), got {type(snapshot).__name__}")
        return self._write(self._words, rows, starts, tokens, snapshot.versions)

    def __getitem__(self, rows: slice) -> HogwildState:
        """Some neighbouring rows as a state of their own that shares this one's memory: `state[2:4]`."""
        if not isinstance(rows, slice) or rows.step not in (None, 1):
            raise TypeError(f"a HogwildState is indexed by a slice of rows without a step, got {rows!r}")
        part = object.__new__(HogwildState)
        part.__dict__.update(self.__dict__, _words=self._words[rows])
        return part

    def close(self) -> None:
        """End the state: reads and writes from now on raise, here and in its parts. Those under way finish."""
        self._shared.closed = True

    def __enter__(self) -> HogwildState:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        ending = ", closed" if self._shared.closed else ""
        return f"HogwildState(rows={self.shape[0]}, positions={self.shape[1]}, backend={self.backend!r}{ending})"


class _Shared:
    """What a state and its parts have in common."""

    def __init__(self) -> None:
        self.closed = False
        self.mutex = threading.Lock()


def _choose(backend: str | None, device: torch.device) -> str:
    """The backend that runs on `device`; an explicit one that cannot raises."""
    if backend not in (None, "cpu", "cuda", "reference"):
        raise ValueError(f"backend must be None, 'cpu', 'cuda' or 'reference', got {backend!r}")
    compiled = device.type
    missing = _why_missing(device)
    if backend is None:
        return compiled if missing is None else "reference"
    if backend == "reference":
        return backend
    if backend != compiled:
        raise ValueError(f"backend {backend!r} cannot hold tokens on {device}")
    if missing is not None:
        raise RuntimeError(f"backend {backend!r} cannot run here: {missing}")
    return backend


def _why_missing(device: torch.device) -> str | None:
    if _extension.why_missing is not None:
        return _extension.why_missing
    if torch._C._dispatch_has_kernel_for_dispatch_key(
        _ops.add_op_namespace_prefix("hogwild_read"), device.type.upper()
    ):
        return None
    return f"the extension was built without kernels for {device.type}"


def _functions(backend: str, mutex: threading.Lock) -> tuple[Callable[..., Snapshot], Callable[..., Tensor]]:
    if backend == "reference":
        return _reference(mutex)
    from . import _C  # type: ignore[attr-defined]

    return _C.hogwild_read, _C.hogwild_write


def _reference(mutex: threading.Lock) -> tuple[Callable[..., Snapshot], Callable[..., Tensor]]:
    """The same contract in plain torch, one worker at a time."""

    def read(words: Tensor, snapshot: type[Snapshot]) -> Snapshot:
        with mutex:
            seen = words.clone()
            _finish(words)
        return snapshot(seen & _HALF, (seen >> 32) & _HALF)

    def write(words: Tensor, rows: Tensor, starts: Tensor, tokens: Tensor, versions: Tensor) -> Tensor:
        _checks.indices("rows", rows, (None,), words.device)
        _checks.indices("starts", starts, (len(rows),), words.device)
        _checks.indices("tokens", tokens, (len(rows), None), words.device)
        _checks.indices("snapshot.versions", versions, tuple(words.shape), words.device)
        size = tokens.shape[1]
        for row, start in zip(rows.tolist(), starts.tolist()):
            if not (0 <= row < words.shape[0] and 0 <= start <= words.shape[1] - size):
                raise ValueError(
                    f"a block must lie within {words.shape[0]} rows of {words.shape[1]} positions, "
                    f"got row {row}, start {start} and {size} tokens"
                )
        _check_range(tokens)
        staleness = words.new_empty(len(rows), words.shape[1])
        with mutex:
            for i, (row, start) in enumerate(zip(rows.tolist(), starts.tolist())):
                current = (words[row] >> 32) & _HALF
                staleness[i] = (current - versions[row]) & _HALF
                words[row, start : start + size] = ((current[start : start + size] + 1) << 32) | tokens[i]
            _finish(words)
        return staleness

    return read, write


def _finish(words: Tensor) -> None:
    """A mutex orders what threads launch; what a GPU then runs must be waited for."""
    if words.is_cuda:
        torch.cuda.current_stream(words.device).synchronize()


def _check_range(tokens: Tensor) -> None:
    if tokens.numel():
        low, high = (int(value) for value in tokens.aminmax())
        if low < 0 or high > _HALF:
            raise ValueError(f"tokens must be in [0, 2**32), got values from {low} to {high}")
