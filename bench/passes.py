"""One pass of the LM over one new token a text, and of the verifier over whole texts: in one call, and by transformers.

    python -m bench passes
    python -m bench passes --compile       with torch.compile of transformers' models too: five minutes on two cores

The models are the embedded ones, in float32. `one call` is what `accelerate` makes of them: beside the LM it keeps copies of its
weights in the 16 bits in which they were published. The ways take turns.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from bench.machine import describe
from bench.tables import markdown
from scone.embedded import load_classifier, load_lm
from scone.lm import CausalLM
from scone_kernels.inference import accelerate

PROMPT = "I went to the restaurant and"
LM_TEXTS = (1, 7, 20, 56)
VERIFIER_TEXTS = ((7, 12), (7, 25), (14, 25), (7, 100), (20, 35), (56, 14))
TURNS = 15
TRIMMED = 3  # turns that the spread leaves out at either end

Ways = dict[str, Callable[[], Any]]


def main(argv: list[str]) -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m bench passes", description=__doc__.splitlines()[0])
    parser.add_argument("--compile", action="store_true", help="torch.compile of transformers' models too")
    args = parser.parse_args(argv)
    print(describe() + "\n")
    with torch.no_grad():
        print("One step of the LM, with its cache:\n\n" + _table({f"{n}": _lm(n, args.compile) for n in LM_TEXTS}))
        texts = {f"{n} of {length} tokens": _verifier(n, length, args.compile) for n, length in VERIFIER_TEXTS}
        print("One look of the verifier:\n\n" + _table(texts))
    return 0


def _lm(count: int, compiled: bool) -> Ways:
    """The next logits of `count` texts; every call begins with the same cache, which a fork leaves as it is."""
    lm = CausalLM(*load_lm())
    start, token = lm.prefill([lm.encode(PROMPT)] * count), torch.full((count,), 300)

    def by(model: Any) -> Callable[[], Any]:
        def step() -> Any:
            cache = lm.select(start, torch.arange(count)).cache
            return model(input_ids=token[:, None], past_key_values=cache, use_cache=True, logits_to_keep=1).logits[
                :, -1
            ]

        return step

    ways: Ways = {
        "one call": lambda: lm.step(lm.select(start, torch.arange(count)), token).logits,
        "transformers": by(lm.model),
    }
    return ways | ({"torch.compile": by(torch.compile(lm.model))} if compiled else {})


def _verifier(count: int, length: int, compiled: bool) -> Ways:
    """The logits of `count` texts of `length` tokens."""
    model, _ = load_classifier("sentiment")
    fast, ids = (
        accelerate(model),
        torch.randint(1000, 30000, (count, length), generator=torch.Generator().manual_seed(0)),
    )
    ways: Ways = {
        "one call": lambda: fast(input_ids=ids).logits,
        "transformers": lambda: model(input_ids=ids).logits,
    }
    if compiled:
        faster = torch.compile(model)
        ways["torch.compile"] = lambda: faster(input_ids=ids).logits
    return ways


def _table(sizes: dict[str, Ways]) -> str:
    names = list(next(iter(sizes.values())))
    rows, compiling = [], []
    for size, ways in sizes.items():
        expected = ways["transformers"]()
        for name, way in ways.items():
            start = time.perf_counter()
            torch.testing.assert_close(way(), expected, atol=1e-3, rtol=1e-4, msg=f"{name} says something else")
            if name == "torch.compile":
                compiling.append(time.perf_counter() - start)
        seconds: dict[str, list[float]] = {name: [] for name in names}
        for _ in range(TURNS):
            for name, way in ways.items():
                start = time.perf_counter()
                way()
                seconds[name].append(time.perf_counter() - start)
        row = [size]
        for name, own in seconds.items():
            row.append(f"{1000 * statistics.median(own):.0f}")
            if name != "one call":
                ratios = sorted(b / a for a, b in zip(seconds["one call"], own))
                row.append(f"{statistics.median(ratios):.2f}× ({ratios[TRIMMED]:.2f} to {ratios[-1 - TRIMMED]:.2f})")
        rows.append(row)
    header = ["texts"] + [
        label
        for name in names
        for label in ((f"{name}, ms",) if name == "one call" else (f"{name}, ms", "one call is faster"))
    ]
    note = f"\nMedians; in brackets the middle {TURNS - 2 * TRIMMED} of {TURNS} turns.\n"
    if compiling:
        least, most = min(compiling), max(compiling)
        note += f"The first call of `torch.compile` at a size, which compiles where it must, took {least:.0f} to {most:.0f} s.\n"
    return markdown(header, rows) + note
