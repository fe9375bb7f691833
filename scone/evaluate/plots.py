"""Plots of a report as SVG text: what control is paid with, the distribution of scores, calibration."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from io import StringIO
from typing import Any

import numpy as np

from scone.evaluate.curve import Point
from scone.evaluate.metrics import Interval
from scone.evaluate.summary import Batch, Summary

__all__ = ["calibration_plot", "curve_plot", "score_plot"]

_VERDICTS: dict[str, Callable[[Summary], Interval]] = {"average φ": lambda s: s.phi, "judge": lambda s: s.judge}
_PRICES: dict[str, Callable[[Summary], float]] = {
    "distinct word pairs of a prompt's texts": lambda s: s.distinct[1],
    "perplexity": lambda s: s.perplexity.value,
    "ms a token, of all threads": lambda s: 1000 * s.cpu_seconds,
}


def curve_plot(task: str, lines: Mapping[str, Sequence[Point]]) -> str:
    """φ (above) and the judge's verdict (below) against what they are paid with: variety, perplexity, time."""
    figure, grid = _figure(3, 2)
    for column, (words, paid) in enumerate(_PRICES.items()):
        for row, (verdict, earned) in enumerate(_VERDICTS.items()):
            axes = grid[row][column]
            for name, points in lines.items():
                x, y = [paid(point.summary) for point in points], [earned(point.summary).value for point in points]
                (line,) = axes.plot(x, y, marker="o", markersize=4, linewidth=1.2, label=name)
                spread = [earned(point.summary) for point in points]
                low, high = np.array([[v.value - v.low, v.high - v.value] for v in spread]).T
                axes.errorbar(x, y, yerr=np.clip([low, high], 0, None), fmt="none", color=line.get_color(), alpha=0.25)
                if len(points) > 1:
                    for point, left, top in zip(points, x, y):
                        axes.annotate(
                            f"{point.effort:g}", (left, top), textcoords="offset points", xytext=(4, 4), fontsize=7
                        )
            axes.set(xlabel=words, ylabel=verdict)
            if words.startswith("ms"):
                axes.set_xscale("log")
    handles, labels = grid[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, fontsize=8)
    figure.suptitle(task)
    return _svg(figure)


def score_plot(task: str, batches: Sequence[Batch]) -> str:
    """How φ is distributed over each method's generations."""
    figure, axes = _figure()
    kept = [(batch.label, batch.phi[~np.isnan(batch.phi)]) for batch in batches]
    kept = [(label, values) for label, values in kept if values.size]
    if kept:
        axes.boxplot([values for _, values in kept], whis=(5, 95), showmeans=True)
        axes.set_xticks(range(1, len(kept) + 1), [label for label, _ in kept], rotation=25, ha="right")
    axes.set(ylabel="φ", title=f"{task}: φ of the generations (whiskers: 5 % and 95 %)", ylim=(-0.02, 1.02))
    return _svg(figure)


def calibration_plot(rows: Sequence[dict[str, Any]]) -> str:
    """Mean φ of the rollouts against q, for each row of an audit."""
    figure, axes = _figure()
    axes.plot([0, 1], [0, 1], color="grey", linewidth=1)
    for row in rows:
        curve = np.array([point[:2] for point in row["curve"]])
        axes.plot(curve[:, 0], curve[:, 1], marker="o", markersize=3, label=row["name"])
    axes.set(xlabel="estimated q", ylabel="mean φ of rollouts", title="calibration", xlim=(0, 1), ylim=(0, 1))
    axes.legend(fontsize=7)
    return _svg(figure)


def _figure(columns: int = 1, rows: int = 1) -> tuple[Any, Any]:
    """A figure, and its axes: one, or rows of them."""
    from matplotlib.figure import Figure  # without pyplot: no global state, no display

    wide = 6.4 if columns == 1 else 4.2 * columns
    figure = Figure(figsize=(wide, 4.0 if rows == 1 else 3.4 * rows), layout="constrained")
    return figure, figure.subplots(rows, columns)


def _svg(figure: Any) -> str:
    """The svg element alone; without a date and with fixed ids, so that the same numbers give the same text."""
    import matplotlib

    out = StringIO()
    with matplotlib.rc_context({"svg.hashsalt": "scone", "svg.fonttype": "none"}):
        figure.savefig(out, format="svg", metadata={"Date": None})
    text = out.getvalue()
    return text[text.index("<svg") :]
