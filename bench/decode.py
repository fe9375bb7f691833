"""What control costs: plain sampling, best-of-10, the literal algorithm, and SConE's presets, in one run.

    python -m bench decode                         the table (about twenty minutes on two cores)
    python -m bench decode step                    one and the same step: the literal algorithm, paper() and the default
    python -m bench decode memory profile growth   memory beyond the models, the operations of one step, and how the
                                                   cost grows with candidates, lookahead, prompt, batch and the rest
    python -m bench decode passes                  passes of the models a token, counted
    python -m bench decode window                  how much of a long prompt has to be judged
    python -m bench decode control                 control and fluency against paper() on more prompts, without timing
    python -m bench decode --out DIR               each part also as Markdown, with a plot for each growth

Methods take turns on the same prompts, so that a noisy machine disturbs all of them alike; ratios are taken prompt by
prompt before their median.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch

from bench.chain import passes
from bench.control import control, difference, mean_and_error
from bench.floor import Products, memory_gigabytes
from bench.growth import SIZES, grow
from bench.kernels import gemm_gflops
from bench.machine import describe
from bench.profile import memory, profile
from bench.tables import markdown
from bench.window import windows
from scone import reference
from scone.decode import Scone, SconeConfig
from scone.embedded import load_lm
from scone.evaluate.cost import measure
from scone.evaluate.fluency import negative_log_likelihood

PROMPTS = (
    "The movie was",
    "Our hotel room",
    "I went to the restaurant and",
    "My first week at the new job",
    "The book starts slowly, but",
    "After two hours of waiting, we",
)
CONTROL_PROMPTS = 20
LITERAL_TOKENS = 2  # of the literal algorithm, which takes many seconds for each
PARTS = {
    "compare": "Cost of decoding",
    "step": "One step, three ways",
    "memory": "Memory of decoding",
    "profile": "Profile of a step",
    "growth": "How the cost grows",
    "passes": "Passes of the models",
    "window": "How much of a long prompt has to be judged",
    "control": "Control and fluency against the paper's settings",
}


@dataclass
class Runs:
    """What a method did on each prompt."""

    seconds_per_token: list[float] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    nll: list[float] = field(default_factory=list)  # of each text
    nll_tokens: list[int] = field(default_factory=list)
    phases: dict[str, float] = field(default_factory=dict)


Writer = Callable[[str, int, int], tuple[str, int, dict[str, float]]]
"""(prompt, new tokens, seed) → (continuation, tokens written, seconds by phase)"""


def main(argv: list[str]) -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m bench decode", description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], metavar="PART", help=f"of {', '.join(PARTS)}")
    parser.add_argument("--tokens", type=int, default=25, help="new tokens a text (default 25)")
    parser.add_argument(
        "--prompts",
        type=int,
        help=f"how many: {len(PROMPTS)}, which is all there are; for control {CONTROL_PROMPTS} of 60",
    )
    parser.add_argument("--sizes", nargs="+", default=SIZES, choices=SIZES, help="growth: only these (default: all)")
    parser.add_argument("--out", type=Path, help="folder for a Markdown file of each part, and the plots")
    args = parser.parse_args(argv)
    if args.prompts is not None and args.prompts < 1:
        parser.error(f"--prompts must be at least 1, got {args.prompts}")

    engine = Scone.from_pretrained(target="positive")
    for part in args.parts or ["compare"]:
        sections: Iterable[str]
        if part == "compare":
            sections = [compare(engine, PROMPTS[: args.prompts], args.tokens)]
        elif part == "step":
            sections = [same_step(engine, PROMPTS[: args.prompts])]
        elif part == "memory":
            sections = [memory()]
        elif part == "profile":
            sections = [profile(engine)]
        elif part == "passes":
            sections = [passes(engine, PROMPTS[: args.prompts], args.tokens)]
        elif part == "window":
            sections = [windows(engine)]
        elif part == "control":
            sections = [control(engine, args.prompts or CONTROL_PROMPTS, args.tokens)]
        else:
            sections = grow(engine, args.out, args.sizes)
        text = f"# {PARTS[part]}\n\n`python -m bench decode {' '.join(argv)}`\n\n{describe()}\n\n"
        for section in sections:
            print(section, flush=True)
            text += section + "\n"
        if args.out:
            args.out.mkdir(parents=True, exist_ok=True)
            (args.out / f"decode-{part}.md").write_text(text.rstrip() + "\n")
    return 0


def compare(engine: Scone, prompts: tuple[str, ...], tokens: int) -> str:
    """The methods on the same prompts, taking turns, as a table."""
    writers = methods(engine)
    runs = {name: Runs() for name in writers}
    for name, writer in writers.items():  # caches, thread pools and lazy set-up are not what is measured
        writer("It was", 1 if name == "literal" else 2, 0)
    for i, prompt in enumerate(prompts):
        for name, writer in writers.items():
            if name == "literal" and i >= 2:
                continue
            length = LITERAL_TOKENS if name == "literal" else tokens
            with measure() as cost:
                continuation, written, phases = writer(prompt, length, i)
            run = runs[name]
            run.seconds_per_token.append(cost.seconds / max(1, written))
            run.texts.append(prompt + continuation)
            for phase, seconds in phases.items():
                run.phases[phase] = run.phases.get(phase, 0.0) + seconds
            if name != "literal":
                nll, count = negative_log_likelihood(engine.parts.lm, prompt, [continuation])
                run.nll.append(float(nll[0]))
                run.nll_tokens.append(int(count[0]))
    return _table(engine, runs) + "\n" + _against_paper(engine, runs) + "\n" + _phases(runs)


def same_step(engine: Scone, prompts: tuple[str, ...], tokens: int = 30) -> str:
    """The first step of texts of 30 tokens, with the paper's lookahead of 25 in full: seconds, and whether q agrees."""
    parts = _literal_parts(engine)
    paper, default = engine.with_config(SconeConfig.paper()), engine.with_config(SconeConfig())
    ways: dict[str, Callable[[str], Any]] = {
        "literal": lambda prompt: reference.next_token(parts, prompt, max_new_tokens=tokens, seed=0),
        "paper()": lambda prompt: paper.next_token(prompt, max_new_tokens=tokens, seed=0),
        "default": lambda prompt: default.next_token(prompt, max_new_tokens=tokens, seed=0),
    }
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    differences, speeds = [], []
    for name in ("paper()", "default"):
        ways[name]("It was")
    for prompt in prompts:
        found = {}
        for name, way in ways.items():
            with measure() as cost:
                found[name] = way(prompt)
            seconds[name].append(cost.seconds)
        differences.append(float((found["literal"].q - found["paper()"].q).abs().max()))
        speeds.append(gemm_gflops("cpu"))
    rows = []
    for name, own in seconds.items():
        ratios = sorted(a / b for a, b in zip(seconds["literal"], own))
        row = [name, f"{statistics.median(own):.2f}", f"{min(own):.2f} to {max(own):.2f}"]
        rows.append([*row, f"{statistics.median(ratios):.1f}", f"{ratios[0]:.1f} to {ratios[-1]:.1f}"])
    table = markdown(["way", "seconds", "spread", "literal ÷ this", "spread"], rows)
    note = (
        f"\nThe first step of {len(prompts)} texts of {tokens} tokens. `literal` and `paper()` make the same random\n"
        f"choices: their q differ by {max(differences):.1e} at most.\n"
    )
    return (
        table + note + "\n" + _paper_floor(paper, prompts[0], tokens, seconds["literal"][0], statistics.median(speeds))
    )


def _paper_floor(engine: Scone, prompt: str, tokens: int, literal: float, speed: float) -> str:
    """Where a step of paper() spends its time, and what the products of each part would take alone."""
    step = partial(engine.next_token, prompt, max_new_tokens=tokens, seed=0)
    with ExitStack() as stack:
        reading = stack.enter_context(clocked(engine.parts.lm, "read"))
        judging = stack.enter_context(clocked(engine.verifier, "linearise"))
        with measure() as whole:
            step()
    lm, verifier = sum(reading), sum(judging)
    products, bandwidth = Products.of(step), memory_gigabytes()
    parts = {
        "the LM writes the futures": (engine.lm, lm),
        "the masked LM: updates, conditionals, expectations": (engine.masked_lm, whole.seconds - lm - verifier),
        "the verifier and its gradients": (engine.verifier.model, verifier),
    }
    own = [
        (seconds, found.alone(), found.at_best(speed, bandwidth), found.gflop)
        for found, seconds in ((products.with_weights_of(model), seconds) for model, seconds in parts.values())
    ]
    total = [whole.seconds, *(sum(column) for column in list(zip(*own))[1:])]
    rows = [
        [name, *(f"{value:.2f}" for value in values[:3]), f"{values[3]:.0f}"]
        for name, values in zip([*parts, "all"], [*own, total])
    ]
    rows.append(["literal ÷ all", *(f"{literal / value:.1f}" for value in total[:3]), ""])
    header = ["part", "seconds", "its products alone", "at the machine's best", "GFLOP"]
    return (
        f"The floor, on the first of them:\n\n{markdown(header, rows)}\n"
        "The masked LM's seconds are all that the others do not take.\n"
        "Products alone: every product with a weight, timed by itself in the faster of two ways, our kernels and torch's\n"
        "library, as if attention, norms, softmax and sampling took no time. The machine's best: each at the speed of one\n"
        f"large square GEMM ({speed:.0f} GFLOP/s) or as fast as its weight can be read ({bandwidth:.1f} GB/s), whichever takes longer.\n"
    )


@contextmanager
def clocked(part: Any, name: str) -> Iterator[list[float]]:
    """The seconds of every call of a method of this object."""
    method, seconds = getattr(part, name), []

    def timed(*args: Any, **options: Any) -> Any:
        start = time.perf_counter()
        try:
            return method(*args, **options)
        finally:
            seconds.append(time.perf_counter() - start)

    setattr(part, name, timed)
    try:
        yield seconds
    finally:
        delattr(part, name)


def methods(engine: Scone) -> dict[str, Writer]:
    """Each method as a writer of one continuation."""
    parts = _literal_parts(engine)

    def plain(prompt: str, tokens: int, seed: int) -> tuple[str, int, dict[str, float]]:
        continuations, written = _sample(engine, parts.lm, prompt, tokens, seed, rows=1, top_k=10)
        return continuations[0], written, {}

    def plain_in_halves(prompt: str, tokens: int, seed: int) -> tuple[str, int, dict[str, float]]:
        continuations, written = _sample(engine, engine.lm, prompt, tokens, seed, rows=1, top_k=10)
        return continuations[0], written, {}

    def best_of_10(prompt: str, tokens: int, seed: int) -> tuple[str, int, dict[str, float]]:
        continuations, written = _sample(
            engine, parts.lm, prompt, tokens, seed, rows=10, top_p=0.9, min_p=0.1, top_k=50
        )
        best = int(engine.verifier.score([prompt + c for c in continuations]).argmax())
        return continuations[best], written, {}

    def literal(prompt: str, tokens: int, seed: int) -> tuple[str, int, dict[str, float]]:
        # the first tokens of a text of full length: the lookahead is as long as in the paper
        text, steps = "", []
        ids: tuple[int, ...] = ()
        for _ in range(tokens):
            step = reference.next_token(parts, prompt, max_new_tokens=30, seed=seed, new_ids=ids)
            steps.append(step)
            ids = (*ids, int(step.tokens[step.log_p_star.argmax()]))
            text = engine.lm_tokenizer.decode(list(ids))
        return text, len(steps), {}

    def scone(config: SconeConfig) -> Writer:
        steered = engine.with_config(config)

        def write(prompt: str, tokens: int, seed: int) -> tuple[str, int, dict[str, float]]:
            out = steered.generate([prompt], max_new_tokens=tokens, seed=seed)
            return out.continuations[0], len(out.token_ids[0]), out.seconds

        return write

    return {
        "plain": plain,
        "plain, in 16 bits": plain_in_halves,
        "best-of-10": best_of_10,
        "literal": literal,
        "paper": scone(SconeConfig.paper()),
        "default": scone(SconeConfig()),
        "fast": scone(SconeConfig.fast()),
    }


@cache
def _plain_lm() -> Any:
    """The LM as transformers loads it: an engine's own keeps its weights in 16 bits."""
    return load_lm()[0]


def _literal_parts(engine: Scone) -> reference.Parts:
    """The models of the literal algorithm, as transformers has them."""
    return replace(reference.Parts.of(engine), lm=_plain_lm())


@torch.inference_mode()
def _sample(
    engine: Scone, lm: Any, prompt: str, tokens: int, seed: int, *, rows: int, **settings: float
) -> tuple[list[str], int]:
    """Continuations by transformers' own `generate` with its cache, and the tokens of the longest."""
    torch.manual_seed(seed)
    ids = torch.tensor([engine.parts.lm.encode(prompt)] * rows)
    options = {"do_sample": True, "max_new_tokens": tokens, **settings}
    out = lm.generate(ids, attention_mask=torch.ones_like(ids), **options)
    new = out[:, ids.shape[1] :]
    return engine.lm_tokenizer.batch_decode(new, skip_special_tokens=True), new.shape[1]


def _table(engine: Scone, runs: dict[str, Runs]) -> str:
    plain, literal = runs["plain"].seconds_per_token, statistics.median(runs["literal"].seconds_per_token)
    rows = []
    for name, run in runs.items():
        own = run.seconds_per_token
        ratios = sorted(a / b for a, b in zip(own, plain))
        full = name != "literal"
        rows.append(
            [
                name,
                f"{1000 * statistics.median(own):.0f}",
                f"{1000 * min(own):.0f} to {1000 * max(own):.0f}",
                f"{statistics.median(ratios):.1f}",
                f"{literal / statistics.median(own):.0f}",
                mean_and_error(engine.verifier.score(run.texts)) if full else "",
                _perplexity(run) if full else "",
            ]
        )
    header = ["method", "ms/token", "spread", "× plain", "literal ÷ this", "mean φ", "perplexity"]
    note = (
        f"\nMedians over {len(plain)} prompts (`literal`: {LITERAL_TOKENS} tokens of 2 prompts). φ: the verifier that "
        "steers. Perplexity: under the LM itself. Both with their standard error over the texts.\n"
        "`plain` is transformers' own `generate` with its cache; `in 16 bits` the same with the weights as SConE keeps\n"
        "them. `best-of-10` and `literal` have transformers' models as they come.\n"
    )
    return markdown(header, rows) + note


def _perplexity(run: Runs) -> str:
    """Of all tokens together, and its standard error over the texts (that of a ratio of means)."""
    nll, tokens = torch.tensor(run.nll), torch.tensor(run.nll_tokens, dtype=torch.float32)
    mean = nll.sum() / tokens.sum()
    error = (nll - mean * tokens).std() / tokens.mean() / len(nll) ** 0.5
    return f"{mean.exp():.1f} ± {mean.exp() * error:.1f}"


def _against_paper(engine: Scone, runs: dict[str, Runs]) -> str:
    """The default less paper() on the same prompts."""
    phi = {name: engine.verifier.score(runs[name].texts) for name in ("default", "paper")}
    nll = {name: torch.tensor(runs[name].nll) / torch.tensor(runs[name].nll_tokens) for name in phi}
    return (
        "Default less `paper()`, text by text, with the standard error: "
        f"φ {difference(phi['default'], phi['paper'])}, "
        f"log-perplexity {difference(nll['default'], nll['paper'])}.\n"
    )


def _phases(runs: dict[str, Runs]) -> str:
    """Where the time goes, as shares of each preset's own total."""
    names = [name for name, run in runs.items() if run.phases]
    order = dict.fromkeys(phase for name in names for phase in runs[name].phases)
    rows = [
        [phase, *(f"{100 * runs[n].phases.get(phase, 0.0) / sum(runs[n].phases.values()):.0f} %" for n in names)]
        for phase in order
    ]
    return "Share of each phase:\n\n" + markdown(["phase", *names], rows)
