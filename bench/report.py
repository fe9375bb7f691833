"""One command for a machine that has a GPU: what is right there, what waits, and what is how fast; in two files to send back.

    python -m bench report                      writes scone-report.json and scone-report.md, in less than ten minutes
    python -m bench report --out runs/a100      runs/a100.json and runs/a100.md
    python -m bench report --only waits         one part (may be repeated)

The Markdown file begins with PASS, or with what failed. No part can end the report: one that breaks off is a failure, and
one whose time is over says what it left out. Without a GPU everything is rehearsed on a make-believe device, in small.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path

import scone_kernels
from bench.gpu import decoding, ops, timings, workers
from bench.gpu.part import Found, run
from bench.machine import facts
from bench.meter import device, make_believe, on_a_device
from bench.tables import markdown

PARTS = {  # the part, its seconds at most, and whether a rehearsal interprets kernels
    "correctness": (ops.correctness, 90, True),
    "determinism": (ops.determinism, 30, True),
    "draws": (ops.draws, 20, True),
    "hogwild": (workers.hogwild, 60, False),
    "tasks": (decoding.tasks, 120, False),
    "waits": (decoding.waits, 60, False),
    "timings": (timings.timings, 150, False),
}


def main(argv: list[str]) -> int:
    """Write the files, and say where they are; 1 if anything failed."""
    parser = argparse.ArgumentParser(prog="python -m bench report", description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("scone-report"), help="the files' name, without an ending")
    parser.add_argument("--only", choices=PARTS, action="append", help="only this part (may be repeated)")
    options = parser.parse_args(argv)
    if (code := on_a_device(["report", *argv])) is not None:
        return code
    with device():
        machine, status = facts(), str(scone_kernels.status())
    found: dict[str, Found] = {}
    for name in options.only or PARTS:
        part, seconds, interpret = PARTS[name]
        found[name] = run(part, seconds, interpret=interpret)
        print(f"{name}: {len(found[name].failures)} failures, {found[name].seconds:.0f} s", flush=True)
    json_file, page = options.out.with_suffix(".json"), options.out.with_suffix(".md")
    report = {
        "passed": not any(part.failures for part in found.values()),
        "rehearsal": make_believe(),
        "machine": machine,
        "status": status.splitlines(),
        "parts": {name: asdict(part) for name, part in found.items()},
    }
    json_file.parent.mkdir(parents=True, exist_ok=True)
    json_file.write_text(json.dumps(report, indent=1, default=str) + "\n")
    page.write_text(as_page(machine, status, found))
    print(f"{verdict(found)}\n{json_file} and {page}")
    return 0 if report["passed"] else 1


def verdict(found: dict[str, Found]) -> str:
    """PASS, or which parts failed."""
    failed = [name for name, part in found.items() if part.failures]
    if failed:
        return f"FAILED: {', '.join(failed)}"
    return "PASS, as a rehearsal on a make-believe device" if make_believe() else "PASS"


def as_page(machine: dict[str, object], status: str, found: dict[str, Found]) -> str:
    """The report in Markdown: the verdict, every failure, the machine, and each part's tables."""
    lines = [f"# {verdict(found)}", ""]
    lines += [f"- {name}: {failure}" for name, part in found.items() for failure in part.failures]
    lines += ["", ", ".join(f"{name} {value}" for name, value in machine.items() if value is not None), ""]
    lines += ["```", status, "```", ""]
    for name, part in found.items():
        lines += [f"## {name}, {part.seconds:.0f} s", "", *(f"{note}\n" for note in part.notes)]
        lines += [f"### {table.title}\n\n{markdown(table.header, table.rows)}" for table in part.tables]
    return "\n".join(lines) + "\n"
