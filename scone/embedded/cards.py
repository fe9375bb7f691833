"""Model cards: a JSON file beside each weight file says what it is, how it came about and what it scores."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scone.embedded import gemma
from scone.embedded.names import WEIGHTS
from scone.embedded.packages import MINILM, SMOLLM2, Package

ROLES = {
    "masked-lm": "masked language model",
    "sentiment": "verifier: negative, positive",
    "toxicity": "verifier: clean, toxic",
    "topic": "verifier: politics, finance, science, food, history, industrial",
}
FIELDS = ("name", "base", "licence", "data", "command", "training", "scores", "bytes", "sha256")


@dataclass(frozen=True)
class Installed:
    """One embedded model: what it is, where its weights are (None when missing), and what it scores."""

    name: str
    role: str
    source: str
    licence: str
    path: Path | None
    size: int
    scores: dict[str, float] = field(default_factory=dict)
    command: str = ""
    """What brings the weights: a pip command, or the recipe that trains them (in the repository's folder)."""


def installed() -> list[Installed]:
    """All embedded models, present or not.

    >>> [model.name for model in installed()][:2]
    ['smollm2-135m-instruct', 'all-minilm-l6-v2']
    """
    found = [
        _packaged("smollm2-135m-instruct", "language model", SMOLLM2),
        _packaged("all-minilm-l6-v2", "encoder of the masked LM and of the verifiers", MINILM),
    ]
    return [*found, *(_shipped(name, role) for name, role in ROLES.items()), _fetched()]


def _packaged(name: str, role: str, package: Package) -> Installed:
    path = package.find()
    weights = path / "model.safetensors" if path and path.is_dir() else path
    size = weights.stat().st_size if weights else 0
    source = f"pip: {package.name} {package.version}"
    return Installed(name, role, source, package.licence, weights, size, command=package.command)


def _shipped(name: str, role: str) -> Installed:
    path = WEIGHTS / f"{name}.safetensors"
    card = read_card(name)
    recipe = f"python -m recipes {'mlm' if name == 'masked-lm' else name}"
    if not path.exists() or card is None:
        return Installed(name, role, "scone", "", None, 0, command=recipe)
    return Installed(
        name, role, "scone, on all-minilm-l6-v2", card["licence"], path, path.stat().st_size, card["scores"], recipe
    )


def _fetched() -> Installed:
    weights = gemma.folder() / "model.safetensors"
    found = weights if weights.exists() else None
    size = weights.stat().st_size if found else 0
    source = f"pip: {gemma.PACKAGES[0]} {gemma.VERSION} and three more parts"
    return Installed(
        gemma.NAME, "another language model, for who asks for it", source, gemma.LICENCE, found, size,
        command=f"scone models --fetch {gemma.NAME}",
    )  # fmt: skip


def read_card(name: str, folder: Path = WEIGHTS) -> dict[str, Any] | None:
    """A weight file's card, or None when there is none."""
    path = folder / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else None
