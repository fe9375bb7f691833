"""Registers, spills and shared memory of every shipped Triton kernel on every target, without a GPU.

python -m bench resources
python -m bench resources --target sm_90 --target gfx942
"""

from __future__ import annotations

import argparse

from bench.machine import describe
from bench.tables import markdown
from scone_kernels import _aot


def main(argv: list[str]) -> int:
    """Print the table; exit with 1 if a kernel spills or does not fit."""
    parser = argparse.ArgumentParser(prog="python -m bench resources", description=__doc__)
    parser.add_argument("--target", choices=_aot.TARGETS, action="append", help="only this target (may be repeated)")
    targets = parser.parse_args(argv).target or list(_aot.TARGETS)
    found = {(row.kernel, row.target): row for row in _aot.compile_all(targets)}
    kernels = list(dict.fromkeys(kernel for kernel, _ in found))
    print(f"# Resources of the Triton kernels\n\n{describe()}\n")
    print("A cell is registers per thread / bytes spilled / shared memory in KB, from ptxas -v (AMD: the assembler).\n")
    cells = [[kernel, *(_cell(found[kernel, target]) for target in targets)] for kernel in kernels]
    limits = ["limit", *(f"255 / 0 / {_aot.TARGETS[target] / 1024:.0f}" for target in targets)]
    limits = [limit.replace("255", "512") if name == "gfx942" else limit for limit, name in zip(limits, ["", *targets])]
    print(markdown(["kernel", *targets], [*cells, limits]))
    return 0 if all(row.fits for row in found.values()) else 1


def _cell(row: _aot.Resources) -> str:
    return f"{row.registers} / {row.spills} / {row.shared / 1024:.0f}" + ("" if row.fits else " !")
