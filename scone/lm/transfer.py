"""Between the host and a device: what is sent does not wait, and what is fetched waits once for all of it.

A launch on a GPU returns at once; the host stands still only where it asks for a value, or copies from memory that is not
pinned. A step of the loop asks twice: for the candidates, and for what was taken. What a model returns is therefore looked
at on its device, and what was found comes with the next values that are fetched.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from scone.errors import NumericalError

__all__ = ["check_finite", "fetched", "sent"]

_MOST_DOUBTS = 256


class _Doubt(NamedTuple):
    """What a model returned, to be looked at when values are fetched."""

    bad: Tensor  # (3,) how many rows are -infinity alone, how many values are NaN, and infinity
    shape: torch.Size
    source: str


class _Doubts(threading.local):
    """Those of a thread."""

    def __init__(self) -> None:
        self.found: list[_Doubt] = []


_doubts = _Doubts()


def sent(values: Any, device: torch.device, dtype: torch.dtype | None = None) -> Tensor:
    """Numbers, or a tensor of any device, as a tensor on a device, without waiting for it.

    >>> sent([3, 4], torch.device("cpu"))
    tensor([3, 4])
    """
    made = values if isinstance(values, Tensor) else torch.tensor(values, dtype=dtype)
    if device.type == "cuda" and made.device.type == "cpu":
        return made.pin_memory().to(device, non_blocking=True)
    return made.to(device)


def fetched(*tensors: Tensor) -> tuple[Tensor, ...]:
    """The tensors on the CPU, with one wait for all; raises NumericalError for what a model returned in the meantime.

    >>> fetched(torch.tensor([3]), torch.tensor([4]))
    (tensor([3]), tensor([4]))
    """
    doubts, _doubts.found = _doubts.found, []
    device = next((t.device for t in (*tensors, *(d.bad for d in doubts)) if t.device.type == "cuda"), None)
    if device is None:
        return tuple(tensor.cpu() for tensor in tensors)
    counts = [torch.stack([doubt.bad.to(device) for doubt in doubts])] if doubts else []
    copies = [t.to(device).to("cpu", non_blocking=True) if t.device.type != "cpu" else t for t in (*tensors, *counts)]
    torch.cuda.current_stream(device).synchronize()
    if doubts:
        _raise_first(doubts, copies.pop().tolist())
    return tuple(copies)


def check_finite(x: Tensor, source: str, *, allow_infinite: bool = False) -> None:
    """Raise NumericalError that names `source` where x holds NaN or infinity; `allow_infinite`: -infinity may be in a row beside others.

    On a GPU, where looking would wait, `fetched` raises it with the next values that are asked for.

    >>> check_finite(torch.tensor([0.0, float("nan")]), "the verifier Demo")
    Traceback (most recent call last):
    scone.errors.NumericalError: the verifier Demo returned NaN in 1 of 2 values
    """
    if not x.numel():
        return
    if x.device.type != "cuda":
        if allow_infinite and bool(x.amax(-1).isfinite().all()):  # one pass, and no mask as large as x
            return
        doubt = _doubt(x, source, allow_infinite)
        _raise_first([doubt], [doubt.bad.tolist()])
    elif not torch.cuda.is_current_stream_capturing():
        _doubts.found.append(_doubt(x, source, allow_infinite))
        if len(_doubts.found) > _MOST_DOUBTS:  # nobody has fetched anything for long
            fetched()


def _doubt(x: Tensor, source: str, allow_infinite: bool) -> _Doubt:
    infinite = x.isposinf() if allow_infinite else x.isinf()
    nothing = x.amax(-1).isneginf().sum() if allow_infinite else x.new_zeros((), dtype=torch.int64)
    return _Doubt(torch.stack([nothing, x.isnan().sum(), infinite.sum()]), x.shape, source)


def _raise_first(doubts: Sequence[_Doubt], counts: Sequence[Sequence[int]]) -> None:
    for (_, shape, source), (nothing, nan, infinite) in zip(doubts, counts):
        if nothing:
            raise NumericalError(f"{source} returned -infinity alone in {nothing} of {shape[0]} rows")
        for what, count in (("NaN", nan), ("infinity", infinite)):
            if count:
                raise NumericalError(f"{source} returned {what} in {count} of {shape.numel()} values")
