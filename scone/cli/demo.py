"""`scone demo`: plain against controlled text for three tasks, and a table of what control gained and cost."""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from scone.cli.attributes import Attribute
from scone.cli.console import note, out, progress, quiet_libraries
from scone.config import SconeConfig

if TYPE_CHECKING:
    from scone.cli.writing import Models, Text


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
    parser.add_argument("--seed", type=int, default=0, help="of all texts (default: 0)")
    parser.add_argument("--samples", type=int, default=2, help="texts for each prompt; one is shown (default: 2)")
    strength = SconeConfig().strength
    parser.add_argument("--strength", type=float, default=strength, help=f"of the control (default: {strength:g})")
    parser.add_argument("--max-new-tokens", type=int, default=25, help="length of a continuation (default: 25)")


def run(args: argparse.Namespace) -> None:
    """Runs the tasks one after the other, shows the texts of each, ends with the table."""
    from scone.cli import show

    console = out()
    began = time.perf_counter()
    note("loading models; the first time they are converted, which takes a minute")
    quiet_libraries()
    from scone.cli.writing import Models

    models = Models("embedded", "embedded")
    groups: dict[str, list[Text]] = {}
    for task in TASKS:
        console.print(show.heading(f"{task.name}: {task.goal}"))
        pairs = _pairs(models, task, args)
        for plain, controlled in pairs:
            if plain.sample == 0:
                console.print(show.pair(plain, controlled))
        groups[f"{task.name}\n{task.goal}"] = [text for pair in pairs for text in pair]
    count = sum(map(len, groups.values())) // 2
    minutes, seconds = divmod(round(time.perf_counter() - began), 60)
    console.print(show.summary(groups))
    console.print(LEGEND.format(count=count, length=args.max_new_tokens, minutes=minutes, seconds=seconds))
    console.print('\nNow yours: [bold]scone generate "The movie was" --attribute positive --compare[/]')


def _pairs(models: Models, task: Task, args: argparse.Namespace) -> list[tuple[Text, Text]]:
    """(plain, controlled) for every text of a task."""
    from scone.cli.writing import CONTROLLED, PLAIN

    pairs: list[tuple[Text, Text]] = []
    total = sum(len(prompts) for _, prompts in task.cases) * args.samples * args.max_new_tokens * 2
    with progress() as bar:
        counted = bar.add_task(task.name, total=total)
        for name, prompts in task.cases:
            writer = models.writer([Attribute.parse(name, avoid=task.avoid)], SconeConfig(strength=args.strength))
            options = {"samples": args.samples, "max_new_tokens": args.max_new_tokens, "seed": args.seed}
            both = (
                writer.judge(list(writer.write(method, prompts, **options, tick=lambda: bar.advance(counted))))
                for method in (PLAIN, CONTROLLED)
            )
            pairs += zip(*both)
    return pairs
