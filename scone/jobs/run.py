"""A job from beginning to end: look the input through, leave out what is done, write the rest batch by batch."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scone.errors import InputError
from scone.jobs.job import Job
from scone.jobs.ledger import Ledger
from scone.jobs.lines import Source
from scone.jobs.worker import Record, Worker

if TYPE_CHECKING:
    from scone.decode import Scone

__all__ = ["do", "here", "look_through", "write_file"]

_log = logging.getLogger(__name__)

Write = Callable[[Source, Sequence[int]], Iterable[tuple[int, list[Record]]]]
"""Gives (index, records) for each of the batches with these indices."""

Progress = Callable[[int, int], None]
"""Is told the numbers of lines that are done and that there are."""


def write_file(
    engine: Scone,
    input: str | Path,
    output: str | Path,
    *,
    samples: int = 1,
    max_new_tokens: int = 25,
    seed: int = 0,
    batch: int = 16,
    bad_lines: str = "stop",
    progress: Progress | None = None,
) -> None:
    """Continue every prompt of a file of JSON lines; the same call again goes on where it was stopped.

    input: a line is a string, {"prompt": ...} or {"messages": [...]}, the latter two with an "id" if you like
    output: JSON lines in the order of the input, one a text, with the number of its line and its id
    bad_lines: "stop" raises InputError for a line that cannot be used; "skip" leaves an error in the place of its texts
    progress: called with the numbers of lines that are done and that there are, first with what was found done

    >>> from scone.decode import Scone
    >>> from tempfile import mkdtemp
    >>> folder = Path(mkdtemp())
    >>> _ = (folder / "in.jsonl").write_text('{"prompt": "The tea was", "id": "a"}')
    >>> write_file(Scone.from_pretrained(), folder / "in.jsonl", folder / "out.jsonl", max_new_tokens=2)
    >>> (folder / "out.jsonl").read_text()[:49]
    '{"line": 1, "id": "a", "sample": 0, "prompt": "Th'
    """
    job = Job(samples=samples, max_new_tokens=max_new_tokens, seed=seed, batch=batch, bad_lines=bad_lines)
    source = look_through(Path(input), job)
    worker = Worker(engine, job)
    facts = {"lm": engine.lm.config.name_or_path, "config": engine.config.as_dict()}
    do(job, source, Path(output), here(lambda: worker), facts=facts, progress=progress)


def look_through(path: Path, job: Job) -> Source:
    """The input, read once; what is wrong with it is known before a model is loaded.

    >>> look_through(Path("none.jsonl"), Job())
    Traceback (most recent call last):
    scone.errors.InputError: input must be a file of JSON lines, got 'none.jsonl': No such file or directory
    """
    source = Source.survey(path, job.lines)
    if not source.prompts:
        raise InputError(f"input must hold at least one prompt, got none in {str(path)!r}")
    if source.first_bad is not None and job.bad_lines == "stop":
        others = f" ({source.bad - 1} more like it)" if source.bad > 1 else ""
        raise InputError(_complaint(path, source.first_bad.number, source.first_bad.problem) + others)
    return source


def here(make: Callable[[], Worker]) -> Write:
    """Writes in this process, by a worker that is made when there is something to do.

    >>> here(lambda: lambda batch: [{"line": line.number} for line in batch.lines])  # doctest: +ELLIPSIS
    <function here.<locals>.write at ...>
    """

    def write(source: Source, missing: Sequence[int]) -> Iterable[tuple[int, list[Record]]]:
        worker = make()
        return ((index, worker(source.read(index))) for index in missing)

    return write


def do(
    job: Job,
    source: Source,
    output: Path,
    write: Write,
    *,
    facts: Mapping[str, Any],
    progress: Progress | None = None,
) -> None:
    """Does what is not done yet. facts: all besides the job and its input that decides what is written, as JSON.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> _ = (folder / "in").write_text('"The tea"')
    >>> job = Job()
    >>> write = here(lambda: lambda batch: [{"line": line.number} for line in batch.lines])
    >>> do(job, look_through(folder / "in", job), folder / "out", write, facts={})
    >>> (folder / "out").read_text()
    '{"line": 1}\\n'
    """
    everything = {"input": source.digest, **job.facts(), "order": job.order, **facts}
    with Ledger(output, everything, job.lines) as ledger:
        missing = [i for i in range(len(source)) if i not in ledger.done] if not ledger.finished else []
        done = source.lines - sum(map(source.lines_in, missing))
        if done:
            _log.info("%d of %d lines were done already", done, source.lines)
        if progress:
            progress(done, source.lines)
        for index, records in write(source, missing) if missing else ():
            for record in records:
                if "error" in record:
                    _report(job, source.path, record)
            ledger.add(index, records)
            done += source.lines_in(index)
            if progress:
                progress(done, source.lines)
        ledger.finish()


def _report(job: Job, path: Path, record: Record) -> None:
    complaint = _complaint(path, record["line"], record["error"])
    if job.bad_lines == "stop":
        raise InputError(complaint)
    _log.warning("%s: skipped", complaint)


def _complaint(path: Path, number: int, problem: str | None) -> str:
    return f"line {number} of {str(path)!r} cannot be used: {problem}"
