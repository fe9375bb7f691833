"""Weights as the kernels take them, kept beside a model and made again where the model's have changed.

A copy is known by the parameter that it was made of: which tensor, in which memory, read how, and how often written to. A
replaced layer, `load_state_dict`, `.to(...)` and a change in place all show in that. What is written through `.data` or by
NumPy shows in nothing that torch keeps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from .. import _ops
from .._checks import FLOATS
from .._panels import to_panels
from .structure import Unfit

__all__ = ["Packed"]

Values = list["Tensor | None"]


class Packed:
    """The parameters at `slots`, pairs of a module and a name, all of one type.

    Those at places in `products` are in panels of 16 bits where that is exact, other matrices as they are, and vectors in
    float32. check(values) raises ValueError or TypeError where they do not fit together.

    >>> layer = nn.Linear(4, 2).bfloat16()
    >>> packed = Packed([(layer, "weight"), (layer, "bias")], products=(), check=lambda values: None)
    >>> packed.values()[0] is layer.weight, packed.values()[1].dtype
    (True, torch.float32)
    """

    def __init__(
        self,
        slots: Sequence[tuple[nn.Module, str]],
        products: Sequence[int],
        check: Callable[[Values], None],
        former: Packed | None = None,
    ) -> None:
        self._slots = [(vars(module), name) for module, name in slots]
        self._products = frozenset(products)
        self._check = check
        # Of a model that looked otherwise before: what is the same in the same place need not be packed again.
        fits = former is not None and len(former._slots) == len(slots) and former._products == self._products
        self._held: tuple[Any, Values] | None = former._held if former is not None and fits else None
        self._checked = False

    def values(self) -> Values:
        """What a kernel takes, in the order of the slots; Unfit where there is something that it does not take."""
        now = [state["_parameters"].get(name) for state, name in self._slots]
        if self._held is None:
            self._take(now, range(len(now)), [None] * len(now))
        else:
            watch, values = self._held
            changed = watch.changed(now)
            if changed or not self._checked:
                self._take(now, changed, values)
        assert self._held is not None
        return self._held[1]

    def __len__(self) -> int:
        return len(self._slots)

    def refresh(self) -> None:
        """Take everything anew at the next call."""
        self._held = None

    def _take(self, now: Sequence[Any], places: Sequence[int], former: Values) -> None:
        for i in places:
            value = now[i]
            if value is not None and (type(value) not in (Tensor, nn.Parameter) or not _is_plain(value)):
                raise Unfit(f"a weight is {type(value).__name__} of {value.dtype} on {value.device}")
        if len({value.dtype for value in now if value is not None}) > 1:
            raise Unfit("its weights are not of one type")
        watch, values = _watch(now), list(former)
        for i in places:
            values[i] = None if now[i] is None else _packed(now[i]) if i in self._products else _as_read(now[i])
        try:
            self._check(values)
        except (TypeError, ValueError) as error:
            raise Unfit(str(error)) from error
        self._held, self._checked = (watch, values), True  # at once: other threads read it


def _watch(tensors: Sequence[Any]) -> Any:
    """Says which of a list of tensors and Nones have changed since: csrc/cpu/inference/watch.cpp."""
    from .. import _C  # type: ignore[attr-defined]  # there is none in a pure Python install, which packs nothing

    return _C.Watch(tensors)


def _is_plain(value: Tensor) -> bool:
    lies = value.layout is torch.strided and (value.dim() > 1 or value.is_contiguous())
    watched = value.dtype is torch.float32 or not value.is_inference()  # a copy of it has to follow
    return lies and watched and value.dtype in FLOATS and value.device.type == "cpu"


def _as_read(value: Tensor) -> Tensor:
    return value if value.dim() > 1 else value.detach().float()


def _packed(weight: Tensor) -> Tensor:
    """Panels of 16 bits, or the weight itself where those would change a value or the weight cannot be watched."""
    if weight.dim() != 2:
        return weight
    if weight.dtype is torch.float32 and (weight.is_inference() or _ops.ops.cpu_build() == "baseline"):
        return weight
    with torch.no_grad():
        if to_panels(weight[:1]) is None:  # most weights that are not of 16 bits show it at once
            return weight
        panels = to_panels(weight)
    return weight if panels is None else panels
