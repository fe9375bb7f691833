"""Validation, done once in the public functions: each message names the argument, what was expected and what was given."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

FLOATS = (torch.float32, torch.bfloat16, torch.float16)
PANEL = 48  # rows of a weight that lie side by side in a panel of it: kColumns in csrc/cpu/kernels.h


def floats(name: str, tensor: Tensor, shape: tuple[int | None, ...], device: torch.device) -> None:
    """`tensor` is float32, bfloat16 or float16, lies on `device` and has `shape` (None: any size)."""
    _tensor(name, tensor, shape, device)
    if tensor.dtype not in FLOATS:
        raise TypeError(f"{name} must be float32, bfloat16 or float16, got {tensor.dtype}")


def single(name: str, tensor: Tensor, shape: Sequence[int | None], device: torch.device) -> None:
    """`tensor` is float32, lies on `device` and has `shape`."""
    _tensor(name, tensor, tuple(shape), device)
    if tensor.dtype != torch.float32:
        raise TypeError(f"{name} must be float32, got {tensor.dtype}")


def panels(name: str, tensor: Tensor, weight: Sequence[int], device: torch.device) -> None:
    """`tensor` holds a weight of that shape, (M, K), in panels of 16 bits: (⌈M / 48⌉, K, 48)."""
    _tensor(name, tensor, (-(-weight[0] // PANEL), weight[1], PANEL), device)
    if tensor.dtype not in FLOATS[1:]:
        raise TypeError(f"{name} must be bfloat16 or float16, got {tensor.dtype}")


def indices(name: str, tensor: Tensor, shape: tuple[int | None, ...], device: torch.device) -> None:
    """`tensor` is int64, lies on `device` and has `shape`."""
    _tensor(name, tensor, shape, device)
    if tensor.dtype != torch.int64:
        raise TypeError(f"{name} must be int64, got {tensor.dtype}")


def head(hidden: Tensor, weight: Tensor, bias: Tensor | None, keep: Tensor | None, temperature: float) -> None:
    """The arguments of a head: hidden (N, H), weight (V, H), bias (V,), keep (V,), temperature."""
    device = hidden.device if isinstance(hidden, Tensor) else torch.device("cpu")
    floats("hidden", hidden, (None, None), device)
    floats("weight", weight, (None, hidden.shape[1]), device)
    if weight.dtype != hidden.dtype:
        raise TypeError(f"weight must have the dtype of hidden, {hidden.dtype}, got {weight.dtype}")
    if bias is not None:
        floats("bias", bias, (weight.shape[0],), device)
    vocabulary(weight.shape[0], keep, temperature, device)


def head_in_panels(
    hidden: Tensor, weight: Tensor, width: int, bias: Tensor | None, keep: Tensor | None, temperature: float
) -> None:
    """The same with a weight (V, H) that is given in panels of 16 bits."""
    device = hidden.device if isinstance(hidden, Tensor) else torch.device("cpu")
    floats("hidden", hidden, (None, None), device)
    panels("weight", weight, (width, hidden.shape[1]), device)
    if bias is not None:
        floats("bias", bias, (width,), device)
    vocabulary(width, keep, temperature, device)


def ready_logits(logits: Tensor, keep: Tensor | None, temperature: float) -> None:
    """The arguments that replace a head: logits (N, V), keep (V,), temperature."""
    device = logits.device if isinstance(logits, Tensor) else torch.device("cpu")
    floats("logits", logits, (None, None), device)
    vocabulary(logits.shape[1], keep, temperature, device)


def vocabulary(size: int, keep: Tensor | None, temperature: float, device: torch.device) -> None:
    """A vocabulary of at least one token, its mask and the temperature."""
    if size < 1:
        raise ValueError("the vocabulary must have at least one token, got 0")
    if keep is not None:
        _tensor("keep", keep, (size,), device)
        if keep.dtype != torch.bool:
            raise TypeError(f"keep must be bool, got {keep.dtype}")
    positive("temperature", temperature)


def shown(value: object) -> str:
    """How a message writes a value: an integer may be too long to be written."""
    return "an integer of hundreds of bits" if isinstance(value, int) and abs(value) >= 2**200 else repr(value)


def positive(name: str, value: float) -> None:
    """`value` is a number above 0 that a float can hold."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not number or not 0 < value < 2.0**1023:  # an integer may be larger than every float
        raise ValueError(f"{name} must be a positive finite number, got {shown(value)}")


def count(name: str, value: int, least: int = 1) -> None:
    """`value` is an integer of 64 bits and at least `least`."""
    if isinstance(value, bool) or not isinstance(value, (int, torch.SymInt)):
        raise TypeError(f"{name} must be an int, got {type(value).__name__}")
    if not least <= value < 2**63:
        raise ValueError(f"{name} must be from {least} to 2^63 - 1, got {shown(value)}")


def per_row(name: str, value: int | Tensor, rows: Tensor) -> Tensor:
    """`value` as an int64 tensor (N,). An int of up to 64 bits, signed or not, stands for all rows."""
    if isinstance(value, Tensor):
        indices(name, value, (rows.shape[0],), rows.device)
        return value
    if isinstance(value, bool) or not isinstance(value, (int, torch.SymInt)):
        raise TypeError(f"{name} must be an int or an int64 tensor, got {type(value).__name__}")
    if not -(2**63) <= value < 2**64:
        raise ValueError(f"{name} must fit in 64 bits, got {shown(value)}")
    signed = value - 2**64 if value >= 2**63 else value
    return torch.full((rows.shape[0],), signed, dtype=torch.int64, device=rows.device)


def segment_range(segment: Tensor, sequences: int) -> None:
    """`segment` holds sequence numbers in [0, S). On the CPU only: on a GPU looking would wait for the device.

    The C++ kernels check this themselves, in the pass over `segment` that they make anyway.
    """
    if segment.device.type == "cpu" and segment.numel() and not torch.compiler.is_compiling():
        low, high = (int(value) for value in segment.aminmax())
        if low < 0 or high >= sequences:
            raise ValueError(f"segment must lie in [0, {sequences}), got values from {low} to {high}")


def _tensor(name: str, tensor: Tensor, shape: tuple[int | None, ...], device: torch.device) -> None:
    if not isinstance(tensor, Tensor):
        raise TypeError(f"{name} must be a tensor, got {type(tensor).__name__}")
    if tensor.device != device:
        raise ValueError(f"{name} must be on {device}, got {tensor.device}")
    if tensor.layout is not torch.strided:
        raise TypeError(f"{name} must be a dense tensor, got {tensor.layout}")
    given = tensor.shape
    # No loop where none is needed: small calls feel it.
    if given == shape or len(given) == len(shape) == shape.count(None):
        return
    if len(given) != len(shape) or any(want not in (None, have) for have, want in zip(given, shape)):
        wanted = ", ".join("any" if size is None else str(size) for size in shape) + ("," if len(shape) == 1 else "")
        raise ValueError(f"{name} must have shape ({wanted}), got {tuple(given)}")


def raise_bad_row(bad: Tensor, logits_of_row, others: dict[str, Tensor]) -> None:
    """Explain the first row that `bad` (N,) marks: its logits have no softmax, or another input holds NaN or infinity.

    `logits_of_row` gives the masked logits (V,) of one row; it is called only when there is something to explain.
    """
    if not bool(bad.any()):
        return
    row = int(bad.nonzero()[0])
    logits = logits_of_row(row).float()
    if bool(logits.isnan().any()):
        raise ValueError(f"row {row} has NaN logits, first at token {int(logits.isnan().nonzero()[0])}")
    if bool((logits == -math.inf).all()):
        raise ValueError(f"row {row} has no token to choose from: all its logits are -inf or masked by keep")
    if bool((logits == math.inf).any()):
        raise ValueError(f"row {row} has an infinite logit at token {int((logits == math.inf).nonzero()[0])}")
    for name, tensor in others.items():
        if not bool(tensor.isfinite().all()):
            where = tuple(int(i) for i in (~tensor.isfinite()).nonzero()[0])
            raise ValueError(f"{name} must be finite, got {float(tensor[where])} at {where}")
    raise ValueError(f"row {row} overflows float32")


def wanted(check: bool, tensor: Tensor) -> bool:
    """Whether results are looked at: on request, on the CPU, and not while a graph is traced."""
    return check and tensor.device.type == "cpu" and not torch.compiler.is_compiling()
