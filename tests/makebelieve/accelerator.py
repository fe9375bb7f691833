"""The device itself: switches torch over to make-believe CUDA, and runs every operation under its rules."""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any, ClassVar
from unittest import mock

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

import scone_kernels
from tests.makebelieve import cuda, hogwild, rules
from tests.makebelieve.graphs import Recording
from tests.makebelieve.tally import Tally
from tests.makebelieve.tensor import DeviceTensor, unwrapped

aten = torch.ops.aten


class Accelerator:
    """While it is entered, `cuda:0` and `cuda:1` exist. One at a time.

    `tally` counts. `recording` is what a CUDA graph captures at the moment, or None. With `interpret` our Triton kernels
    run in the interpreter, which is slow; without, they are launched and counted but not run, and the result of the
    operation is the CPU's.
    """

    active: ClassVar[Accelerator | None] = None

    def __init__(self, *, interpret: bool = True) -> None:
        self.interpret = interpret
        self.tally = Tally()
        self.recording: Recording | None = None
        self._pending: list[tuple[Tensor, Tensor]] = []  # copies to the host that nobody has waited for
        self._pinned: weakref.WeakSet[Any] = weakref.WeakSet()  # untyped storages
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Accelerator:
        if Accelerator.active is not None:
            raise RuntimeError("a make-believe device is on already")
        enter = self._stack.enter_context
        before = torch._C._only_lift_cpu_tensors()
        self._stack.callback(torch._C._set_only_lift_cpu_tensors, before)
        torch._C._set_only_lift_cpu_tensors(True)  # `torch.tensor(..., device="cuda")` is a copy that the mode sees
        # `module.to` puts new parameters in the place of the old, which a tensor of another type cannot become.
        enter(mock.patch.object(torch.__future__, "_overwrite_module_params_on_conversion", True))
        for owner, name, stand_in in cuda.stand_ins(self):
            enter(mock.patch.object(owner, name, stand_in, create=True))
        enter(mock.patch.object(threading.Thread, "run", _with_mode(threading.Thread.run)))
        if scone_kernels.status().cpu.live:  # the extension has the ops' schemas
            enter(hogwild.on_device_tensors(self))
        with contextlib.suppress(ImportError):
            from tests.makebelieve import interpreter

            enter(interpreter.on_device_tensors(self))
        Accelerator.active = self
        self._stack.callback(setattr, Accelerator, "active", None)
        enter(_Mode())
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()

    @contextlib.contextmanager
    def counting(self) -> Iterator[Tally]:
        """A tally of what happens within, apart from the device's own."""
        before, self.tally = self.tally, Tally()
        try:
            yield self.tally
        finally:
            self.tally = before

    def wait(self, what: str) -> None:
        """The host waits: all copies to it have arrived afterwards."""
        if self.recording is not None:
            raise RuntimeError(f"operation not permitted when stream is capturing: {what} waits for the device")
        self.tally.add("wait", what)
        pending, self._pending = self._pending, []
        for there, value in pending:
            there.copy_(value)

    def run(self, func: Any, args: Any, kwargs: Any) -> Any:
        """One operation of torch, as the dispatcher hands it over."""
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        wanted = kwargs.get("device")
        to_cuda = wanted is not None and torch.device(wanted).type == "cuda"
        if not to_cuda and not any(isinstance(t, DeviceTensor) for t in tensors):
            return self._on_host(func, args, kwargs)
        op = func.overloadpacket
        if op in rules.COPIES:
            return self._copy(func, args, kwargs)
        if func.namespace == "scone_kernels":
            rules.check_meeting(func, tensors)
            return self._ours(func, args)
        place = rules.check_meeting(func, [t for t in tensors if not any(t is i for i in rules.indices(op, args))])
        if op in rules.INDEXED:
            rules.check_indices(op, args)
        for index in rules.indices(op, args):
            if index is not None and not isinstance(index, DeviceTensor):
                self._sent(f"index of {func}", waits=True)
        if rules.is_wait(op, args, kwargs):
            self.tally.launch(str(func))
            self.wait(str(func))
        elif op not in rules.FREE and not func.is_view:
            self.tally.launch(str(func))
        return self._compute(func, args, kwargs, _indexed(torch.device(wanted)) if to_cuda else place)

    def _compute(self, func: Any, args: Any, kwargs: Any, place: torch.device | None) -> Any:
        """On the CPU's data; the result is on `place`, unless the operation was asked for a result elsewhere."""
        wanted = kwargs.get("device")
        if wanted is not None:
            place = _indexed(torch.device(wanted)) if torch.device(wanted).type == "cuda" else None
            kwargs = {**kwargs, "device": torch.device("cpu")}
        kwargs.pop("pin_memory", None)
        inner_args, inner_kwargs = unwrapped((args, kwargs))
        if func.overloadpacket in (aten._softmax, aten._log_softmax) and inner_args[2]:  # in float32: CUDA's own
            inner_args = (inner_args[0].float(), inner_args[1], False)
        found = func(*inner_args, **inner_kwargs)
        if self.recording is not None:
            self.recording.add(lambda: func(*inner_args, **inner_kwargs), found, in_place=func._schema.is_mutable)
        outer = {id(t.inner): t for t in tree_leaves((args, kwargs)) if isinstance(t, DeviceTensor)}
        if place is None:
            return found
        return tree_map_only(Tensor, lambda t: outer.get(id(t)) if id(t) in outer else DeviceTensor(t, place), found)

    def _ours(self, func: Any, args: Any) -> Any:
        """An operation of this project: what it does for CUDA tensors, which launches what it launches."""
        with _Mode():
            found = func.redispatch(torch._C.DispatchKeySet(torch._C.DispatchKey.CUDA), *args)
        if self.interpret or func.overloadpacket.__name__ in hogwild.OPS:
            return found
        place = next(leaf.device for leaf in tree_leaves(args) if isinstance(leaf, DeviceTensor))
        return tree_map_only(Tensor, lambda tensor: DeviceTensor(tensor, place), func(*unwrapped(args)))

    def _on_host(self, func: Any, args: Any, kwargs: Any) -> Any:
        op = func.overloadpacket
        if op is aten._pin_memory or kwargs.pop("pin_memory", None):
            if self.recording is not None:
                raise RuntimeError("operation not permitted when stream is capturing: memory of the host is pinned")
            made = args[0].clone() if op is aten._pin_memory else func(*args, **kwargs)
            self._pinned.add(made.untyped_storage())
            return made
        if op is aten.is_pinned:
            return self._is_pinned(args[0])
        return func(*args, **kwargs)

    def _is_pinned(self, tensor: Tensor) -> bool:
        return any(storage.data_ptr() == tensor.untyped_storage().data_ptr() for storage in list(self._pinned))

    def _sent(self, what: str, *, waits: bool) -> None:
        """Something goes to the device; memory that is not pinned is copied under the host's eyes."""
        if self.recording is not None:
            raise RuntimeError(f"operation not permitted when stream is capturing: {what} comes from the host")
        self.tally.add("to device", what)
        if waits:
            self.wait(what)

    def _copy(self, func: Any, args: Any, kwargs: Any) -> Any:
        if func.overloadpacket is aten._to_copy:
            return self._to_copy(func, args[0], kwargs)
        target, source = args[0], args[1]
        no_wait = bool(args[2]) if len(args) > 2 else bool(kwargs.get("non_blocking"))
        if isinstance(target, DeviceTensor):
            if not isinstance(source, DeviceTensor) and source.dim():
                self._sent("copy_", waits=not (no_wait and self._is_pinned(source)))
            else:
                self.tally.launch("copy_")
            self._compute(func, args, kwargs, target.device)
            return target
        self._received(target, source.inner, waits=not (no_wait and self._is_pinned(target)))
        return target

    def _to_copy(self, func: Any, source: Tensor, kwargs: Any) -> Any:
        no_wait = bool(kwargs.get("non_blocking"))
        wanted = torch.device(kwargs["device"]) if kwargs.get("device") is not None else source.device
        rest = {name: value for name, value in kwargs.items() if name not in ("device", "non_blocking", "pin_memory")}
        if not isinstance(source, DeviceTensor):
            self._sent("to", waits=not (no_wait and self._is_pinned(source)))
            return DeviceTensor(func(source, **rest), _indexed(wanted))
        if wanted.type == "cuda":
            self.tally.launch("to")
            return self._compute(func, (source,), rest, _indexed(wanted))
        there = torch.empty_like(source.inner, dtype=rest.get("dtype") or source.dtype)
        if no_wait:  # torch gives it pinned memory
            self._pinned.add(there.untyped_storage())
        self._received(there, source.inner, waits=not no_wait)
        return there

    def _received(self, there: Tensor, value: Tensor, *, waits: bool) -> None:
        """Something comes to the host; until the host waits, what it finds there is not to be relied on."""
        if self.recording is not None:
            raise RuntimeError("operation not permitted when stream is capturing: a copy to the host")
        self.tally.add("to host", "to")
        self._pending.append((there, value.clone()))
        if waits:
            self.wait("to")
        else:
            _poison(there, value)


class _Mode(TorchDispatchMode):
    """Sees the operations without a device tensor among their arguments, such as `torch.zeros(3, device="cuda")`."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # which would import torch.compile, for seconds

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert Accelerator.active is not None
        return Accelerator.active.run(func, args, dict(kwargs or {}))


def _with_mode(run: Callable[[threading.Thread], None]) -> Callable[[threading.Thread], None]:
    """Threads do not inherit modes."""

    def run_with_mode(self: threading.Thread) -> None:
        if Accelerator.active is None:
            run(self)
        else:
            with _Mode():
                run(self)

    return run_with_mode


def _indexed(device: torch.device) -> torch.device:
    return device if device.index is not None else torch.device("cuda", torch.cuda.current_device())


def _poison(tensor: Tensor, value: Tensor) -> None:
    if tensor.dtype is torch.bool:
        tensor.copy_(~value)
    else:
        tensor.fill_(torch.nan if tensor.is_floating_point() else torch.iinfo(tensor.dtype).max)
