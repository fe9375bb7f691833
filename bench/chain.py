"""What each preset asks of the models, counted: `python -m bench decode passes`. No clock is involved."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from bench.tables import markdown
from scone.decode import Scone, SconeConfig

PRESETS = {
    "`plain()`": SconeConfig.plain,
    "`fast()`": SconeConfig.fast,
    "default": SconeConfig,
    "`quality()`": SconeConfig.quality,
    "`paper()`": SconeConfig.paper,
}
HEADER = ["per token", "LM rows", "LM passes", "verifier rows", "masked-LM rows", "longest chain"]


def passes(engine: Scone, prompts: tuple[str, ...], tokens: int) -> str:
    """The presets' counts as a table."""
    rows = []
    for name, preset in PRESETS.items():
        found = [counted(engine.with_config(preset()), prompt, tokens, seed) for seed, prompt in enumerate(prompts)]
        rows.append([name, *(f"{statistics.median(column):.1f}" for column in zip(*found))])
    return markdown(HEADER, rows) + (
        f"\nOne text of {tokens} tokens, the median over {len(prompts)} prompts. Everything counts: the prompt's pass, all\n"
        "particles, and φ of what is finished. Every pass of a model waits for the one before it, so that the longest chain of\n"
        "calls that depend on each other is all of them, of the LM, of the verifier and of the masked LM.\n"
    )


def counted(engine: Scone, prompt: str, tokens: int, seed: int) -> list[float]:
    """What one text asks for, in the columns of the table."""
    parts = engine.parts
    with ExitStack() as stack:
        lm = stack.enter_context(rows_of_calls(parts.lm, "read"))
        verifier = [stack.enter_context(rows_of_calls(leaf, "value")) for leaf in parts.verifier.leaves]
        masked = stack.enter_context(rows_of_calls(parts.masked_lm, "hidden")) if parts.has_masked_lm else []
        written = len(engine.generate([prompt], max_new_tokens=tokens, seed=seed).token_ids[0])
    judged = [rows for calls in verifier for rows in calls]
    chain = len(lm) + max(map(len, verifier)) + len(masked)  # verifiers do not wait for each other
    return [count / written for count in (sum(lm), len(lm), sum(judged), sum(masked), chain)]


@contextmanager
def rows_of_calls(part: Any, name: str) -> Iterator[list[int]]:
    """The rows of every call of a method of this object; nothing is hooked onto its model."""
    method, rows = getattr(part, name), []

    def noted(first: Any, *args: Any, **options: Any) -> Any:
        rows.append(len(first))
        return method(first, *args, **options)

    setattr(part, name, noted)
    try:
        yield rows
    finally:
        delattr(part, name)
