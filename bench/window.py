"""What a shorter context costs and changes: the same steps after long prompts, by how much of them is judged."""

from __future__ import annotations

import statistics

import numpy as np

from bench.tables import markdown
from scone.decode import Scone, Step
from scone.evaluate.agreement import rank_correlation
from scone.evaluate.tasks import TASKS, builtin_prompts

WINDOWS = (16, 32, 64, 128, 256, None)
PROMPTS, LENGTH = 8, 440  # LM tokens of a prompt, which the verifier's 512 positions still hold


def windows(engine: Scone) -> str:
    """Seconds of one step, and how far q and the next-token distribution are from those with the whole text."""
    prompts = long_prompts(engine)
    found: dict[int | None, list[Step]] = {size: [] for size in WINDOWS}
    for prompt in prompts:
        for size, steps in found.items():
            steps.append(engine.with_config(context_window=size).next_token(prompt, max_new_tokens=25, seed=0))
    rows = []
    for size, steps in found.items():
        seconds = [sum(value for phase, value in step.seconds.items() if phase != "prefill") for step in steps]
        pairs = list(zip(steps, found[None]))
        agreement = [rank_correlation(own.q.numpy(), whole.q.numpy()) for own, whole in pairs]
        moved = [_total_variation(own, whole) for own, whole in pairs]
        plain = [_total_variation(own, None) for own in steps]
        rows.append(
            [
                "all" if size is None else str(size),
                f"{1000 * statistics.median(seconds):.0f}",
                f"{1000 * min(seconds):.0f} to {1000 * max(seconds):.0f}",
                f"{np.nanmean(agreement):.2f}",
                f"{np.mean(moved):.2f}",
                f"{np.mean(plain):.2f}",
            ]
        )
    header = ["context_window", "ms/step", "spread", "rank correlation of q", "moved from all", "moved from the LM"]
    return markdown(header, rows) + (
        f"\n{len(prompts)} prompts of {LENGTH} tokens, put together from the prompts of the sentiment task; one step after each,\n"
        "without the pass over the prompt itself. Rank correlation of q: over the candidates, with that of the whole text.\n"
        "Moved: total variation between the next-token distributions, from the one with the whole text judged and from the\n"
        "LM's own.\n"
    )


def long_prompts(engine: Scone) -> list[str]:
    """Sentences one after the other, each prompt from another place on."""
    texts = [prompt.text for prompt in builtin_prompts(TASKS["sentiment"])]
    starts = range(0, len(texts), len(texts) // PROMPTS)
    whole = [". ".join(texts[start:] + texts[:start]) for start in list(starts)[:PROMPTS]]
    encode, decode = engine.parts.lm.encode, engine.parts.lm.decode
    return [decode(encode(text)[:LENGTH]) for text in whole]


def _total_variation(own: Step, other: Step | None) -> float:
    """Between two steps with the same candidates, or one and the LM's own distribution over them."""
    there = own.log_p.log_softmax(-1) if other is None else other.log_p_star
    return float((own.log_p_star.exp() - there.exp()).abs().sum() / 2)
