"""How texts and their scores look on a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean

import numpy as np
from rich.box import MINIMAL, SIMPLE_HEAD
from rich.console import Group
from rich.markup import escape
from rich.rule import Rule
from rich.table import Table

from scone.cli.writing import CONTROLLED, PLAIN, Written
from scone.evaluate.metrics import corpus_perplexity

__all__ = ["heading", "pair", "summary"]


def heading(title: str) -> Group:
    """A task's title, and what the two columns below it are."""
    columns = _columns()
    columns.add_row(f"[dim]{PLAIN}[/]", f"[dim]{CONTROLLED}[/]")
    return Group(Rule(f"[bold]{escape(title)}[/]", align="left"), columns, "")


def pair(plain: Written, controlled: Written) -> Group:
    """Plain and controlled continuations of one prompt side by side, scores below."""
    both = (plain, controlled)
    columns = _columns()
    columns.add_row(*(escape(_flow(text.continuation)) for text in both))
    for name in plain.scores:
        columns.add_row(*(_scores(text, name) for text in both))
    goal = ", ".join(plain.scores)
    return Group(f"[bold cyan]{escape(_flow(plain.prompt))} …[/] [dim]→ {escape(goal)}[/]", columns, "")


def summary(groups: Mapping[str, Sequence[Written]]) -> Table:
    """Two rows a group, one a method: mean scores, perplexity of the continuations, milliseconds a token.

    A group's name has one or two lines: the second, its goal, stands beside the controlled texts.
    """
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column()
    table.add_column()
    for column in ("verifier", "independent", "perplexity", "ms/token"):
        table.add_column(column, justify="right")
    for group, texts in groups.items():
        name, _, goal = group.partition("\n")
        for method, label in ((PLAIN, name), (CONTROLLED, goal)):
            row = _row([text for text in texts if text.method == method])
            style = "bold" if method == CONTROLLED else ""
            table.add_row(escape(label), method, *row, style=style, end_section=method == CONTROLLED)
    return table


def _columns() -> Table:
    table = Table(box=MINIMAL, show_header=False, show_edge=False, expand=True, pad_edge=False)
    table.add_column(ratio=1)
    table.add_column(ratio=1)
    return table


def _scores(text: Written, name: str) -> str:
    """The verifier's score and, where there is one, the independent judge's; green when both approve."""
    verifier, judge = text.scores[name], text.independent.get(name)
    line = f"{escape(name)} {verifier:.2f}" + ("" if judge is None else f", independent {judge:.2f}")
    return f"[{'green' if min(verifier, 1 if judge is None else judge) >= 0.5 else 'yellow'}]{line}[/]"


def _row(texts: Sequence[Written]) -> tuple[str, str, str, str]:
    verifier = [score for text in texts for score in text.scores.values()]
    independent = [score for text in texts for score in text.independent.values()]
    perplexity = corpus_perplexity(np.array([t.nll for t in texts]), np.array([t.nll_tokens for t in texts]))
    tokens = sum(text.tokens for text in texts)
    speed = 1000 * sum(text.seconds for text in texts) / tokens if tokens else float("nan")
    return (
        f"{fmean(verifier):.2f}" if verifier else "–",
        f"{fmean(independent):.2f}" if independent else "–",
        f"{perplexity:.1f}",
        f"{speed:.0f}",
    )


def _flow(continuation: str) -> str:
    """Line breaks as spaces: a column is narrow enough."""
    return " ".join(continuation.split())
