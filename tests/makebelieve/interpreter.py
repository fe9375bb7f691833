"""Triton's interpreter on device tensors: a launch is counted, and the kernel reads and writes their data where it is."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from unittest import mock

from triton.runtime.interpreter import GridExecutor

from tests.makebelieve.tensor import DeviceTensor, unwrapped

if TYPE_CHECKING:
    from tests.makebelieve.accelerator import Accelerator


@contextlib.contextmanager
def on_device_tensors(accelerator: Accelerator) -> Iterator[None]:
    """While this lasts, kernels can be launched with device tensors, and with nothing else."""
    run = GridExecutor.__call__

    def launch(self: Any, *args: Any, **kwargs: Any) -> None:
        given = [*args, *kwargs.values()]
        if any(hasattr(arg, "data_ptr") and not isinstance(arg, DeviceTensor) for arg in given):
            raise ValueError("Pointer argument cannot be accessed from Triton (cpu tensor?)")
        accelerator.tally.launch(self.fn.__name__)
        if not accelerator.interpret:
            return
        own_args, own_kwargs = unwrapped((args, kwargs))
        run(self, *own_args, **own_kwargs)
        if accelerator.recording is not None:
            accelerator.recording.launch(lambda: run(self, *own_args, **own_kwargs))

    with mock.patch.object(GridExecutor, "__call__", launch), _without_copies():
        yield


@contextlib.contextmanager
def _without_copies() -> Iterator[None]:
    """The interpreter copies its arguments to the host and back: on the CPU that is where they are."""

    def as_they_are(self: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
        return args, kwargs

    with (
        mock.patch.object(GridExecutor, "_init_args_hst", as_they_are),
        mock.patch.object(GridExecutor, "_restore_args_dev", lambda *given: None),
    ):
        yield
