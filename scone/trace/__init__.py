"""The record of how texts came about, as data, as JSON and as a page that shows it.

out = engine.generate(["The movie was"], explain=True)
Path("trace.html").write_text(out.trace.to_html(), encoding="utf-8")
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from scone.errors import InputError
from scone.trace.notebook import framed
from scone.trace.page import page

if TYPE_CHECKING:
    from scone.output import Step

__all__ = ["SCHEMA_VERSION", "Told", "Trace"]

SCHEMA_VERSION = 1


@dataclass(frozen=True)
class Told:
    """A finished text beside its steps.

    >>> Told("The tea", " was hot", score=0.5, finish_reason="length").label
    ''
    """

    prompt: str  # empty where the continuation alone is judged, as of a chat
    continuation: str
    score: float  # φ of what is judged
    finish_reason: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    label: str = ""  # what tells texts of different settings apart


class Trace(list["list[Step]"]):
    """A list of steps for each text. It can be added to another, to be seen side by side.

    >>> from scone.decode import Scone
    >>> engine = Scone.from_pretrained()
    >>> steered = engine.generate(["The tea"], max_new_tokens=2, explain=True).trace.labelled("steered")
    >>> plain = engine.with_config(strength=0, particles=1).generate(["The tea"], max_new_tokens=2).trace.labelled("plain")
    >>> both = plain + steered
    >>> [told.label for told in both.told], both.to_html().startswith("<!doctype html>")
    (['plain', 'steered'], True)
    """

    def __init__(self, steps: Sequence[list[Step]], told: Sequence[Told]) -> None:
        super().__init__(steps)
        self.told = list(told)

    def __add__(self, other: Any) -> Any:
        if not isinstance(other, Trace):
            return super().__add__(other)
        return Trace([*self, *other], [*self.told, *other.told])

    def labelled(self, label: str) -> Trace:
        """The same texts under a name."""
        return Trace(self, [replace(told, label=label) for told in self.told])

    def to_dict(self) -> dict[str, Any]:
        """What `to_json` writes; docs/trace.md describes it."""
        texts = [
            {**asdict(told), "steps": [_step(told, step, before) for step, before in zip(steps, [None, *steps])]}
            for told, steps in zip(self.told, self)
        ]
        return {"format": "scone-trace", "version": SCHEMA_VERSION, "texts": texts}

    def to_json(self, *, indent: int | None = None) -> str:
        """JSON by the schema in scone/trace/schema.json."""
        return json.dumps(self.to_dict(), ensure_ascii=False, allow_nan=False, indent=indent)

    def to_html(self, *, title: str = "How the text was steered") -> str:
        """One page that needs nothing else: no network, no other file."""
        if not self.told:  # of texts that were never finished nothing is told either
            raise InputError("trace must hold at least one text to be shown, got none")
        return page(self.to_json(), title, [told.prompt + told.continuation for told in self.told])

    def _repr_html_(self) -> str:
        return framed(self)


def _step(told: Told, step: Step, before: Step | None) -> dict[str, Any]:
    text = told.continuation[0 if before is None else before.end : step.end]
    p, p_star, q = step.log_p.exp().tolist(), step.log_p_star.exp().tolist(), step.q.tolist()
    judged = [True] * len(p) if step.judged is None else step.judged.tolist()
    futures = step.futures or [()] * len(p)
    return {
        "text": text,
        "chosen": step.chosen,
        "score": step.score,
        "resampled": step.resampled,
        "candidates": [
            {
                "token": token,
                "text": step.pieces[k] if step.pieces else "",
                "p": p[k],
                "q": q[k],
                "p_star": p_star[k],
                "judged": judged[k],
                "futures": [asdict(future) for future in futures[k]],
            }
            for k, token in enumerate(step.tokens.tolist())
        ],
        "seconds": step.seconds,
        "cost": asdict(step.cost),
    }
