"""`scone models`: the small models that come with pip, from where, under which licence, and what they score."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

from rich.table import Table

from scone.cli.console import out
from scone.errors import InputError

if TYPE_CHECKING:
    from scone.embedded import Installed


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `scone models`."""
    parser.add_argument("--json", action="store_true", help="one JSON object a line instead of a list")
    parser.add_argument("--fetch", choices=["gemma-3-270m"], help="show its terms, and download it if you accept them")
    parser.add_argument("--accept-terms", action="store_true", help="you have read them: do not ask")


def run(args: argparse.Namespace) -> None:
    """One paragraph for each model; or fetch one."""
    if args.fetch:
        _fetch(accepted=args.accept_terms)
        return
    from scone.embedded import installed

    console = out()
    for model in installed():
        if args.json:
            console.out(json.dumps({**asdict(model), "path": str(model.path) if model.path else None}))
        else:
            console.print(_paragraph(model), "")


def _fetch(*, accepted: bool) -> None:
    from scone.embedded import gemma

    console = out()
    console.print(gemma.TERMS, "")
    if not accepted and not _agrees():
        raise InputError("--accept-terms must be given, or the question answered with yes: nothing was downloaded")
    console.print(f"{gemma.fetch()}", f"use it as lm='embedded:{gemma.NAME}', or --lm embedded:{gemma.NAME}", sep="\n")


def _agrees() -> bool:
    return sys.stdin.isatty() and input("Do you accept them? (yes/no) ").strip().lower() == "yes"


def _paragraph(model: Installed) -> Table:
    table = Table(title=f"[bold]{model.name}[/]", title_justify="left", title_style="", box=None, show_header=False)
    table.add_column(width=8, style="dim")
    table.add_column(overflow="fold")
    table.add_row("what", model.role)
    table.add_row("from", model.source)
    if model.path is None:
        table.add_row("missing", f"[yellow]{model.command}[/]")
        return table
    table.add_row("licence", model.licence)
    table.add_row("size", f"{model.size / 1e6:.1f} MB")
    if model.scores:
        table.add_row("scores", "\n".join(f"{name}: {value:.3g}" for name, value in model.scores.items()))
    return table
