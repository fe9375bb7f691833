"""Where one step of decoding spends its time, operation by operation, and what memory it needs beyond the models."""

from __future__ import annotations

import multiprocessing
import statistics
import time
from collections.abc import Callable
from functools import partial

import torch
from torch.profiler import ProfilerActivity

from bench.floor import memory_gigabytes
from bench.kernels import GEMM_FLOPS, square_gemm
from bench.machine import peak_extra_bytes
from bench.tables import markdown
from scone.decode import Scone, SconeConfig, Verifier
from scone.lm import CausalLM, LMState
from scone.lookahead import AtSample, Carried, Expectation, Gibbs, Mix, Nothing

PROMPT = "I went to the restaurant and"
STEPS = 12
SHOWN = 12  # operations, most expensive first
VERIFIED = 25  # tokens of the texts that the verifier looks at
TURNS = 9

OTHERS = {"plain": STEPS, "best-of-10": STEPS, "literal": 1}  # methods of `bench decode compare` → tokens to write
MEMORY = {
    "fast": SconeConfig.fast(),
    "default": SconeConfig(),
    "default, 10 candidates, 25 tokens of lookahead": SconeConfig(
        min_mass=0.0, lookahead=Mix(Expectation(25), Nothing())
    ),
    "Gibbs chains, 10 candidates, 25 tokens of lookahead": SconeConfig(
        min_mass=0.0, lookahead=Gibbs(start=Carried(), estimate=AtSample())
    ),
    "paper (10 candidates, 2 chains, 25 tokens of lookahead)": SconeConfig.paper(),
}


def profile(engine: Scone) -> str:
    """The phases and the operations of the default's steps, each as milliseconds a step."""
    engine.generate([PROMPT], max_new_tokens=4, seed=0)
    plain = engine.generate([PROMPT], max_new_tokens=STEPS, seed=0)
    with torch.profiler.profile(activities=[ProfilerActivity.CPU]) as recorded:
        engine.generate([PROMPT], max_new_tokens=STEPS, seed=0)
    steps = len(plain.token_ids[0])
    total = sum(plain.seconds.values())
    phases = [[name, f"{1000 * s / steps:.1f}", f"{100 * s / total:.0f} %"] for name, s in plain.seconds.items()]
    events = [event for event in recorded.key_averages() if event.self_cpu_time_total > 0]
    whole = sum(event.self_cpu_time_total for event in events)
    operations = [
        [
            f"`{event.key}`",
            f"{event.count / steps:.0f}",
            f"{event.self_cpu_time_total / 1000 / steps:.1f}",
            f"{100 * event.self_cpu_time_total / whole:.0f} %",
        ]
        for event in sorted(events, key=lambda e: -e.self_cpu_time_total)[:SHOWN]
    ]
    return (
        f"The default preset, one text, {steps} tokens after {PROMPT!r}.\n\n"
        + markdown(["phase", "ms a step", "share"], phases)
        + "\nOperations, by their own time on the calling thread (with the profiler on, which slows small ones):\n\n"
        + markdown(["operation", "calls a step", "ms a step", "share"], operations)
        + "\n## The floor\n\nOne step of the LM with its cache, and one look of the verifier at texts of "
        + f"{VERIFIED} tokens, by the number of texts:\n\n"
        + _floor(engine)
    )


def _floor(engine: Scone) -> str:
    """What a pass of the LM and of the verifier costs by the number of texts, against a large GEMM and against memory."""
    lm, verifier, prompt = engine.parts.lm, engine.verifier, engine.parts.lm.encode(PROMPT)
    assert isinstance(verifier, Verifier)
    runs: dict[tuple[str, int], Callable[[], object]] = {}
    for count in (1, 7, 20, 56):
        state, tokens = lm.prefill([prompt] * count), torch.full((count,), prompt[-1])
        runs["LM", count] = partial(_step, lm, state, tokens)
    for count in (7, 14, 56, 112):
        ids = torch.full((count, VERIFIED), verifier.pad_id + 1000)
        runs["verifier", count] = partial(verifier.value_of_ids, ids, torch.ones_like(ids, dtype=torch.bool))
    runs["square GEMM", 1] = square_gemm("cpu")
    seconds: dict[tuple[str, int], list[float]] = {name: [] for name in runs}
    for _ in range(TURNS):  # all take turns, so that noise hits them alike
        for name, run in runs.items():
            start = time.perf_counter()
            run()
            seconds[name].append(time.perf_counter() - start)
    flops = {
        "LM": 2 * _weights(engine.lm),
        "verifier": 2 * VERIFIED * _weights(verifier.model),
        "square GEMM": GEMM_FLOPS,
    }
    rows = []
    for (model, count), times in seconds.items():
        median = statistics.median(times)
        gflops = count * flops[model] / median / 1e9
        spread = f"{1000 * min(times):.0f} to {1000 * max(times):.0f}"
        rows.append(
            [model, str(count), f"{1000 * median:.0f}", spread, f"{1000 * median / count:.1f}", f"{gflops:.0f}"]
        )
    size = 2 * _weights(engine.lm)  # bytes in 16 bits
    bandwidth = memory_gigabytes(size)
    return markdown(["", "texts", "ms", "spread", "ms a text", "GFLOP/s"], rows) + (
        f"\nReading as many bytes as the LM's products do ({size / 1e6:.0f} MB, in 16 bits) by `sum` takes "
        f"{size / bandwidth / 1e6:.0f} ms, {bandwidth:.1f} GB a second: no step of it is faster.\n"
    )


def _step(lm: CausalLM, state: LMState, tokens: torch.Tensor) -> object:
    return lm.step(lm.select(state, torch.arange(len(tokens))), tokens)


def _weights(model: torch.nn.Module) -> int:
    """Weights of the linear layers: two operations for each of them and each token."""
    linears = [layer for layer in model.modules() if isinstance(layer, torch.nn.Linear)]
    return sum(layer.in_features * layer.out_features for layer in linears)


def memory() -> str:
    """Peak memory above the loaded models, each setting in a process of its own so that nothing is reused."""
    found: dict[str, float] = {}
    for name in (*OTHERS, *MEMORY):
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            found[name] = pool.apply(_peak, (name,)) / 2**20
    rows = [[name, f"{megabytes:.0f}"] for name, megabytes in found.items()]
    return markdown(["setting, one text", "MB beyond the models"], rows) + (
        "\nPeak resident memory of a new process's first step of a text of 30 tokens, less what it had with all models\n"
        f"loaded; of plain sampling and best-of-10, {STEPS} tokens. Tables that are made on first use and the threads' own\n"
        "buffers are counted.\n"
    )


def _peak(name: str) -> int:
    from bench.decode import methods

    engine = Scone.from_pretrained(target="positive")
    if name in OTHERS:
        write = partial(methods(engine)[name], PROMPT, OTHERS[name], 0)
        found = peak_extra_bytes(write, "cpu")
    else:
        steered = engine.with_config(MEMORY[name])
        found = peak_extra_bytes(lambda: steered.next_token(PROMPT, max_new_tokens=30, seed=0), "cpu")
    if found is None:
        raise RuntimeError("this system does not tell a process's peak memory: /proc/self/clear_refs is missing")
    return found
