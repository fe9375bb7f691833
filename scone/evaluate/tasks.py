"""The tasks of the paper: which attribute, which prompts, and what counts as reached."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from scone.errors import InputError

__all__ = ["TASKS", "TOPICS", "Prompt", "Task", "builtin_prompts", "pick_evenly", "read_prompts"]

TOPICS = ("politics", "finance", "science", "food", "history", "industrial")


@dataclass(frozen=True)
class Prompt:
    """A text to continue, the group under which tables show it, and its target where the task has several."""

    text: str
    group: str = ""
    target: str | None = None


@dataclass(frozen=True)
class Task:
    """One of the paper's experiments. φ is the probability of `target`, or of everything but it (`avoid`)."""

    name: str
    attribute: str  # names the embedded verifier and the judge
    target: str | None  # None: each prompt has its own
    threshold: float  # a text has the attribute when φ >= threshold
    prompts: str  # file of prompts that comes with the package
    avoid: bool = False
    paper_length: int = 25  # new tokens in the paper


TASKS = {
    task.name: task
    for task in (
        Task("detoxify", "toxicity", "toxic", 0.5, "toxicity", avoid=True),
        Task("toxify", "toxicity", "toxic", 0.5, "toxicity"),
        Task("sentiment", "sentiment", "positive", 0.8, "sentiment"),
        Task("topic", "topic", None, 0.8, "topic", paper_length=60),
    )
}


def builtin_prompts(task: Task, kind: str = "") -> list[Prompt]:
    """The prompts written for this project, or those of another kind: of topic, "neutral" ones suggest no topic.

    >>> len(builtin_prompts(TASKS["sentiment"])), len(builtin_prompts(TASKS["topic"], "neutral"))
    (60, 40)
    """
    name = f"{task.prompts}-{kind}.jsonl" if kind else f"{task.prompts}.jsonl"
    file = resources.files("scone.evaluate").joinpath("prompts", name)
    if not file.is_file():
        raise InputError(f"prompts must be of a kind that the task {task.name} has, got {kind!r}")
    return _parse(file.read_text(encoding="utf-8").splitlines(), task, name)


def read_prompts(path: Path, task: Task) -> list[Prompt]:
    """Prompts from a file: JSON lines with `text` and perhaps `group` and `target`, or plain lines of text."""
    if not path.is_file():
        raise InputError(f"prompts must be a file, got {path}")
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as problem:
        raise InputError(f"prompts must be readable text in UTF-8, got {path}: {problem}") from problem
    return _parse(text.splitlines(), task, str(path))


def pick_evenly(prompts: Sequence[Prompt], count: int) -> list[Prompt]:
    """`count` prompts in their order, as many of each group as possible."""
    groups: dict[str, list[int]] = {}
    for index, prompt in enumerate(prompts):
        groups.setdefault(prompt.group, []).append(index)
    by_turns = [members[i] for i in range(len(prompts)) for members in groups.values() if i < len(members)]
    return [prompts[index] for index in sorted(by_turns[:count])]


def _parse(lines: Iterable[str], task: Task, where: str) -> list[Prompt]:
    prompts = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        if not line.lstrip().startswith("{"):
            prompt = Prompt(line.strip())
        else:
            try:
                prompt = Prompt(**json.loads(line))
                prompt.text.encode()  # any text but one with a lone surrogate
            except UnicodeEncodeError as problem:
                raise InputError(f"{where}, line {number}: got a lone surrogate, {line!r}") from problem
            except (AttributeError, TypeError, ValueError) as problem:
                raise InputError(f"{where}, line {number}: expected text, group and target, got {line!r}") from problem
        if task.target is None and prompt.target is None:
            raise InputError(f"{where}, line {number}: a prompt of the task {task.name} needs a target")
        prompts.append(prompt)
    if not prompts:
        raise InputError(f"{where} has no prompts")
    return prompts
