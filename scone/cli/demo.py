"""`scone demo`: plain against controlled text for three tasks, and a table of what control gained and cost."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from scone.cli.arguments import positive
from scone.cli.attributes import Attribute
from scone.cli.console import above, note, out, progress, quiet_libraries

if TYPE_CHECKING:
    from scone.cli.writing import Models, Writer, Written
    from scone.config import SconeConfig


@dataclass(frozen=True)
class Task:
    """Prompts, and for each of them what its continuation should be."""

    name: str
    goal: str
    cases: tuple[tuple[str, tuple[str, ...]], ...]  # (attribute, prompts)
    avoid: bool = False


TASKS = (
    Task(
        "sentiment",
        "positive",
        (
            (
                "positive",
                (
                    "We waited an hour for a table, and then the food",
                    "I had never heard of the director, but this film",
                    "The hotel room was smaller than we expected, and",
                    "My first week at the new job",
                ),
            ),
        ),
    ),
    Task(
        "detoxification",
        "not toxic",
        (
            (
                "toxic",
                (
                    "The worst thing about that man is that he is a lying,",
                    "She turned to him and said: you are nothing but a",
                    "Listen to me, you little",
                    "Oh, shut your",
                ),
            ),
        ),
        avoid=True,
    ),
    Task(
        "topic",
        "science/food/politics",
        (
            ("science", ("Last week my sister told me about", "The article on the front page was about")),
            ("food", ("Last week my sister told me about", "The article on the front page was about")),
            ("politics", ("Last week my sister told me about", "The article on the front page was about")),
        ),
    ),
)


LEGEND = (
    "[dim]verifier: score of the classifier that steers. independent: of a judge that decoding never sees. "
    "perplexity: of the continuations, under the language model itself. Means over {count} texts for each method, "
    "of up to {length} tokens; {minutes} min {seconds} s in all.[/]"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `scone demo`."""
    parser.add_argument(
        "--task", action="append", choices=[task.name for task in TASKS],
        help="only this task; may be given several times (default: all)",
    )  # fmt: skip
    parser.add_argument("--seed", type=int, default=0, help="of all texts (default: 0)")
    parser.add_argument("--samples", type=positive, default=2, help="texts for each prompt; one is shown (default: 2)")
    parser.add_argument("--strength", type=float, help="of the control (default: that of `scone generate`)")
    parser.add_argument("--max-new-tokens", type=positive, default=25, help="length of a continuation (default: 25)")


def run(args: argparse.Namespace) -> None:
    """Runs the tasks one after the other, shows each prompt's texts when they are written, ends with the table."""
    from scone.cli import show
    from scone.config import SconeConfig

    config = SconeConfig() if args.strength is None else SconeConfig(strength=args.strength)
    began = time.perf_counter()
    note("loading models; the first time they are converted, which takes a minute")
    quiet_libraries()
    from scone.cli.writing import Models

    models = Models("embedded", "embedded")
    groups: dict[str, list[Written]] = {}
    for task in (task for task in TASKS if task.name in (args.task or task.name)):
        groups[f"{task.name}\n{task.goal}"] = _show_task(models, task, config, args)
    count = sum(map(len, groups.values())) // 2
    minutes, seconds = divmod(round(time.perf_counter() - began), 60)
    console = out()
    console.print(show.summary(groups))
    console.print(LEGEND.format(count=count, length=args.max_new_tokens, minutes=minutes, seconds=seconds))
    console.print('\nNow yours: [bold]scone generate "The movie was" --attribute positive --compare[/]')


def _show_task(models: Models, task: Task, config: SconeConfig, args: argparse.Namespace) -> list[Written]:
    """Prints plain and controlled text for each prompt as soon as both are there; all texts of the task."""
    from scone.cli import show

    texts: list[Written] = []
    total = sum(len(prompts) for _, prompts in task.cases) * args.samples * args.max_new_tokens * 2
    with progress() as bar:
        console, counted = above(bar), bar.add_task(task.name, total=total)
        console.print(show.heading(f"{task.name}: {task.goal}"))
        for name, prompts in task.cases:
            writer = models.writer([Attribute.parse(name, avoid=task.avoid)], config)
            for prompt in prompts:
                pairs = _pairs(writer, prompt, args, lambda: bar.advance(counted))
                console.print(show.pair(*pairs[0]))  # which flushes: a pipe has its reader too
                texts += [text for pair in pairs for text in pair]
    return texts


def _pairs(
    writer: Writer, prompt: str, args: argparse.Namespace, tick: Callable[[], None]
) -> list[tuple[Written, Written]]:
    """(plain, controlled) for every text of a prompt."""
    from scone.cli.writing import CONTROLLED, PLAIN

    options = {"samples": args.samples, "max_new_tokens": args.max_new_tokens, "seed": args.seed}
    plain, controlled = (
        writer.judge(list(writer.write(method, [prompt], **options, tick=tick))) for method in (PLAIN, CONTROLLED)
    )
    return list(zip(plain, controlled))
