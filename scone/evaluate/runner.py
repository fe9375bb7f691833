"""Runs that can be killed and resumed.

folder/samples.jsonl   what was written: the same seed gives the same file
folder/scores.jsonl    perplexity and the judge's scores of it, likewise
folder/costs.jsonl     seconds, memory and model evaluations: different each time, therefore apart
folder/matched.json    how many tries of best-of-n fit the time of SConE, measured once
folder/runs.jsonl      each invocation: command, commit, machine
"""

from __future__ import annotations

import dataclasses
import json
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median

from scone.errors import InputError
from scone.evaluate.methods import Job, Method
from scone.evaluate.models import ModelNames
from scone.evaluate.progress import Progress
from scone.evaluate.records import Record, Records, key_of
from scone.evaluate.tasks import TASKS, Prompt, Task
from scone.evaluate.work import SCORERS, Item, Result, do, facts_of, models_for, score_key, setup_of

__all__ = ["Plan", "execute"]

Spread = Callable[[list[Item]], Iterator[tuple[Item, Result]]]
"""Does items, and gives each with its result."""


@dataclass(frozen=True)
class Plan:
    """What a run is to contain."""

    prompts: dict[str, list[Prompt]]  # by task
    methods: list[Method]
    names: ModelNames
    samples: int = 10
    max_new_tokens: int = 25
    seed: int = 0
    scorers: tuple[str, ...] = SCORERS
    verdict: str = "text"


class Store:
    """The files of a run folder."""

    def __init__(self, folder: Path) -> None:
        self.samples = Records(folder / "samples.jsonl")
        self.scores = Records(folder / "scores.jsonl")
        self.costs = Records(folder / "costs.jsonl")

    def add(self, result: Result) -> None:
        """Samples come last: where they are, the rest of the result is too."""
        for score in result.scores:
            self.scores.append(score)
        if result.cost is not None:
            self.costs.append(result.cost)
        if result.samples is not None:
            self.samples.append(result.samples)

    def finish(self) -> None:
        """All files in canonical order: task, method, prompt."""
        for records in (self.samples, self.scores, self.costs):
            records.sort(lambda record: (record["place"], record["key"]))


def execute(
    plan: Plan,
    folder: Path,
    *,
    workers: int = 1,
    actors: int = 0,
    retry: bool = False,
    say: Callable[[str], None] = print,
) -> None:
    """Do whatever of the plan the folder lacks.

    workers: processes of this machine; actors: of a Ray cluster, in their place
    retry: samples that failed are tried again
    """
    spread = partial(_on_ray, actors) if actors else partial(_results, workers)
    store = Store(folder)
    ready = [method for method in plan.methods if not _waits(method)]
    _run([item for task in plan.prompts for item in _missing(plan, task, ready, store, retry)], store, spread, say)
    waiting = [method for method in plan.methods if _waits(method)]
    items: list[Item] = []
    for task in plan.prompts if waiting else ():
        tries = _tries_that_fit(plan, task, store, folder)
        matched = [dataclasses.replace(method, tries=tries) for method in waiting]
        items += _missing(plan, task, matched, store, retry)
    _run(items, store, spread, say)
    store.finish()


def _waits(method: Method) -> bool:
    """How often it may try is known only when SConE has run."""
    return method.kind == "bon-matched" and method.tries is None


def _missing(plan: Plan, task_name: str, methods: Sequence[Method], store: Store, retry: bool) -> Iterator[Item]:
    """Items that lack samples or scores: prompt by prompt with all methods, so that the time left can be guessed."""
    task = TASKS[task_name]
    models = models_for(plan.names, task.attribute)
    names = [method.name for method in plan.methods]
    for p, prompt in enumerate(plan.prompts[task_name]):
        job = _job(plan, task, prompt)
        for method in methods:
            key = key_of(facts_of(task_name, method, job, models))
            written = store.samples.get(key)
            if retry and written is not None and None in written["samples"]:
                written = None
            scorers = plan.scorers
            if written is not None:
                scorers = tuple(s for s in scorers if score_key(key, s, models) not in store.scores)
            if written is None or scorers:
                place = (list(TASKS).index(task_name), names.index(method.name), p)
                yield Item(
                    task_name, task.attribute, method, job, prompt.group, place, plan.names, key, scorers, written
                )


def _job(plan: Plan, task: Task, prompt: Prompt) -> Job:
    target = prompt.target or task.target
    assert target is not None  # prompts are checked when they are read
    return Job(prompt.text, target, task.avoid, plan.samples, plan.max_new_tokens, plan.seed, plan.verdict)


def _tries_that_fit(plan: Plan, task: str, store: Store, folder: Path) -> int:
    """Tries of best-of-n in the time of SConE: measured once, then read from the folder, also when prompts are added."""
    path = folder / "matched.json"
    known = _read_known(path)
    models = models_for(plan.names, TASKS[task].attribute)
    jobs = [_job(plan, TASKS[task], prompt) for prompt in plan.prompts[task]]
    scone, bon = _first(plan, "scone"), _first(plan, "bon")
    facts = {m.kind: [facts_of(task, m, job, models) for job in jobs] for m in (scone, bon)}
    name = key_of({kind: setup_of(of[0]) for kind, of in facts.items()})
    if name not in known:
        keys = {kind: map(key_of, of) for kind, of in facts.items()}
        costs = {kind: [cost for key in of if (cost := store.costs.get(key))] for kind, of in keys.items()}
        seconds = {kind: median(map(_time_of, found)) for kind, found in costs.items()}
        tries = max(1, round(seconds["scone"] / seconds["bon"] * (bon.tries or 1)))
        known[name] = {"task": task, "scone": scone.name, "tries": tries}
        partial = path.with_suffix(".partial")
        partial.write_text(json.dumps(known, indent=1), encoding="utf-8")
        os.replace(partial, path)
    return int(known[name]["tries"])


def _read_known(path: Path) -> dict[str, Record]:
    """What was measured before; a file that is damaged holds nothing."""
    try:
        known = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return known if isinstance(known, dict) else {}


def _time_of(cost: Record) -> float:
    """On a CPU the time of our threads, which other processes do not lengthen; on a GPU that of the clock."""
    return cost["cpu_seconds"] if cost["device"] == "cpu" else cost["seconds"]


def _first(plan: Plan, kind: str) -> Method:
    found = next((method for method in plan.methods if method.kind == kind), None)
    if found is None:
        raise InputError(f"methods must include {kind} where bon-matched is to be matched, got none")
    return found


def _run(items: list[Item], store: Store, spread: Spread, say: Callable[[str], None]) -> None:
    progress = Progress(len(items), "prompts × methods", say=say)
    for item, result in spread(items):
        store.add(result)
        done = result.samples or item.written
        problem = f", {done['error']}" if done and "error" in done else ""
        progress.advance(f"{item.task} {item.method.name} {item.job.prompt!r}{problem}")


def _results(workers: int, items: list[Item]) -> Iterator[tuple[Item, Result]]:
    """In the order in which they finish."""
    if workers == 1 or len(items) < 2:
        yield from ((item, do(item)) for item in items)
        return
    context = multiprocessing.get_context("spawn")  # threads of torch do not survive a fork
    threads = max(1, (os.cpu_count() or 1) // workers)
    with context.Pool(workers, initializer=_begin_worker, initargs=(threads,)) as pool:
        yield from pool.imap_unordered(_do_with_item, items)


def _on_ray(actors: int, items: list[Item]) -> Iterator[tuple[Item, Result]]:
    from scone.jobs.cluster import Pool

    if not items:
        return
    gpus = 1 if (items[0].names.device or "").startswith("cuda") else 0
    pool = Pool(actors=actors, gpus=gpus)
    yield from pool.map(_doer, items.__getitem__, range(len(items)), ordered=False)


def _doer() -> Callable[[Item], tuple[Item, Result]]:
    """What an actor makes when it begins; the models come with the first item."""
    return _do_with_item


def _do_with_item(item: Item) -> tuple[Item, Result]:
    return item, do(item)


def _begin_worker(threads: int) -> None:
    import torch

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all; the parent ends the others
    torch.set_num_threads(threads)
