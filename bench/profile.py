"""Where one step of decoding spends its time, operation by operation, and what memory it needs beyond the models."""

from __future__ import annotations

import multiprocessing

import torch
from torch.profiler import ProfilerActivity
from torch.utils.benchmark import Timer

from bench.machine import peak_extra_bytes
from bench.tables import markdown
from scone.decode import Scone, SconeConfig

PROMPT = "I went to the restaurant and"
STEPS = 12
SHOWN = 12  # operations, most expensive first

MEMORY = {
    "default": SconeConfig(),
    "default, 10 candidates, 25 tokens of lookahead": SconeConfig(min_mass=0.0, lookahead=25),
    "Gibbs chains, 10 candidates, 25 tokens of lookahead": SconeConfig(
        min_mass=0.0, lookahead=25, init="warm", expand="sample"
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
        + "\nThe floor, one pass of the LM with its cache over so many texts:\n\n"
        + _passes(engine)
    )


def _passes(engine: Scone) -> str:
    """What a pass of the LM costs by the number of rows, against reading its weights once from memory."""
    lm = engine.causal_lm
    prompt = lm.encode(PROMPT)
    rows, weights = [], sum(p.numel() * p.element_size() for p in engine.lm.parameters())
    for count in (1, 2, 4, 7, 10, 20):
        state = lm.prefill([prompt] * count)
        tokens = torch.full((count,), prompt[-1])

        def run(state=state, tokens=tokens, count=count):  # type: ignore[no-untyped-def]
            return lm.step(lm.select(state, torch.arange(count)), tokens)

        median = Timer("run()", globals={"run": run}).blocked_autorange(min_run_time=1.5).median
        rows.append([str(count), f"{1000 * median:.0f}", f"{weights / median / 1e9:.1f}"])
    weight = torch.empty(weights // 4)
    read = Timer("weight.sum()", globals={"weight": weight.fill_(1.0)}).blocked_autorange(min_run_time=1.5).median
    return markdown(["rows", "ms", "GB of weights a second"], rows) + (
        f"\nReading as many bytes ({weights / 1e6:.0f} MB) by `sum` takes {1000 * read:.0f} ms, "
        f"{weights / read / 1e9:.1f} GB a second.\n"
    )


def memory() -> str:
    """Peak memory above the loaded models, each setting in a process of its own so that nothing is reused."""
    found: dict[str, float] = {}
    for name, config in MEMORY.items():
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            found[name] = pool.apply(_peak, (config,)) / 2**20
    rows = [[name, f"{megabytes:.0f}"] for name, megabytes in found.items()]
    return markdown(["setting, one text", "MB beyond the models"], rows) + (
        "\nPeak resident memory of a new process's first step of a text of 30 tokens, less what it had with all models\n"
        "loaded: tables that are made on first use and the threads' own buffers are counted.\n"
    )


def _peak(config: SconeConfig) -> int:
    engine = Scone.from_pretrained(target="positive").with_config(config)
    found = peak_extra_bytes(lambda: engine.next_token(PROMPT, max_new_tokens=30, seed=0), "cpu")
    if found is None:
        raise RuntimeError("this system does not tell a process's peak memory: /proc/self/clear_refs is missing")
    return found
