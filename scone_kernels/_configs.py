"""With which block sizes and options a Triton kernel is launched: shipped choices, and what was measured on a GPU.

A choice depends on the kernel, the dtype, the GPU and the bucket of rows ("few" or "many"), and on nothing that a clock
says while the program runs: the same call gives the same bits, and no new batch size starts a search. configs/NAME.json
overrides what is shipped in kernel.py, where NAME is an architecture (gfx942) or, before that, the name of a GPU as
torch has it (NVIDIA_H100_80GB_HBM3).
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

FEW = 16
"""The most rows that are few: those of one block, whose time is that of reading the head's weight once."""
BUCKETS = ("few", "many")
FOLDER = Path(__file__).with_name("configs")


@dataclass(frozen=True)
class Config:
    """A shipped configuration: block sizes and launch options.

    `exact` forbids fused multiply-adds, so that the noise has the same bits as on the CPU.
    """

    blocks: Mapping[str, int]
    num_warps: int
    num_stages: int
    exact: bool = False

    @property
    def options(self) -> dict[str, Any]:
        """What Triton's compiler is told."""
        return {"num_warps": self.num_warps, "num_stages": self.num_stages, "enable_fp_fusion": not self.exact}


@dataclass(frozen=True)
class Shipped:
    """The configurations of one kernel for one dtype; `few` is None where few rows are launched as many are."""

    kernel: str
    many: Config
    few: Config | None = None

    def choose(self, rows: int, dtype: torch.dtype, device: torch.device) -> Config:
        """The configuration of a launch with that many rows."""
        return self.of(bucket(rows), dtype, names_of(device))

    def of(self, bucket: str, dtype: torch.dtype, names: tuple[str, ...]) -> Config:
        """The configuration of a bucket; of `names` the first that has a file with this entry overrides it."""
        shipped = self.few if bucket == "few" and self.few is not None else self.many
        entry = f"{self.kernel} {str(dtype).removeprefix('torch.')} {bucket}"
        for name in names:
            found = overrides(name).get(entry)
            if found is not None:
                return Config(found["blocks"], found["num_warps"], found["num_stages"], shipped.exact)
        return shipped


def bucket(rows: int) -> str:
    """ "few" or "many"."""
    return "few" if rows <= FEW else "many"


@functools.cache
def overrides(name: str) -> dict[str, Any]:
    """The entries of configs/NAME.json, by kernel, dtype and bucket; none where there is no such file."""
    path = FOLDER / f"{name}.json"
    return json.loads(path.read_text(encoding="utf-8"))["configs"] if path.is_file() else {}


def names_of(device: torch.device) -> tuple[str, ...]:
    """What a GPU's file may be called, the most special first; nothing for the interpreter's CPU tensors."""
    return _gpu_names(device.index) if device.type == "cuda" else ()


@functools.cache
def _gpu_names(index: int | None) -> tuple[str, ...]:
    found = torch.cuda.get_device_properties(torch.cuda.current_device() if index is None else index)
    architecture = getattr(found, "gcnArchName", "") if torch.version.hip else f"sm_{found.major}{found.minor}"
    return re.sub(r"\W+", "_", found.name).strip("_"), architecture.partition(":")[0]
