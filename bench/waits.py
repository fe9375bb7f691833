"""How often a step waits for the GPU, launches and copies, for each preset, and which lines of code are the reason.

    python -m bench waits                      the embedded models, one text and three (some minutes)
    python -m bench waits --preset default     one of the presets
    python -m bench waits --tokens 3 --batch 2

Counted over all steps but the first, so that what is made once is not; with a GPU by torch's profiler, without one on the
make-believe device (docs/makebelieve.md). A copy to the device counts as a wait where CUDA would wait for it: from memory
that is not pinned.
"""

from __future__ import annotations

import argparse
from collections import Counter

from bench.machine import describe
from bench.meter import Counts, device, make_believe, metered, on_a_device
from bench.tables import markdown
from scone.decode import Scone, SconeConfig
from scone.loop import prefill

PRESETS = {
    "default": SconeConfig(),
    "fast": SconeConfig.fast(),
    "paper": SconeConfig.paper(),
}
PROMPTS = ["The movie was", "I went to the restaurant and", "My neighbour", "On the first day of the year we"]
HEADER = ["preset", "texts", "waits", "launches", "copies to the device", "copies to the host"]


def main(argv: list[str]) -> int:
    """Print the tables."""
    parser = argparse.ArgumentParser(prog="python -m bench waits", description=__doc__.splitlines()[0])
    parser.add_argument("--preset", choices=PRESETS, action="append", help="only this one (may be repeated)")
    parser.add_argument("--batch", type=int, action="append", help="texts at once (default 1 and 3)")
    parser.add_argument("--tokens", type=int, default=6, help="of each text, the first of which is not counted")
    options = parser.parse_args(argv)
    if (code := on_a_device(["waits", *argv])) is not None:
        return code
    print(
        f"# Waits\n\n`python -m bench waits {' '.join(argv)}`\n\n{describe()}\n\nPer token of a batch, {_source()}.\n"
    )
    rows, lines = [], {}
    with device():
        engine = Scone.from_pretrained(device="cuda:0")
        for name in options.preset or PRESETS:
            for batch in options.batch or (1, 3):
                counts = per_step(engine.with_config(PRESETS[name]), PROMPTS[:batch], options.tokens)
                rows.append([name, batch, *_shown(counts, options.tokens - 1)])
            lines[name] = counts.lines
    print(markdown(HEADER, rows))
    for name, found in lines.items():
        print(
            f"## {name}, the lines\n\n{markdown(['per token', 'what', 'line', 'within'], _by_line(found, options.tokens - 1))}"
        )
    return 0


def per_step(engine: Scone, prompts: list[str], tokens: int) -> Counts:
    """What all steps but the first take together."""
    texts = engine.open(prompts, max_new_tokens=25, seed=0)
    loop = engine.loop(texts=texts)
    texts = texts if loop.population is None else loop.population.particles
    steps = loop.run(texts, prefill(engine.parts.lm, texts), 25)  # far from the end, where nothing is looked ahead for
    next(steps)
    with metered() as counts:
        for _ in range(tokens - 1):
            next(steps)
    return counts


def _source() -> str:
    return "counted on a make-believe device" if make_believe() else "counted by torch's profiler"


def _shown(counts: Counts, steps: int) -> list[str]:
    found = (counts.waits, counts.launches, counts.to_device, counts.to_host)
    return [f"{count / steps:.1f}".removesuffix(".0") for count in found]


def _by_line(lines: Counter[tuple[str, str, str]], steps: int) -> list[list[str]]:
    return [
        [f"{count / steps:.1f}".removesuffix(".0"), kind, f"`{line}`", f"`{inner}`" if inner else ""]
        for (kind, line, inner), count in sorted(lines.items(), key=lambda item: (item[0][0] != "wait", -item[1]))
    ]
