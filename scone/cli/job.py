"""`scone generate --input FILE --output FILE`: many prompts, here or on a Ray cluster."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scone.cli.arguments import positive
from scone.cli.attributes import Attribute
from scone.cli.console import err, note, progress, quiet_libraries
from scone.config import SconeConfig
from scone.errors import InputError
from scone.evaluate.progress import readable

if TYPE_CHECKING:
    from scone.jobs import Job, Worker
    from scone.jobs.lines import Source

__all__ = ["add_job", "is_job", "run_job"]

QUIET_SECONDS = 10  # between two remarks on progress where there is no terminal
_ONLY_IN_JOBS = ("input", "output", "bad_lines", "order", "engine", "actors")


def add_job(parser: argparse.ArgumentParser) -> None:
    """The options of a job."""
    group = parser.add_argument_group("many prompts", "docs/jobs.md; the same command again goes on where it stopped.")
    group.add_argument("--input", type=Path, help='JSON lines: a string, {"prompt": ...} or {"messages": [...]}')
    group.add_argument("--output", type=Path, help="JSON lines, one a text, with the number of its line and its id")
    group.add_argument("--bad-lines", choices=["stop", "skip"], help="what cannot be used (default: stop)")
    group.add_argument("--order", choices=["input", "finished"], help="of the output (default: input)")
    add_engine(group)


def add_engine(group: Any) -> None:
    """Where the work is done."""
    group.add_argument("--engine", choices=["local", "ray"], help="this process, or a Ray cluster (default: local)")
    group.add_argument("--actors", type=positive, metavar="N", help="of Ray, each with the models (default: 2)")


def is_job(args: argparse.Namespace) -> bool:
    """Whether a job is asked for; half of one is a mistake."""
    given = [name for name in _ONLY_IN_JOBS if getattr(args, name) is not None]
    if not given:
        return False
    for name in ("input", "output"):
        if name not in given:
            raise InputError(f"--{name} must be given with --{given[0].replace('_', '-')}, got none")
    for name in ("prompts", "file", "stream", "compare", "json"):
        if getattr(args, name):
            raise InputError(f"--input must come alone, got {'prompts' if name == 'prompts' else '--' + name} too")
    if args.actors is not None and args.engine != "ray":
        raise InputError(f"--actors must come with --engine ray, got --engine {args.engine or 'local'}")
    return True


@dataclass(frozen=True)
class Recipe:
    """All that it takes to make a worker, here or in another process."""

    lm: str
    masked_lm: str
    device: str | None
    dtype: str | None
    attributes: tuple[Attribute, ...]
    config: SconeConfig
    job: Job

    def make(self) -> Worker:
        """Loads the models."""
        from scone.cli.writing import Models
        from scone.jobs import Worker

        note("loading models")
        quiet_libraries()
        models = Models(self.lm, self.masked_lm, device=self.device, dtype=self.dtype)
        writer = models.writer(self.attributes, self.config)
        judges = {attribute.name: verifier for attribute, verifier in zip(writer.attributes, writer.verifiers)}
        return Worker(writer.engine, self.job, judges)

    def facts(self) -> dict[str, Any]:
        """What decides the texts."""
        attributes = [{"model": a.model, "name": a.name, "strength": a.strength} for a in self.attributes]
        models = {"lm": self.lm, "masked_lm": self.masked_lm, "device": self.device, "dtype": self.dtype}
        return {**models, "attributes": attributes, "config": self.config.as_dict()}


def run_job(args: argparse.Namespace, attributes: Sequence[Attribute], config: SconeConfig) -> None:
    """Looks the input through, loads, writes what is not there yet."""
    from scone.jobs import Job, do, here, look_through

    job = Job(
        samples=args.samples, max_new_tokens=args.max_new_tokens, seed=args.seed, batch=args.batch,
        bad_lines=args.bad_lines or "stop", order=args.order or "input",
    )  # fmt: skip
    recipe = Recipe(args.lm, args.masked_lm, args.device, args.dtype, tuple(attributes), config, job)
    source = look_through(args.input, job)
    write = partial(_on_ray, recipe, args.actors or 2) if args.engine == "ray" else here(recipe.make)
    with _shown() as show:
        do(job, source, args.output, write, facts=recipe.facts(), progress=show)
    err().print(f"[dim]{source.prompts:,} prompts are done: {args.output}[/]", soft_wrap=True)


def _on_ray(recipe: Recipe, actors: int, source: Source, missing: Sequence[int]) -> Iterable[tuple[int, list[Any]]]:
    from scone.jobs.cluster import Pool

    gpus = 1 if recipe.device is not None and recipe.device.startswith("cuda") else 0
    pool = Pool(actors=actors, gpus=gpus)
    return pool.map(partial(_indexed, recipe), source.read, missing, ordered=recipe.job.order == "input")


def _indexed(recipe: Recipe) -> Callable[[Any], tuple[int, list[Any]]]:
    worker = recipe.make()
    return lambda batch: (batch.index, worker(batch))


@contextmanager
def _shown() -> Iterator[Callable[[int, int], None]]:
    """Progress with the time left: a bar on a terminal, else a line now and then."""
    with progress() as bar:
        yield Remarks() if bar.disable else _Bar(bar)


class _Bar:
    """Moves a bar; what was found done at the start plays no part in the time left."""

    def __init__(self, bar: Any) -> None:
        self.bar, self.task = bar, None

    def __call__(self, done: int, total: int) -> None:
        if self.task is None:
            self.task = self.bar.add_task("lines", total=total, completed=done)
        self.bar.update(self.task, completed=done)


class Remarks:
    """Says how much is done and how long the rest will take, at most once in a while and at the end."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, every: float = QUIET_SECONDS) -> None:
        self.clock, self.every = clock, every
        self.began = self.said = clock()
        self.found: int | None = None

    def __call__(self, done: int, total: int) -> None:
        now = self.clock()
        if self.found is None:  # the first call tells what was done before
            self.found, self.began = done, now
        elif now - self.said >= self.every or done == total:
            left = (now - self.began) / (done - self.found) * (total - done)
            err().print(f"[dim]{done:,}/{total:,} lines, {readable(left)} left[/]", soft_wrap=True)
            self.said = now
