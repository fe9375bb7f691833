"""Names that need no model: where the small weight files lie, and the labels of each verifier."""

from __future__ import annotations

from pathlib import Path

WEIGHTS = Path(__file__).parent / "weights"
LABELS: dict[str, tuple[str, ...]] = {
    "sentiment": ("negative", "positive"),
    "toxicity": ("clean", "toxic"),
    "topic": ("politics", "finance", "science", "food", "history", "industrial"),
}
