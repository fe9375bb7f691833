"""CUDA graphs: what is captured can be run again, on the same memory, without Python.

While a graph is captured the host may not wait, nothing may be copied between host and device, and every operation's
result lies in memory that belongs to the graph. Replaying computes everything anew from the memory as it is then: an
operation that looked at a value on the host would repeat what it saw while it was captured.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from torch import Tensor
from torch.utils._pytree import tree_leaves

if TYPE_CHECKING:
    from tests.makebelieve.accelerator import Accelerator


class Recording:
    """The operations of a graph, in order, with the memory of their results."""

    def __init__(self) -> None:
        self.steps: list[Callable[[], None]] = []
        self.allocated = 0  # results that lie in memory of their own
        self._own: set[int] = set()

    def add(self, compute: Callable[[], Any], found: Any, *, in_place: bool) -> None:
        """An operation that has been run once, and what it returned."""
        results = [leaf for leaf in tree_leaves(found) if isinstance(leaf, Tensor)]
        for result in results:
            storage = result.untyped_storage().data_ptr()
            if storage not in self._own:
                self._own.add(storage)
                self.allocated += 1

        def again() -> None:
            anew = [leaf for leaf in tree_leaves(compute()) if isinstance(leaf, Tensor)]
            for result, new in zip(results, anew, strict=True):
                if result.shape != new.shape:
                    raise RuntimeError(f"a shape hangs on values: {tuple(result.shape)}, then {tuple(new.shape)}")
                if not in_place and result.data_ptr() != new.data_ptr():
                    result.copy_(new)

        self.steps.append(again)

    def launch(self, run: Callable[[], None]) -> None:
        """A kernel that writes to memory which it was given."""
        self.steps.append(run)


def graph_classes(accelerator: Accelerator) -> tuple[type, Any]:
    """`torch.cuda.CUDAGraph` and `torch.cuda.graph`."""

    class CUDAGraph:
        """A captured graph."""

        def __init__(self, keep_graph: bool = False) -> None:
            self.recording = Recording()

        def replay(self) -> None:
            """Run it again: a single launch."""
            accelerator.tally.launch("graph")
            for step in self.recording.steps:
                step()

        def reset(self) -> None:
            self.recording = Recording()

    @contextlib.contextmanager
    def graph(cuda_graph: CUDAGraph, pool: Any = None, stream: Any = None, **others: Any) -> Iterator[None]:
        if accelerator.recording is not None:
            raise RuntimeError("a graph is being captured already")
        cuda_graph.recording = accelerator.recording = Recording()
        try:
            yield
        finally:
            accelerator.recording = None

    return CUDAGraph, graph
