"""`scone report`: tables, plots and texts of a run."""

from __future__ import annotations

import argparse
from pathlib import Path

from scone.evaluate.report import write_report

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `scone report`."""
    parser.add_argument("folder", type=Path, help="folder of a run of `scone evaluate`")


def run(args: argparse.Namespace) -> int:
    """Write report.md and report.html, and print the first."""
    markdown, page = write_report(args.folder)
    print(markdown.read_text(encoding="utf-8"))
    print(f"{markdown}\n{page}")
    return 0
