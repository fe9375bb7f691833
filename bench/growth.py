"""How the cost of a step grows with each size: a table, the exponent of a power law through it, and a plot."""

from __future__ import annotations

import copy
import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from bench.floor import Products, memory_gigabytes
from bench.kernels import gemm_gflops
from bench.tables import markdown
from scone.decode import Scone
from scone.lookahead import AtSample, Carried, Expectation, Gibbs, Mix, Nothing

NEW_TOKENS = 8
BATCH_TOKENS = 10
SIZES = ("candidates", "lookahead", "prompt tokens", "batch", "new tokens", "chains", "vocabulary")
GIBBS = Gibbs(tokens=12, start=Carried(), estimate=AtSample())  # sizes that only Gibbs chains have
GIBBS_NOTE = f"With Gibbs chains: `lookahead={GIBBS}`."
_NOUNS = (
    *("movie", "book", "meal", "hotel", "trip", "city", "game", "song"),
    *("team", "phone", "car", "school", "show", "plan", "house", "dress"),
)
_FILLER = "It rained in the morning, and people stayed at home to read, to cook and to talk about the week. "


@dataclass(frozen=True)
class Sweep:
    """One size, its values, and what to run for each."""

    name: str
    values: tuple[int, ...]
    run: Callable[[int], int]
    """value → tokens written"""
    note: str = ""
    floor: tuple[int, ...] = ()
    """Values for which to say what the products alone would take."""
    rounds: int = 3


def grow(engine: Scone, out: Path | None, sizes: Sequence[str] = SIZES) -> Iterator[str]:
    """A section for each size; the values take turns, so that noise hits all alike."""
    for sweep in sweeps(engine):
        if sweep.name in sizes:
            yield _section(sweep, _measure(sweep), out)


def sweeps(engine: Scone) -> list[Sweep]:
    """The sizes that a user can change."""

    def tokens(config: dict, prompts: list[str], new: int = NEW_TOKENS) -> int:
        result = engine.with_config(min_mass=0.0, **config).generate(prompts, max_new_tokens=new, seed=0)
        return sum(map(len, result.token_ids))

    def batch_of(size: int) -> int:
        # The same texts for every size, in batches of it; the default as it is, so that candidates differ as for users.
        parts = [batch[i : i + size] for i in range(0, len(batch), size)]
        results = [engine.generate(part, max_new_tokens=BATCH_TOKENS, seed=0) for part in parts]
        return sum(len(ids) for result in results for ids in result.token_ids)

    def prompt_of(length: int) -> list[str]:
        ids = engine.parts.lm.encode(_FILLER * (1 + length // 20))[:length]
        return [engine.parts.lm.decode(ids)]

    size = engine.masked_lm.get_output_embeddings().weight.shape[0]
    wide = {rows: with_vocabulary(engine, rows) for rows in (size, 2 * size, 4 * size)}

    def tokens_of(rows: int) -> int:
        return len(wide[rows].generate(one, max_new_tokens=NEW_TOKENS, seed=0).token_ids[0])

    one = ["The movie was"]
    batch = [f"The {noun} was" for noun in _NOUNS]
    return [
        Sweep("candidates", (2, 4, 8, 16), lambda n: tokens({"top_k": n}, one)),
        Sweep("lookahead", (1, 2, 4, 8), lambda n: tokens({"lookahead": Mix(Expectation(n), Nothing())}, one, 16)),
        Sweep("prompt tokens", (16, 64, 256, 512), lambda n: tokens({}, prompt_of(n))),
        Sweep("batch", (1, 2, 4, 8, 16), batch_of, floor=(1, 8, 16), rounds=5),
        Sweep("new tokens", (4, 8, 16, 32), lambda n: tokens({}, one, n)),
        Sweep("chains", (1, 2, 4, 8), lambda n: tokens({"lookahead": GIBBS.replace(chains=n)}, one), GIBBS_NOTE),
        Sweep("vocabulary", tuple(wide), tokens_of, GIBBS_NOTE),
    ]


def with_vocabulary(engine: Scone, rows: int) -> Scone:
    """The same engine with more rows in the masked LM's head, which no token uses but the head computes all the same."""
    model = copy.deepcopy(engine.masked_lm)
    head = model.get_output_embeddings()
    grown = torch.nn.Linear(head.in_features, rows)
    with torch.no_grad():
        grown.weight.copy_(head.weight.repeat(-(-rows // head.out_features), 1)[:rows])
        grown.bias.copy_(head.bias.repeat(-(-rows // head.out_features))[:rows])
    model.set_output_embeddings(grown)
    masked_lm = model.eval(), engine.masked_lm_tokenizer
    # the candidates with an own lookahead must be the same for every size
    config = engine.config.replace(min_mass=0.0, lookahead=GIBBS)
    return Scone((engine.lm, engine.lm_tokenizer), masked_lm, engine.verifier, config)


def _measure(sweep: Sweep) -> dict[int, list[float]]:
    sweep.run(sweep.values[0])
    seconds: dict[int, list[float]] = {value: [] for value in sweep.values}
    for _ in range(sweep.rounds):
        for value in sweep.values:
            start = time.perf_counter()
            written = sweep.run(value)
            seconds[value].append((time.perf_counter() - start) / max(1, written))
    return seconds


def _floor(sweep: Sweep, median: dict[int, float]) -> str:
    """How near some sizes are to what the machine can do, and how much that can gain from the size."""
    speed, bandwidth = gemm_gflops("cpu"), memory_gigabytes()
    seconds: dict[int, tuple[float, float, float]] = {}
    rows = []
    for value in sweep.floor:
        written = sweep.run(value)
        products = Products.of(partial(sweep.run, value))
        seconds[value] = median[value], products.alone() / written, products.at_best(speed, bandwidth) / written
        gains = [f"{1000 * s:.0f} ({f / s:.1f}×)" for s, f in zip(seconds[value], seconds[sweep.floor[0]])]
        work = products.gflop / written
        rows.append([str(value), *gains, f"{work:.1f}", f"{work / median[value] / speed:.0%}"])
    header = [
        *(sweep.name, "ms/token", "its products alone", "at the machine's best"),
        *("GFLOP/token", "of one GEMM's speed"),
    ]
    return (
        "The floor. Products alone: every product of the run timed by itself, by the faster of the library and our kernels, with the\n"
        f"weights as far from the caches. The machine's best: each product at the speed of one large square GEMM ({speed:.0f}\n"
        f"GFLOP/s) or as fast as its weight can be read ({bandwidth:.1f} GB/s), whichever takes longer, and nothing else. In\n"
        f"brackets how much faster than {sweep.name} {sweep.floor[0]} in the same column.\n\n{markdown(header, rows)}"
    )


def exponent(points: dict[int, float]) -> float:
    """The slope of a least-squares line through log(cost) over log(size).

    >>> round(exponent({1: 3.0, 2: 6.0, 4: 12.0}), 6)
    1.0
    """
    x, y = [math.log(value) for value in points], [math.log(cost) for cost in points.values()]
    mean_x, mean_y = statistics.fmean(x), statistics.fmean(y)
    return sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y)) / sum((a - mean_x) ** 2 for a in x)


def _section(sweep: Sweep, seconds: dict[int, list[float]], out: Path | None) -> str:
    median = {value: statistics.median(times) for value, times in seconds.items()}
    rows = []
    for value, times in seconds.items():
        gains = sorted(first / own for first, own in zip(seconds[sweep.values[0]], times))  # round by round
        row = [str(value), f"{1000 * median[value]:.0f}", f"{1000 * min(times):.0f} to {1000 * max(times):.0f}"]
        rows.append([*row, f"{statistics.median(gains):.2f}", f"{gains[0]:.2f} to {gains[-1]:.2f}"])
    header = [sweep.name, "ms/token", "spread", f"speed, {sweep.name} {sweep.values[0]} = 1", "spread"]
    text = f"## {sweep.name}\n\n{markdown(header, rows)}\n"
    text += f"ms/token grows as {sweep.name}^{exponent(median):.2f} over this range. {sweep.note}".rstrip() + "\n"
    if sweep.floor:
        text += "\n" + _floor(sweep, median)
    if out:
        text += f"\n![{sweep.name}]({_plot(sweep.name, seconds, out).name})\n"
    return text


def _plot(name: str, seconds: dict[int, list[float]], out: Path) -> Path:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(4, 2.6), layout="constrained")
    values = list(seconds)
    middle = [1000 * statistics.median(times) for times in seconds.values()]
    low = [m - 1000 * min(times) for m, times in zip(middle, seconds.values())]
    high = [1000 * max(times) - m for m, times in zip(middle, seconds.values())]
    axes.errorbar(values, middle, yerr=[low, high], marker="o", capsize=3)
    axes.set(xscale="log", yscale="log", xlabel=name, ylabel="ms/token", xticks=values, xticklabels=values)
    axes.minorticks_off()
    path = out / f"decode-{name.replace(' ', '-')}.svg"
    out.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    pyplot.close(figure)
    return path
