"""Options that several commands share."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from scone.errors import InputError
from scone.evaluate.loaders import DATASETS, load_dataset_prompts
from scone.evaluate.models import ModelNames
from scone.evaluate.tasks import Prompt, Task, builtin_prompts, read_prompts
from scone.loading import EMBEDDED, check_placement

__all__ = [
    "PROMPTS_HELP", "add_model_arguments", "check_at_least_one", "model_names", "output_folder", "say", "task_prompts",
]  # fmt: skip

NEUTRAL = "neutral"
PROMPTS_HELP = (
    f"file of prompts, or a data set ({', '.join(DATASETS)}), with :FILE for a local copy, instead of the built-in "
    f"prompts; for topic also {NEUTRAL}: prompts that suggest none"
)


def add_model_arguments(parser: argparse.ArgumentParser) -> None:
    """One option a model; without it, the small one that comes with the package."""
    group = parser.add_argument_group("models", "Hub ids or folders; without them the embedded models.")
    group.add_argument("--lm", default=EMBEDDED, help="causal LM")
    group.add_argument("--masked-lm", default=EMBEDDED, help="masked LM of the lookahead")
    group.add_argument("--verifier", default=EMBEDDED, help="sequence classifier with the labels of the task")
    group.add_argument(
        "--labels", nargs="+", default=[], type=_label, metavar="TARGET=LABEL",
        help="what the verifier calls the targets of the task, such as positive=POSITIVE",
    )  # fmt: skip
    group.add_argument("--perplexity-model", help="causal LM that measures perplexity (default: the LM itself)")
    group.add_argument("--device", help="where all models go, such as cuda (default: cpu)")
    group.add_argument("--dtype", choices=["float32", "bfloat16", "float16"], help="of all their weights")


def model_names(args: argparse.Namespace) -> ModelNames:
    """The models that were asked for; where they cannot go is known before anything is written."""
    check_placement(args.device, args.dtype)
    return ModelNames(
        args.lm, args.masked_lm, args.verifier, args.perplexity_model, tuple(args.labels), args.device, args.dtype
    )


def _label(text: str) -> tuple[str, str]:
    target, equals, label = text.partition("=")
    if not (target and equals and label):
        raise argparse.ArgumentTypeError(f"expected TARGET=LABEL, got {text!r}")
    return target, label


def task_prompts(task: Task, given: str | None) -> list[Prompt]:
    """Those that come with the package, a data set (`imdb`, or `imdb:FILE` for a local copy), or a file of prompts."""
    if given is None or given == NEUTRAL:
        return builtin_prompts(task, given or "")
    name, _, file = given.partition(":")
    if name in DATASETS:
        return load_dataset_prompts(name, Path(file) if file else None)
    return read_prompts(Path(given), task)


def check_at_least_one(args: argparse.Namespace, *names: str) -> None:
    """Raise InputError for the first of these options that is given and below 1."""
    for name in names:
        value = getattr(args, name)
        if value is not None and value < 1:
            raise InputError(f"--{name.replace('_', '-')} must be at least 1, got {value}")


def output_folder(path: Path) -> Path:
    """The folder, made if it is not there; InputError where nothing can be written to it."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise InputError(f"--out must be a folder that can be written to, got {str(path)!r}: {problem}") from problem
    if not os.access(path, os.W_OK | os.X_OK):
        raise InputError(f"--out must be a folder that can be written to, got {str(path)!r}")
    return path


def say(line: str) -> None:
    """Progress goes to stderr, so that stdout holds results only."""
    print(line, file=sys.stderr, flush=True)
