"""`scone models`: the small models that come with pip, from where, under which licence, and what they score."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from typing import TYPE_CHECKING

from rich.table import Table

from scone.cli.console import out

if TYPE_CHECKING:
    from scone.embedded import Installed


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `scone models`."""
    parser.add_argument("--json", action="store_true", help="one JSON object a line instead of a list")


def run(args: argparse.Namespace) -> None:
    """One paragraph for each model."""
    from scone.embedded import installed

    console = out()
    for model in installed():
        if args.json:
            console.out(json.dumps({**asdict(model), "path": str(model.path) if model.path else None}))
        else:
            console.print(_paragraph(model), "")


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
