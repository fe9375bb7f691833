"""A long run: what the process holds does not grow."""

from __future__ import annotations

import gc

import psutil

from scone.decode import Scone
from tests.torture.tally import Tally, stage

WARM_UP, GENERATIONS, EVERY = 50, 500, 50
GROWTH = 0.02  # of resident memory that is allowed


@stage(minutes=14)
def memory_stays_flat(tally: Tally) -> None:
    """500 generations with the embedded models after 50 that warm up; the curve is part of the report."""
    engine, process = Scone.from_pretrained(target="positive"), psutil.Process()
    prompts = ["The movie was", "My day", "I went to the restaurant and", "It is"]
    held: list[float] = []
    for i in range(WARM_UP + GENERATIONS):
        prompt = tally.random.choice(prompts)
        with tally.trial("generations soaked", f"generation {i} of {prompt!r}"):
            engine.generate(prompt, max_new_tokens=4, num_return_sequences=1 + i % 2, seed=i)
        if i >= WARM_UP - 1 and (i + 1 - WARM_UP) % EVERY == 0:
            gc.collect()
            held.append(process.memory_info().rss / 2**20)
    tally.note(f"MiB held after each {EVERY} generations: " + " ".join(f"{value:.0f}" for value in held))
    if max(held) > held[0] * (1 + GROWTH):
        tally.fail(f"memory grew from {held[0]:.0f} to {max(held):.0f} MiB")
