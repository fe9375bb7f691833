"""How texts and their scores look on a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean

import numpy as np
from rich.box import ROUNDED, SIMPLE_HEAD
from rich.console import Group
from rich.markup import escape
from rich.table import Table

from scone.cli.writing import CONTROLLED, PLAIN, Text
from scone.evaluate.metrics import corpus_perplexity

__all__ = ["pair", "scores_line", "summary"]


def scores_line(text: Text) -> str:
    """One line for each attribute: the verifier's score and, where there is one, the independent judge's."""
    lines = []
    for name, score in text.scores.items():
        other = text.independent.get(name)
        lines.append(f"{name} {score:.2f}" + ("" if other is None else f", independent {other:.2f}"))
    return "\n".join(lines)


def pair(plain: Text, controlled: Text) -> Table:
    """Plain and controlled continuations of one prompt side by side, scores below."""
    table = Table(box=ROUNDED, title=escape(plain.prompt) + " …", title_justify="left", title_style="bold", expand=True)
    for method in (PLAIN, CONTROLLED):
        table.add_column(method, ratio=1)
    table.add_row(*(escape(_flow(text.continuation)) for text in (plain, controlled)))
    table.add_row(*(f"[dim]{escape(scores_line(text))}[/]" for text in (plain, controlled)))
    return table


def summary(groups: Mapping[str, Sequence[Text]]) -> Group:
    """A row a group and method: mean scores, perplexity of the continuations, milliseconds a token."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("")
    table.add_column("")
    for column in ("verifier", "independent", "perplexity", "ms/token"):
        table.add_column(column, justify="right")
    for group, texts in groups.items():
        for method in (PLAIN, CONTROLLED):
            chosen = [text for text in texts if text.method == method]
            style = "bold" if method == CONTROLLED else ""
            name = escape(group) if method == PLAIN else ""
            table.add_row(name, method, *_row(chosen), style=style, end_section=method == CONTROLLED)
    return Group(table)


def _row(texts: Sequence[Text]) -> tuple[str, str, str, str]:
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
