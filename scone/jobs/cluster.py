"""Work spread over a Ray cluster, or over the processes of a Ray that is started here, through Ray Data.

A pool of actors makes what does the work, once each, and Ray replaces an actor that dies: what it was at is done again,
by another, and what it had handed over is not.
"""

from __future__ import annotations

import math
import os
import pickle
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from scone.errors import InputError, SconeError

__all__ = ["Pool"]

T = TypeVar("T")
R = TypeVar("R")

_TASKS_AT_MOST = 2048  # of Ray's, beyond which several pieces share one: each costs the driver memory and a millisecond


@dataclass(frozen=True, kw_only=True)
class Pool:
    """Actors that each hold what they need, and how much of a machine one of them takes."""

    actors: int = 2
    cpus: float = 1
    gpus: float = 0

    def map(
        self, make: Callable[[], Callable[[T], R]], read: Callable[[int], T], pieces: Sequence[int], *, ordered: bool
    ) -> Iterator[R]:
        """`make()(read(i))` for each i of the pieces, in order or as they get done; results are streamed.

        `make`, `read` and what they give must be picklable. `read` runs on this machine, `make()` and its calls anywhere.
        """
        ray = _ray(self.actors * self.cpus)
        context = ray.data.DataContext.get_current()
        context.enable_progress_bars = False
        context.execution_options.preserve_order = ordered
        here = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(
            ray.get_runtime_context().get_node_id(), soft=False
        )
        tasks = min(len(pieces), _TASKS_AT_MOST)
        rows = ray.data.range(len(pieces), override_num_blocks=tasks)
        rows = rows.map(_Read(read, pieces), scheduling_strategy=here, num_cpus=0)
        rows = rows.map(
            _Actor,
            fn_constructor_args=(make,),
            compute=ray.data.ActorPoolStrategy(size=self.actors),
            num_cpus=self.cpus,
            num_gpus=self.gpus,
        )
        for row in rows.iter_rows():
            result = pickle.loads(row["result"])
            if isinstance(result, SconeError):
                raise result
            yield result


class _Read:
    """Fetches a piece of work."""

    def __init__(self, read: Callable[[int], Any], pieces: Sequence[int]) -> None:
        self.read, self.pieces = read, pieces

    def __call__(self, row: dict[str, Any]) -> dict[str, bytes]:
        return {"piece": pickle.dumps(self.read(self.pieces[row["id"]]))}


class _Actor:
    """Does pieces of work, by what it made when it began. What we raise on purpose is a result like others."""

    def __init__(self, make: Callable[[], Callable[[Any], Any]]) -> None:
        self.work = make()

    def __call__(self, row: dict[str, bytes]) -> dict[str, bytes]:
        try:
            result = self.work(pickle.loads(row["piece"]))
        except SconeError as mistake:
            result = mistake
        return {"result": pickle.dumps(result)}


def _ray(cpus: float) -> Any:
    """Ray, connected: to the cluster of RAY_ADDRESS where that is set, else to one that is started here.

    The latter counts enough CPUs for the actors and one for reading, whatever this machine has: Ray only counts them.
    """
    try:
        import ray
        import ray.data
        import ray.util.scheduling_strategies
    except ImportError as missing:
        raise InputError("engine 'ray' needs Ray Data: pip install 'scone[ray]'") from missing
    if not ray.is_initialized():
        local = {} if os.environ.get("RAY_ADDRESS") else {"num_cpus": math.ceil(cpus) + 1}
        ray.init(log_to_driver=False, include_dashboard=False, **local)
    return ray
