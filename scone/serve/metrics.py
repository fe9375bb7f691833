"""Counts for /metrics, in the text format of Prometheus."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping

__all__ = ["Metrics"]


class Metrics:
    """What has happened since the server began.

    >>> metrics = Metrics()
    >>> metrics.count("served", seconds=0.5)
    >>> 'scone_requests_total{outcome="served"} 1' in metrics.page({"running_texts": 3})
    True
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requests: Counter[str] = Counter(served=0, cancelled=0, rejected=0, refused=0, failed=0)
        self._texts: Counter[str] = Counter(stop=0, length=0, content_filter=0)
        self._sums: Counter[str] = Counter(tokens=0, steps=0, step_seconds=0, request_seconds=0)

    def count(self, outcome: str, seconds: float = 0.0) -> None:
        """A request has come to its end."""
        with self._lock:
            self._requests[outcome] += 1
            self._sums["request_seconds"] += seconds  # type: ignore[assignment]

    def text(self, finish_reason: str) -> None:
        """A text has come to its end."""
        with self._lock:
            self._texts[finish_reason] += 1

    def step(self, tokens: int, seconds: float) -> None:
        """A batch has taken a step."""
        with self._lock:
            self._sums.update(tokens=tokens, steps=1)
            self._sums["step_seconds"] += seconds  # type: ignore[assignment]

    def page(self, gauges: Mapping[str, int]) -> str:
        """All of it; gauges are what is so now."""
        with self._lock:
            lines = ["# TYPE scone_requests_total counter"]
            lines += [f'scone_requests_total{{outcome="{name}"}} {n}' for name, n in self._requests.items()]
            lines += ["# TYPE scone_texts_total counter"]
            lines += [f'scone_texts_total{{finish_reason="{name}"}} {n}' for name, n in self._texts.items()]
            for name, total in self._sums.items():
                lines += [f"# TYPE scone_{name}_total counter", f"scone_{name}_total {total:g}"]
        for name, value in gauges.items():
            lines += [f"# TYPE scone_{name} gauge", f"scone_{name} {value}"]
        return "\n".join(lines) + "\n"
