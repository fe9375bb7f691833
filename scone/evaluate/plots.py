"""Plots of a report as SVG text: control against perplexity and time, the distribution of scores, calibration."""

from __future__ import annotations

from collections.abc import Sequence
from io import StringIO
from typing import Any

import numpy as np

from scone.evaluate.summary import Batch, Summary

__all__ = ["calibration_plot", "scatter_plot", "score_plot"]


def scatter_plot(task: str, whole: dict[str, Summary], axis: str) -> str:
    """Average φ of each method against its perplexity or its milliseconds per token."""
    figure, axes = _figure()
    for label, s in whole.items():
        x = s.perplexity.value if axis == "perplexity" else 1000 * s.seconds
        errors = [[s.phi.value - s.phi.low], [s.phi.high - s.phi.value]]
        axes.errorbar([x], [s.phi.value], yerr=np.clip(errors, 0, None), fmt="o", capsize=3, label=label)
        axes.annotate(label, (x, s.phi.value), textcoords="offset points", xytext=(6, 4), fontsize=8)
    axes.set(xlabel="perplexity" if axis == "perplexity" else "ms per token", ylabel="average φ", title=task)
    if axis == "time":
        axes.set_xscale("log")
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


def _figure() -> tuple[Any, Any]:
    from matplotlib.figure import Figure  # without pyplot: no global state, no display

    figure = Figure(figsize=(6.4, 4.0), layout="constrained")
    return figure, figure.add_subplot()


def _svg(figure: Any) -> str:
    """The svg element alone; without a date and with fixed ids, so that the same numbers give the same text."""
    import matplotlib

    out = StringIO()
    with matplotlib.rc_context({"svg.hashsalt": "scone", "svg.fonttype": "none"}):
        figure.savefig(out, format="svg", metadata={"Date": None})
    text = out.getvalue()
    return text[text.index("<svg") :]
