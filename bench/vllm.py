"""Control inside vLLM: tokens a second at 1, 8 and 32 requests at once, plain and controlled, and what came out.

.venv-vllm/bin/python -m bench vllm        the environment that `make test-vllm` makes
"""

from __future__ import annotations

import argparse
import os
import time
from importlib.util import find_spec

import torch

from bench.control import mean_and_error
from bench.machine import describe
from bench.tables import markdown
from scone.evaluate.judges import load_judge
from scone.evaluate.tasks import TASKS, builtin_prompts
from scone.verifier import Verifier

KINDS: dict[str, dict[str, object] | None] = {
    "plain": None,
    "draft + text and candidate": {"attribute": "positive"},
    "text and candidate": {"attribute": "positive", "lookahead": "nothing"},
}


def main(argv: list[str]) -> int:
    """Print a row for each number of requests and each kind of control."""
    parser = argparse.ArgumentParser(prog="python -m bench vllm", description=__doc__.splitlines()[0])
    parser.add_argument("--concurrent", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--tokens", type=int, default=20)
    args = parser.parse_args(argv)
    if find_spec("vllm") is None:
        parser.error("needs vLLM: make test-vllm makes an environment that has it, .venv-vllm")
    # The engine in this process, so that its memory and the processor's clock can be read.
    os.environ.update(VLLM_ENABLE_V1_MULTIPROCESSING="0", SCONE_VLLM="embedded", VLLM_CPU_KVCACHE_SPACE="1")
    from vllm import LLM, SamplingParams

    from scone.embedded import load_lm
    from scone.vllm import SconeLogitsProcessor

    llm = LLM(
        model=load_lm()[0].config._name_or_path, dtype="bfloat16", max_model_len=512, enforce_eager=True,
        max_num_seqs=max(args.concurrent), logits_processors=["scone.vllm:SconeLogitsProcessor"],
    )  # fmt: skip
    (controller,) = (one.controller for one in SconeLogitsProcessor.made if one.controller is not None)
    judge, phi = load_judge("sentiment"), Verifier.from_pretrained("embedded:sentiment", target="positive")
    known = [prompt.text for prompt in builtin_prompts(TASKS["sentiment"])]
    print(describe(), flush=True)
    rows = []
    for count in args.concurrent:
        prompts = [known[i * len(known) // count] for i in range(count)]
        for name, asked in KINDS.items():
            params = [
                SamplingParams(
                    max_tokens=args.tokens,
                    temperature=1,
                    top_k=10,
                    seed=i,
                    extra_args={"scone": asked} if asked else None,
                )
                for i in range(count)
            ]
            before, began, cpu = controller.seconds, time.perf_counter(), time.process_time()
            done = llm.generate(prompts, params, use_tqdm=False)
            seconds, busy = time.perf_counter() - began, time.process_time() - cpu
            written = sum(len(out.outputs[0].token_ids) for out in done)
            texts = [prompt + out.outputs[0].text for prompt, out in zip(prompts, done)]
            row = [
                count, name, f"{written / seconds:.1f}", f"{1000 * busy / written:.0f}",
                f"{100 * (controller.seconds - before) / seconds:.0f} %", f"{_memory():.0f}",
                mean_and_error(phi.score(texts)), mean_and_error(torch.from_numpy(judge.score(texts, "positive")).float()),
            ]  # fmt: skip
            print(*row, sep="\t", flush=True)
            rows.append(row)
    header = [
        "requests",
        "who looks ahead",
        "tokens/s",
        "CPU ms a token",
        "in the processor",
        "MB",
        "φ",
        "independent judge",
    ]
    print(markdown(header, rows))
    return 0


def _memory() -> float:
    """Megabytes that this process holds."""
    with open("/proc/self/status", encoding="ascii") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmRSS")) / 1024
