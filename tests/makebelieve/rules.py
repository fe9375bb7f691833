"""Which operations of torch make the host wait, which copy, and which tensors may meet."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from tests.makebelieve.tensor import DeviceTensor

aten = torch.ops.aten

WAITS = {  # their result is a value on the host, or has a shape that hangs on values
    aten._local_scalar_dense,
    aten.equal,
    aten.nonzero,
    aten.allclose,
    aten.masked_select,
    aten.unique_dim,
    aten._unique,
    aten._unique2,
    aten.unique_consecutive,
    aten.bincount,
    aten.multinomial,  # looks for invalid probabilities
    aten.is_nonzero,
}
FREE = {  # no kernel: they make or describe memory
    aten.empty,
    aten.empty_like,
    aten.empty_strided,
    aten.new_empty,
    aten.new_empty_strided,
    aten.detach,
    aten.alias,
    aten.lift_fresh,
    aten._reshape_alias,
    aten._unsafe_view,
    aten.set_,
    aten.is_same_size,
}
INDEXED = {aten.index, aten.index_put, aten.index_put_, aten._index_put_impl_}
COPIES = {aten._to_copy, aten.copy_}


def is_wait(op: Any, args: Any, kwargs: Any) -> bool:
    """Whether the host waits for the device in an operation that is no copy."""
    if op in WAITS:
        return True
    if op is aten.repeat_interleave:  # by a tensor of counts: how long is the result?
        return kwargs.get("output_size") is None
    # Positions are counted where a mask selects them; a single mask with a single value is filled in place instead.
    masks = [i for i in indices(op, args) if i is not None and i.dtype in (torch.bool, torch.uint8)]
    if not masks:
        return False
    fills = op is not aten.index and args[2].numel() == 1 and len(masks) == 1
    return not fills


def indices(op: Any, args: Any) -> list[Tensor | None]:
    """The index tensors of an indexed read or write."""
    return list(args[1]) if op in INDEXED else []


def check_indices(op: Any, args: Any) -> None:
    """Indices of one device do not fit a tensor on another."""
    place = args[0].device
    if any(isinstance(i, DeviceTensor) and i.device != place for i in indices(op, args)):
        raise RuntimeError(f"indices should be either on cpu or on the same device as the indexed tensor ({place})")


def check_meeting(func: Any, tensors: Iterable[Tensor]) -> torch.device | None:
    """The device of these tensors (None: the CPU); raises where two devices meet, as torch does for CUDA.

    A tensor of no dimensions on the CPU is a number, and indices may come from the CPU.
    """
    places = dict.fromkeys(t.device for t in tensors if isinstance(t, DeviceTensor))
    strangers = [t for t in tensors if not isinstance(t, DeviceTensor) and t.dim() > 0]
    if places and strangers:
        places |= dict.fromkeys(t.device for t in strangers)
    if len(places) > 1:
        names = " and ".join(str(place) for place in places)
        raise RuntimeError(
            f"Expected all tensors to be on the same device, but found at least two devices, {names}! ({func})"
        )
    return next((place for place in places if place.type != "cpu"), None)
