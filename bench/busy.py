"""How much slower it gets beside processes that only count.

    python -m bench busy                   none, one and two of them, one text
    python -m bench busy --texts 8 --rounds 11 --out docs/results

Every round goes through all of them in turns, and a slow-down is the ratio within a round. A fair scheduler would give two
threads on two cores a slow-down of 1.5 beside one such process, and of 2 beside two.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from bench.machine import describe
from bench.tables import markdown
from scone.decode import Scone, SconeConfig
from scone_kernels.inference import accelerate

PROMPT = "The movie was"
BUSY = (0, 1, 2)


def main(argv: list[str]) -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m bench busy", description=__doc__.splitlines()[0])
    parser.add_argument("--texts", type=int, default=1, help="written side by side (default 1)")
    parser.add_argument("--tokens", type=int, default=20, help="new tokens a text (default 20)")
    parser.add_argument("--rounds", type=int, default=7, help="(default 7)")
    parser.add_argument("--out", type=Path, help="folder for the table as Markdown")
    args = parser.parse_args(argv)
    ways = _ways(args.texts, args.tokens)
    seconds: dict[str, list[list[float]]] = {name: [] for name in ways}
    for way in ways.values():
        way()
    for _ in range(args.rounds):
        for name, way in ways.items():
            found = []
            for count in BUSY:
                with _busy(count):
                    found.append(_timed(way))
            seconds[name].append(found)
    rows = [_row(name, found, args.tokens) for name, found in seconds.items()]
    header = ["", "ms a token", *(f"× beside {count}" for count in BUSY[1:])]
    text = f"`{' '.join(['python -m bench busy', *argv])}`\n\n{describe()}\n\n{markdown(header, rows)}"
    print(text)
    if args.out:
        args.out.mkdir(parents=True, exist_ok=True)
        (args.out / "busy.md").write_text(f"# Beside busy processes\n\n{text}")
    return 0


def _ways(texts: int, tokens: int) -> dict[str, Callable[[], object]]:
    engine = Scone.from_pretrained(target="positive")
    prompts = [PROMPT] * texts

    def writer(config: SconeConfig) -> Callable[[], object]:
        steered = engine.with_config(config)
        return lambda: steered.generate(prompts, max_new_tokens=tokens, seed=0)

    return {
        "a step of the LM": _steps(engine, texts, tokens),
        "own plain": writer(SconeConfig.plain()),
        "default": writer(SconeConfig()),
    }


def _steps(engine: Scone, texts: int, tokens: int) -> Callable[[], object]:
    """Steps behind the prompt, each one call of our kernels."""
    fast, ids = accelerate(engine.lm), torch.tensor([engine.parts.lm.encode(PROMPT)] * texts)
    with torch.no_grad():
        cache = engine.lm(ids, use_cache=True).past_key_values

    @torch.no_grad()
    def steps() -> None:
        own = copy.deepcopy(cache)
        for _ in range(tokens):
            fast.hidden(input_ids=ids[:, -1:], past_key_values=own, use_cache=True)

    return steps


def _row(name: str, found: list[list[float]], tokens: int) -> list[str]:
    idle = statistics.median(row[0] for row in found)
    slower = [sorted(row[i] / row[0] for row in found) for i in range(1, len(BUSY))]
    spread = [f"{statistics.median(r):.1f} ({r[0]:.1f} to {r[-1]:.1f})" for r in slower]
    return [name, f"{1000 * idle / tokens:.1f}", *spread]


def _timed(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


@contextmanager
def _busy(count: int) -> Iterator[None]:
    """Beside so many processes that count."""
    counting = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        time.sleep(0.2 * bool(count))
        yield
    finally:
        for process in counting:
            process.kill()
            process.wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
