"""Options that several commands share."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from scone.evaluate.models import ModelNames
from scone.evaluate.tasks import Prompt, Task, builtin_prompts, read_prompts
from scone.loading import EMBEDDED

__all__ = ["add_model_arguments", "model_names", "say", "task_prompts"]


def add_model_arguments(parser: argparse.ArgumentParser) -> None:
    """One option a model; without it, the small one that comes with the package."""
    group = parser.add_argument_group("models", "Hub ids or folders; without them the embedded models.")
    group.add_argument("--lm", default=EMBEDDED, help="causal LM")
    group.add_argument("--masked-lm", default=EMBEDDED, help="masked LM of the lookahead")
    group.add_argument("--verifier", default=EMBEDDED, help="sequence classifier with the labels of the task")
    group.add_argument("--perplexity-model", help="causal LM that measures perplexity (default: the LM itself)")


def model_names(args: argparse.Namespace) -> ModelNames:
    """The models that were asked for."""
    return ModelNames(args.lm, args.masked_lm, args.verifier, args.perplexity_model)


def task_prompts(task: Task, file: Path | None) -> list[Prompt]:
    """The prompts of a file, or the built-in ones."""
    return builtin_prompts(task) if file is None else read_prompts(file, task)


def say(line: str) -> None:
    """Progress goes to stderr, so that stdout holds results only."""
    print(line, file=sys.stderr, flush=True)
