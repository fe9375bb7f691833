"""Methods as lines: the settings that differ in nothing but how hard they try are points of one line."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from scone.evaluate.summary import Batch, Summary

__all__ = ["Point", "curves"]


class Point(NamedTuple):
    """One setting: its strength, or how many texts it chooses from, and what came out."""

    effort: float | None  # None: plain sampling, which does not try
    summary: Summary


def curves(batches: Sequence[Batch], whole: Mapping[str, Summary]) -> dict[str, list[Point]]:
    """Lines by name, each in the order of its efforts; a method without an effort is a line of one point."""
    found: dict[str, tuple[str, list[Point]]] = {}
    for batch in batches:
        settings = batch.prompts[0]["settings"]
        effort, rest = _effort(settings)
        name, points = found.setdefault(json.dumps(rest, sort_keys=True), (_name(batch), []))
        points.append(Point(effort, whole[batch.label]))
    lines: dict[str, list[Point]] = {}
    for name, points in found.values():
        # Two lines of one name differ by what no name says, such as the weights of a model.
        own = name if name not in lines else f"{name} ({len(lines)})"
        lines[own] = sorted(points, key=lambda point: point.effort or 0.0)
    return lines


def _effort(settings: Mapping[str, Any]) -> tuple[float | None, dict[str, Any]]:
    """The number along a method's line, and all other settings."""
    rest = {name: value for name, value in settings.items() if name not in ("tries", "strength")}
    config = dict(rest.get("config") or {})
    if settings["kind"] == "bon-matched":
        rest["kind"] = "bon"
    effort = config.pop("strength", None)
    if config:
        rest["config"] = config
    return settings.get("tries") or settings.get("strength") or effort, rest


def _name(batch: Batch) -> str:
    """The method's name without its effort.

    `scone:fast,strength=6,particles=4` is on the line `scone:fast,particles=4`.
    """
    kind, _, settings = batch.prompts[0]["method"].partition(":")
    kind = "bon" if kind == "bon-matched" else kind
    if kind != "scone":
        return kind
    kept = ",".join(part for part in settings.split(",") if part and not part.startswith("strength="))
    return f"{kind}:{kept}" if kept else kind
