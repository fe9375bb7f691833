"""Traces made by hand, with all that a page must not stumble over."""

from __future__ import annotations

import torch

from scone.output import Cost, Future, Step
from scone.trace import Told, Trace

NASTY = [
    " <script>window.hit = 1</script>",
    "</script><script>window.hit = 2</script>",
    "<img src=x onerror='window.hit = 3'>\n",
    " & &lt; {{DATA}} \u2028 \u202e\u05d0 \U0001f642",
]


def trace(pieces=NASTY, *, prompt="It was <b>bold</b>:", label="", explain=True) -> Trace:
    """A text of these pieces, each taken from among three candidates."""
    steps, end = [], 0
    for i, piece in enumerate(pieces):
        end += len(piece)
        steps.append(step(i, piece, end, explain))
    return Trace([steps], [Told(prompt, "".join(pieces), 0.75, "length", {"strength": 24.0}, label)])


def step(i: int, piece: str, end: int, explain: bool = True) -> Step:
    """A step that takes the second of three candidates; the last is not judged."""
    p, p_star = torch.tensor([0.5, 0.25, 0.125]), torch.tensor([0.25, 0.75, 1e-9])
    ahead = ((Future("Paths", f" ahead {i}"), Future("Paths", " <i>too</i>")), (Future("Masked", " taken"),), ())
    return Step(
        torch.tensor([7, 8, 9]), p.log(), torch.tensor([0.25, 0.875, 0.5]), p_star.log(), chosen=1,
        seconds={"propose": 0.001, "look ahead": 0.009}, cost=Cost(lm_rows=3), pieces=(" a", piece, "\t"),
        judged=torch.tensor([True, True, False]), end=end, futures=ahead if explain else (),
        score=(0.5 + i / 100) if explain else None,
    )  # fmt: skip
