"""Writes model cards; `scone.embedded.cards` reads them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from scone.embedded.cache import checksum
from scone.embedded.cards import FIELDS


def write_card(weights: Path, **entries: Any) -> None:
    """Write the card of a weight file; size and checksum are taken from the file."""
    card = {"name": weights.stem, **entries, "bytes": weights.stat().st_size, "sha256": checksum(weights)}
    missing = [name for name in FIELDS if name not in card]
    if missing:
        raise ValueError(f"a card needs {', '.join(missing)} too")
    weights.with_suffix(".json").write_text(json.dumps(card, indent=2) + "\n")
