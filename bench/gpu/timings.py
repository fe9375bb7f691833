"""How fast the ops are: CUDA events around single calls, the L2 cache emptied before each."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

import torch

from bench.cases import make_case, models_of, rows_of
from bench.gpu.part import Deadline, Found, Table, small
from scone_kernels.testing import OPS

TURNS = 20


def timings(deadline: Deadline) -> Found:
    """Each op in float32 and bfloat16 at real sizes, beside plain torch in the same turns."""
    found, rows = Found(), []
    cases = [
        (op, model, count, dtype)
        for dtype in (torch.float32, torch.bfloat16)
        for op in OPS
        for model in models_of(op)
        for count in rows_of(op, model)
    ]
    for op, model, count, dtype in deadline.within(cases[:1] if small() else cases, found):
        rows += _case(op, model, 25 if small() else count, dtype, found)
    header = ["op", "model", "rows", "dtype", "method", "ms, median", "fastest", "slowest"]
    found.tables.append(Table(f"Time of a call with a cold L2, {TURNS} turns", header, rows))
    return found


def _case(op: str, model: str, count: int, dtype: torch.dtype, found: Found) -> list[list[object]]:
    case = make_case(op, model, count, dtype=dtype, device="cuda")
    given = case.rival_arguments()
    methods: dict[str, Callable[[], Any]] = {"scone_kernels": case.inputs.run}
    methods |= {name: _bound(function, given) for name, function in case.plain.items()}
    shown: list[list[object]] = []
    with torch.inference_mode(not small()):
        times: dict[str, list[float]] = {name: [] for name in methods}
        for name, method in list(methods.items()):
            try:
                for _ in range(3):
                    method()
            except Exception as error:  # of a rival: the op has been checked by another part
                found.notes.append(f"{op} {model} {count}, {name}: {type(error).__name__}")
                del times[name]
        for _ in range(2 if small() else TURNS):
            for name in times:
                times[name].append(milliseconds(methods[name]))
    for name, found_times in times.items():
        low, high = min(found_times), max(found_times)
        cells = (statistics.median(found_times), low, high)
        shown.append([op, model, count, str(dtype).removeprefix("torch."), name, *(f"{ms:.3f}" for ms in cells)])
    return shown


def milliseconds(call: Callable[[], Any]) -> float:
    """One call by events, with nothing of it in the L2 cache."""
    _empty_l2()
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    start.record()
    call()
    end.record()
    end.synchronize()
    return start.elapsed_time(end)


def _empty_l2() -> None:
    size = getattr(torch.cuda.get_device_properties(0), "L2_cache_size", 0) or 64 << 20
    torch.empty(1024 if small() else 2 * size, dtype=torch.uint8, device="cuda").zero_()


def _bound(function: Callable[..., Any], given: tuple[Any, ...]) -> Callable[[], Any]:
    return lambda: function(*given)
