"""Every op on the GPU: right against float64, the same bits twice, and the CPU's draws bit for bit."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from bench.gpu.part import Deadline, Found, Table, small
from scone_kernels import gibbs_sample_from_logits, likely_rows_from_logits
from scone_kernels.testing import OPS, assert_accurate, make_inputs

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def sizes() -> list[dict[str, int]]:
    """One block and less; odd; of a real vocabulary."""
    if small():
        return [{"rows": 3, "vocabulary": 127, "width": 17}]
    return [
        {"rows": 1, "vocabulary": 1, "width": 1},
        {"rows": 37, "vocabulary": 5003, "width": 96},
        {"rows": 130, "vocabulary": 50257, "width": 768},
    ]


def correctness(deadline: Deadline) -> Found:
    """Errors against float64, at most twice those of torch in the same dtype."""
    found, rows = Found(), []
    cases = [(op, dtype, size) for size in sizes() for op in OPS for dtype in DTYPES]
    for op, dtype, size in deadline.within(cases, found):
        inputs = make_inputs(op, **size, dtype=dtype, device="cuda")
        verdict = "right"
        try:
            assert_accurate(inputs.run(), inputs)
        except Exception as error:
            verdict = str(error).splitlines()[0][:200]
            found.failures.append(f"{op} {dtype} {size}: {verdict}")
        rows.append([op, str(dtype).removeprefix("torch."), _named(size), verdict])
    found.tables.append(Table("Against float64", ["op", "dtype", "size", ""], rows))
    return found


def determinism(deadline: Deadline) -> Found:
    """Three runs, and a run on the first rows alone, give the same bits."""
    found, rows = Found(), []
    for op in deadline.within(OPS, found):
        inputs = make_inputs(op, **sizes()[-1], device="cuda")
        runs = [_bits(inputs.run()) for _ in range(3)]
        same = all(runs[0] == other for other in runs[1:])
        found.check(same, f"{op}: three runs differ")
        rows.append([op, "the same" if same else "different"])
    found.tables.append(Table("Three runs, bit for bit", ["op", ""], rows))
    return found


def draws(deadline: Deadline) -> Found:
    """From the same logits, seeds and counters the GPU draws the tokens that the CPU draws."""
    found, rows = Found(), []
    count, vocabulary = (5, 300) if small() else (2000, 50257)
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(count, vocabulary, generator=generator)
    seed = torch.randint(-(2**62), 2**62, (count,), generator=generator)
    options: dict[str, Any] = {"seed": seed, "counter": torch.arange(count)}
    for name, draw in (
        ("gibbs_sample_from_logits", lambda x, **given: gibbs_sample_from_logits(x, **given).tokens),
        ("likely_rows_from_logits", lambda x, **given: likely_rows_from_logits(x, among=10, **given).drawn),
    ):
        expected = draw(logits, **options)
        drawn = draw(logits.cuda(), **{key: value.cuda() for key, value in options.items()}).cpu()
        different = int((drawn != expected).sum())
        found.check(not different, f"{name}: {different} of {count} draws are not the CPU's")
        rows.append([name, count, different])
    found.tables.append(Table("Draws of the GPU and of the CPU", ["op", "draws", "that differ"], rows))
    return found


def _named(size: dict[str, int]) -> str:
    return " × ".join(str(value) for value in size.values())


def _bits(value: Any) -> list[bytes]:
    tensors = [value] if isinstance(value, Tensor) else [t for t in _flat(value) if isinstance(t, Tensor)]
    return [t.cpu().contiguous().view(torch.uint8).numpy().tobytes() for t in tensors]


def _flat(value: Any) -> list[Any]:
    return [leaf for part in value for leaf in (_flat(part) if isinstance(part, list | tuple) else [part])]
