"""HogwildState on device tensors: its CUDA kernels, compiled for the CPU, read and write their data."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tests.hogwild.on_cpu import OnCpu
from tests.makebelieve.tensor import DeviceTensor, unwrapped

if TYPE_CHECKING:
    from tests.makebelieve.accelerator import Accelerator

OPS = {"hogwild_read", "hogwild_write"}


@cache
def _kernels() -> OnCpu:
    return OnCpu()


@contextlib.contextmanager
def on_device_tensors(accelerator: Accelerator) -> Iterator[None]:
    """While this lasts the ops of HogwildState have an implementation for CUDA."""

    def read(words: Tensor) -> tuple[Tensor, ...]:
        accelerator.tally.launch("hogwild_read")
        return tuple(DeviceTensor(found, words.device) for found in _kernels().read(unwrapped(words)))

    def write(words: Tensor, *given: Any) -> Tensor:
        accelerator.tally.launch("hogwild_write")
        return DeviceTensor(_kernels().write(unwrapped(words), *unwrapped(given)), words.device)

    library = torch.library.Library("scone_kernels", "IMPL")
    library.impl("hogwild_read", read, "CUDA")
    library.impl("hogwild_write", write, "CUDA")
    try:
        yield
    finally:
        library._destroy()
