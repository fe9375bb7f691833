"""Small random models in folders, as a user's would be, for jobs in processes of their own."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / "decode")]

import tiny  # noqa: E402


def save(folder: Path) -> tuple[str, str]:
    """An LM and a classifier; returns their folders."""
    model, tokenizer = tiny.llama()
    model.save_pretrained(folder / "lm")
    tokenizer.save_pretrained(folder / "lm")
    judge, words = tiny.classifier()
    judge.save_pretrained(folder / "judge")
    words.save_pretrained(folder / "judge")
    return str(folder / "lm"), str(folder / "judge")
