"""Engines on tiny random models, of every lookahead."""

from __future__ import annotations

import sys
from pathlib import Path

from scone.decode import Scone, SconeConfig, Verifier
from scone.lookahead import Expectation, Gibbs, Lookahead, Masked, Mix, Nothing, Paths, Taylor

sys.path.append(str(Path(__file__).resolve().parents[1] / "decode"))  # its files name each other without a package
import faulty
import tiny

__all__ = ["LOOKAHEADS", "PROMPTS", "faulty", "tiny_engine"]

LOOKAHEADS: list[Lookahead] = [
    Expectation(tokens=3),
    Paths(tokens=3, count=2),
    Masked(tokens=3),
    Gibbs(tokens=4, block=2, iterations=2, estimate=Taylor()),
    Mix(Expectation(tokens=2), Nothing()),
    Nothing(),
]
PROMPTS = ["the movie was", "the food", "what a day", "naïve café 漢字 🙂", "a"]


def tiny_engine(lookahead: Lookahead, **options: object) -> Scone:
    """An engine in which every candidate is judged."""
    config = SconeConfig(lookahead=lookahead, min_mass=0, top_k=5, particles=1).replace(**options)
    return Scone(tiny.llama(), tiny.masked_lm("bert"), Verifier(*tiny.classifier(), target="positive"), config)
