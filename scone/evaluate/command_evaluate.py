"""`scone evaluate`: the paper's experiments."""

from __future__ import annotations

import argparse
import json
import platform
import shlex
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path

from scone import __version__
from scone.errors import InputError
from scone.evaluate.arguments import (
    PROMPTS_HELP,
    add_model_arguments,
    check_at_least_one,
    model_names,
    output_folder,
    say,
    task_prompts,
)
from scone.evaluate.methods import parse_method
from scone.evaluate.runner import Plan, execute
from scone.evaluate.tasks import TASKS, pick_evenly
from scone.evaluate.work import SCORERS

__all__ = ["add_arguments", "run"]

DEFAULT_METHODS = ("random", "beamsearch", "bon", "topk10", "myopic", "scone", "bon-matched")
SMALL_PROMPTS, SMALL_SAMPLES = 4, 3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `scone evaluate`."""
    parser.add_argument("task", choices=[*TASKS, "all"], help="which experiment")
    parser.add_argument("--out", type=Path, required=True, help="folder of the results; what is there is not repeated")
    parser.add_argument(
        "--methods", nargs="+", default=list(DEFAULT_METHODS), metavar="METHOD",
        help="random, beamsearch, bon[:N], topk10, myopic[:STRENGTH], bon-matched, scone[:PRESET[,OPTION=VALUE...]]",
    )  # fmt: skip
    parser.add_argument("--prompts", help=PROMPTS_HELP + " (one task only)")
    parser.add_argument("--count", type=int, help="use only so many prompts, of all groups alike")
    parser.add_argument("--samples", type=int, default=10, help="generations a prompt (default: 10)")
    parser.add_argument("--max-new-tokens", type=int, default=25, help="the paper has 60 for topic (default: 25)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--verdict", choices=["text", "continuation"], default="text",
        help="what is judged, by verifier and judge: prompt and continuation, or the latter alone (default: text)",
    )  # fmt: skip
    parser.add_argument("--workers", type=int, default=1, help="processes (default: 1)")
    parser.add_argument("--engine", choices=["local", "ray"], default="local", help="here, or a Ray cluster")
    parser.add_argument("--actors", type=int, default=2, help="of Ray, each with the models (default: 2)")
    parser.add_argument(
        "--small", action="store_true", help=f"{SMALL_PROMPTS} prompts, {SMALL_SAMPLES} samples: minutes"
    )
    parser.add_argument("--retry", action="store_true", help="try again what failed before")
    parser.add_argument("--no-judge", action="store_true", help="do without the independent judge")
    add_model_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Plan, and do what is not done yet."""
    check_at_least_one(args, "samples", "max_new_tokens", "workers", "actors", "count")
    if args.prompts is not None and args.task == "all":
        raise InputError("--prompts must come with one task, got all")
    methods = [parse_method(text) for text in dict.fromkeys(args.methods)]
    names = [method.kind for method in methods]
    if "bon-matched" in args.methods and not {"scone", "bon"} <= set(names):
        raise InputError("--methods must include scone and bon where bon-matched is to be matched")
    count, samples = (SMALL_PROMPTS, SMALL_SAMPLES) if args.small else (args.count, args.samples)
    prompts = {}
    for name in list(TASKS) if args.task == "all" else [args.task]:
        all_prompts = task_prompts(TASKS[name], args.prompts)
        prompts[name] = pick_evenly(all_prompts, count) if count else all_prompts
    plan = Plan(
        prompts, methods, model_names(args), samples, args.max_new_tokens, args.seed,
        tuple(scorer for scorer in SCORERS if scorer != "judge" or not args.no_judge), args.verdict,
    )  # fmt: skip
    folder = output_folder(args.out)
    with (folder / "runs.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(invocation(args)) + "\n")
    actors = args.actors if args.engine == "ray" else 0
    execute(plan, folder, workers=args.workers, actors=actors, retry=args.retry, say=say)
    print(f"results in {args.out}; `scone report {args.out}` shows them")
    return 0


def invocation(args: argparse.Namespace) -> dict[str, object]:
    """When, what, with which code and where: for the report's foot."""
    options = {k: v for k, v in vars(args).items() if isinstance(v, str | int | float | bool | list)}
    return {
        "time": time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime()),
        "command": shlex.join(["scone", *sys.argv[1:]]),
        "options": options,
        "commit": _git("rev-parse", "--short", "HEAD"),
        "changed": bool(_git("status", "--porcelain", "--untracked-files=no")),
        "versions": {
            "scone": __version__,
            **{name: metadata.version(name) for name in ("torch", "transformers", "numpy")},
        },
        "machine": machine(),
    }


def machine() -> dict[str, object]:
    """Processor, cores, system and GPU."""
    import os

    import torch

    info = Path("/proc/cpuinfo")
    model = [line for line in info.read_text().splitlines() if line.startswith("model name")] if info.exists() else []
    return {
        "processor": model[0].partition(":")[2].strip() if model else platform.processor(),
        "cores": os.cpu_count(),
        "system": f"{platform.system()} {platform.machine()}, Python {platform.python_version()}",
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
    }


def _git(*words: str) -> str | None:
    """Of the folder that the package lies in; None where that is no work tree."""
    try:
        here = Path(__file__).resolve().parent
        done = subprocess.run(["git", *words], cwd=here, capture_output=True, text=True, check=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
