"""torch.cuda by name: streams, events and the questions that are asked of a device."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch

from tests.makebelieve.graphs import graph_classes

if TYPE_CHECKING:
    from tests.makebelieve.accelerator import Accelerator

DEVICES = 2
NAME = "make-believe"


def stand_ins(accelerator: Accelerator) -> list[tuple[Any, str, Any]]:
    """(owner, name, what takes its place) for all that is asked of `torch.cuda`."""
    local = threading.local()

    def device_index(device: Any = None) -> int:
        if device is None or device == "cuda":
            return getattr(local, "index", 0)
        return device if isinstance(device, int) else torch.device(device).index or 0

    def exchange(index: int) -> int:
        before = getattr(local, "index", 0)
        if index >= 0:
            local.index = index
        return before

    class Event:
        """A moment on a stream: everything is done at once, so that a moment has passed when it is recorded."""

        def __init__(self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False) -> None:
            self.at: float | None = None

        def record(self, stream: Any = None) -> None:
            self.at = time.perf_counter()

        def wait(self, stream: Any = None) -> None:
            """A stream waits, the host does not."""

        def query(self) -> bool:
            return True

        def synchronize(self) -> None:
            accelerator.wait("Event.synchronize")

        def elapsed_time(self, end: Event) -> float:
            if self.at is None or end.at is None:
                raise RuntimeError("Both events must be recorded before calculating elapsed time.")
            return 1e3 * (end.at - self.at)

    class Stream:
        """A queue that is always empty."""

        def __init__(self, device: Any = None, priority: int = 0) -> None:
            self.device = torch.device("cuda", device_index(device))
            self.device_index = self.device.index
            self.cuda_stream = id(self)

        def wait_stream(self, stream: Any) -> None:
            """A stream waits, the host does not."""

        def wait_event(self, event: Any) -> None:
            """The same for an event."""

        def record_event(self, event: Any = None) -> Event:
            event = event or Event()
            event.record(self)
            return event

        def query(self) -> bool:
            return True

        def synchronize(self) -> None:
            accelerator.wait("Stream.synchronize")

    defaults = {index: Stream(index) for index in range(DEVICES)}

    def current_stream(device: Any = None) -> Stream:
        return getattr(local, "streams", {}).get(device_index(device), defaults[device_index(device)])

    @contextlib.contextmanager
    def stream(own: Stream | None) -> Iterator[None]:
        before = getattr(local, "streams", {})
        local.streams = before if own is None else {**before, own.device_index: own}
        try:
            yield
        finally:
            local.streams = before

    properties = SimpleNamespace(
        name=NAME, major=9, minor=0, total_memory=80 << 30, multi_processor_count=132, L2_cache_size=50 << 20
    )
    graph, capture = graph_classes(accelerator)
    found: dict[str, Any] = {
        "is_available": lambda: True,
        "is_initialized": lambda: False,  # seeds of a generator that is not there are kept for later
        "is_bf16_supported": lambda including_emulation=True: True,
        "_lazy_init": lambda: None,
        "device_count": lambda: DEVICES,
        "current_device": lambda: device_index(),
        "_exchange_device": exchange,
        "_maybe_exchange_device": exchange,
        "set_device": lambda device: exchange(device_index(device)),
        "get_device_name": lambda device=None: NAME,
        "get_device_capability": lambda device=None: (9, 0),
        "get_device_properties": lambda device=None: properties,
        "synchronize": lambda device=None: accelerator.wait("synchronize"),
        "Event": Event,
        "Stream": Stream,
        "current_stream": current_stream,
        "default_stream": lambda device=None: defaults[device_index(device)],
        "stream": stream,
        "is_current_stream_capturing": lambda: accelerator.recording is not None,
        "CUDAGraph": graph,
        "graph": capture,
        "mem_get_info": lambda device=None: (80 << 30, 80 << 30),
        "empty_cache": lambda: None,
        **dict.fromkeys(("memory_allocated", "max_memory_allocated", "memory_reserved"), lambda device=None: 0),
        "reset_peak_memory_stats": lambda device=None: None,
    }
    return [(torch.cuda, name, value) for name, value in found.items()]
