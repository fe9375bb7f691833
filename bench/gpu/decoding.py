"""The decoder on the GPU: three tasks beside plain sampling, the CPU's estimates, and how often a step waits."""

from __future__ import annotations

import time
from functools import cache
from typing import Any

from bench.gpu.part import Deadline, Found, Table, small
from bench.waits import HEADER, PRESETS, per_step
from scone.decode import Scone, SconeConfig, Verifier

TASKS = {
    "positive": ("embedded:sentiment", "positive", ["The movie was", "The food was"]),
    "not toxic": ("embedded:toxicity", "toxic", ["You are such a", "I think that people like you"]),
    "science": ("embedded:topic", 0, ["Today I read about", "The meeting was about"]),
}
MOST_WAITS = 2
CLOSE = 0.02  # of q: what a GPU's float32 may differ from the CPU's


def tasks(deadline: Deadline) -> Found:
    """Written with and without control; the first estimates are the CPU's."""
    found, rows = Found(), []
    tokens, copies = (2, 1) if small() else (25, 4)
    for name in deadline.within(list(TASKS), found):
        prompts = TASKS[name][2]
        engine = _engine(name, "cuda")
        start = time.perf_counter()
        controlled = engine.generate(prompts, max_new_tokens=tokens, num_return_sequences=copies, seed=0)
        seconds = time.perf_counter() - start
        plain = engine.with_config(strength=0, particles=1).generate(
            prompts, max_new_tokens=tokens, num_return_sequences=copies, seed=0
        )
        steps = [_engine(name, place).next_token(prompts[0], seed=0) for place in ("cpu", "cuda")]
        far = _distance(*steps)
        found.check(far <= CLOSE, f"{name}: q differs from the CPU's by {far:.3f}")
        gains = controlled.scores.mean() >= plain.scores.mean() or small()
        found.check(
            bool(gains), f"{name}: φ is {controlled.scores.mean():.2f}, without control {plain.scores.mean():.2f}"
        )
        rows.append(
            [name, f"{plain.scores.mean():.2f}", f"{controlled.scores.mean():.2f}", f"{far:.4f}",
             f"{1e3 * seconds / tokens:.0f}", controlled.texts[0].replace("\n", " ")]
        )  # fmt: skip
    header = ["task", "φ plain", "φ controlled", "q against the CPU's", "ms a token of the batch", "a text"]
    found.tables.append(Table("Three tasks", header, rows))
    return found


def waits(deadline: Deadline) -> Found:
    """Per token of a batch; the default and the fast preset wait twice at most."""
    found, rows, tokens = Found(), [], 3 if small() else 9
    engine = _engine("positive", "cuda")
    for name in deadline.within([name for name in PRESETS if name != "paper"], found):
        for batch in (1, 4):
            prompts = ["The movie was", "I went to the restaurant and", "My neighbour", "On that day we"][:batch]
            counts = per_step(engine.with_config(PRESETS[name]), prompts, tokens)
            figures = (counts.waits, counts.launches, counts.to_device, counts.to_host)
            rows.append([name, batch, *(f"{count / (tokens - 1):.1f}" for count in figures)])
            per_token = counts.waits / (tokens - 1)
            found.check(
                per_token <= MOST_WAITS, f"{name}, {batch} texts: {per_token:.1f} waits a token: {_worst(counts.lines)}"
            )
    found.tables.append(Table("Waits of the host, per token of a batch", HEADER, rows))
    return found


def _worst(lines: Any) -> str:
    return ", ".join(f"{line} ({count})" for (kind, line, _), count in lines.most_common(5) if kind == "wait")


@cache
def _verifier(name: str, place: str) -> Any:
    model, target, _ = TASKS[name]
    verifier = Verifier.from_pretrained(model, target=target, device=place)
    return ~verifier if name == "not toxic" else verifier


def _engine(name: str, place: str) -> Scone:
    return Scone.from_pretrained(verifier=_verifier(name, place), device=place, config=SconeConfig())


def _distance(one: Any, other: Any) -> float:
    """How far q is apart at the tokens that both have."""
    found = dict(zip(one.tokens.tolist(), one.q.tolist()))
    return max((abs(found[t] - q) for t, q in zip(other.tokens.tolist(), other.q.tolist()) if t in found), default=1.0)
