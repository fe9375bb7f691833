"""Ahead-of-time compilation of every shipped Triton kernel, for GPUs that need not be there.

    rows = compile_all()     # one Resources per kernel and target

Results are kept in ~/.cache/scone_kernels/aot, keyed by the kernels' sources, the target and triton's version.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import io
import json
import multiprocessing
import os
import re
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType

# Shared memory that one block may use, in bytes.
TARGETS = {
    "sm_80": 166912,
    "sm_86": 101376,
    "sm_89": 101376,
    "sm_90": 232448,
    "sm_100": 232448,
    "sm_120": 101376,
    "gfx942": 65536,
}
MODULES = ("expected_embedding", "expected_dot", "gibbs_sample", "likely_rows", "taylor_estimate")


@dataclass(frozen=True)
class Resources:
    """What one kernel needs on one target: registers per thread, bytes spilled, bytes of shared memory.

    And of its machine code, how many instructions there are of each kind that multiplies matrices, and how many global
    loads that bring each thread so many bytes. `operands` are the types that the source multiplies matrices of.
    """

    kernel: str
    target: str
    registers: int
    spills: int
    shared: int
    matrix: dict[str, int]
    loads: dict[str, int]
    operands: list[str]

    @property
    def fits(self) -> bool:
        """No spills, and no more shared memory than the target has."""
        return self.spills == 0 and self.shared <= TARGETS[self.target]


def variants(target: str) -> list:
    """Every shipped kernel in every configuration that is shipped for a target; as many for each, in the same order."""
    return [variant for name in MODULES for variant in module_of(name).variants(target)]


def module_of(op: str) -> ModuleType:
    """The module with the Triton kernel of an op."""
    return importlib.import_module(f".ops.{op}.kernel", __package__)


def compile_all(targets: Iterable[str] = TARGETS) -> list[Resources]:
    """Compile every variant for every target."""
    return compile_jobs([(index, target) for target in targets for index in range(len(variants(target)))])


def compile_jobs(jobs: list[tuple[int, str]]) -> list[Resources]:
    """Compile pairs of (index of the variant, target) in as many processes as there are cores."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(os.cpu_count(), mp_context=context) as pool:
        return list(pool.map(_compile_job, jobs, chunksize=4))


def _compile_job(job: tuple[int, str]) -> Resources:
    return compile_variant(variants(job[1])[job[0]], job[1])


def compile_variant(variant, target: str) -> Resources:
    """Compile one variant for one target, or recall what the last compilation of the same source said."""
    cached = Path.home() / ".cache" / "scone_kernels" / "aot" / f"{_key(variant, target)}.json"
    if cached.exists():
        return Resources(**json.loads(cached.read_text()))
    found = _compile(variant, target)
    cached.parent.mkdir(parents=True, exist_ok=True)
    partial = cached.with_suffix(f".{os.getpid()}")
    partial.write_text(json.dumps(asdict(found)))
    partial.replace(cached)
    return found


def _key(variant, target: str) -> str:
    import triton

    sources = [path.read_text() for path in sorted(Path(__file__).parent.glob("ops/**/*.py"))]
    parts = [triton.__version__, target, variant.name, str(variant), *sources, Path(__file__).read_text()]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:24]


def _compile(variant, target: str) -> Resources:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    gpu = GPUTarget("hip", target, 64) if target.startswith("gfx") else GPUTarget("cuda", int(target[3:]), 32)
    # Pointers, strides and widths are multiples of 16 in real models; rows and tokens are not.
    aligned = [
        index
        for index, (name, kind) in enumerate(variant.signature.items())
        if kind.startswith("*") or "_stride_" in name or name in ("H", "D")
    ]
    attributes = {(index,): [["tt.divisibility", 16]] for index in aligned if _dynamic(variant, index)}
    source = ASTSource(variant.kernel, dict(variant.signature), dict(variant.constants), attributes)
    triton.knobs.compilation.always_compile = True
    triton.knobs.nvidia.dump_ptxas_log = True
    log = io.StringIO()
    with contextlib.redirect_stdout(log):
        compiled = triton.compile(source, target=gpu, options=dict(variant.options))
    shared = int(compiled.metadata.shared)
    if gpu.backend == "hip":
        registers = _number(r"\.vgpr_count:\s+(\d+)", compiled.asm["amdgcn"])
        spills = _number(r"\.vgpr_spill_count:\s+(\d+)", compiled.asm["amdgcn"])
    else:
        registers = _number(r"Used (\d+) registers", log.getvalue())
        spills = _number(r"(\d+) bytes spill stores", log.getvalue())
    code = compiled.asm["amdgcn"] if gpu.backend == "hip" else compiled.asm["sass"]
    operands = sorted(set(re.findall(r"tt\.dot .*?: tensor<\d+x\d+x(\w+)>", compiled.asm["ttir"])))
    return Resources(variant.name, target, registers, spills, shared, _matrix(code), _loads(code), operands)


def _matrix(code: str) -> dict[str, int]:
    """Instructions that multiply matrices: HMMA (Ampere), HGMMA (Hopper, of a warp group), UTCHMMA (Blackwell), v_mfma."""
    return dict(Counter(re.findall(r"\b(HMMA|HGMMA|UTC\w*MMA|v_mfma)", code)))


def _loads(code: str) -> dict[str, int]:
    """Global loads by the bytes that each brings to a thread, be it to registers or to shared memory."""
    sizes: Counter[str] = Counter()
    for bits in re.findall(r"\bLDG(?:STS)?\.E(?:\.\w+)*?(?:\.(U8|U16|64|128))?(?=\s)", code):
        sizes[{"U8": "1", "U16": "2", "": "4", "64": "8", "128": "16"}[bits]] += 1
    widths = {"ubyte": "1", "ushort": "2", "dword": "4", "dwordx2": "8", "dwordx3": "12", "dwordx4": "16"}
    for name in re.findall(r"\b(?:global|buffer)_load_(?:lds_)?(\w+?)(?=\s)", code):
        sizes[widths.get(name, name)] += 1
    return dict(sizes)


def _dynamic(variant, index: int) -> bool:
    return list(variant.signature.values())[index] != "constexpr"


def _number(pattern: str, text: str) -> int:
    """The largest number that `pattern` finds; its absence is an error, not a zero."""
    found = [int(value) for value in re.findall(pattern, text)]
    if not found:
        raise RuntimeError(f"the compiler's output has no match for {pattern!r}")
    return max(found)
