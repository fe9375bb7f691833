"""Tables in Markdown, padded so that they read well in a terminal too."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def markdown(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A Markdown table; every cell is shown with `str`.

    >>> print(markdown(["op", "ms"], [["a", 1], ["b", 20]]), end="")
    | op | ms |
    |----|----|
    | a  | 1  |
    | b  | 20 |
    """
    cells = [[str(cell) for cell in row] for row in [header, *rows]]
    widths = [max(len(row[column]) for row in cells) for column in range(len(header))]
    lines = ["| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths)) + " |" for row in cells]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(lines) + "\n"
