"""What writes the texts of a batch of lines: an engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from scone.errors import InputError
from scone.jobs.job import Job
from scone.jobs.lines import Batch, Line

if TYPE_CHECKING:
    from scone.decode import Scone
    from scone.verifier import Expression

__all__ = ["Record", "Worker"]

Record = dict[str, Any]


class Worker:
    """Writes the records of a batch: for each line one a sample, or one that says what is wrong with the line.

    `judges` are verifiers by name whose scores each record has besides `score`, φ by the engine's own.

    >>> from scone.decode import Scone
    >>> from scone.jobs.lines import Batch, Line
    >>> worker = Worker(Scone.from_pretrained(), Job(max_new_tokens=1))
    >>> [record["tokens"] for record in worker(Batch(0, (Line(1, "The tea"),)))]
    [1]
    """

    def __init__(self, engine: Scone, job: Job, judges: Mapping[str, Expression] | None = None) -> None:
        self.engine, self.job, self.judges = engine, job, judges or {}

    def __call__(self, batch: Batch) -> list[Record]:
        lines = [self._checked(line) for line in batch.lines]
        good = [line for line in lines if line.problem is None]
        written = iter(self._write(good) if good else ())
        records: list[Record] = []
        for line in lines:
            if line.problem is None:
                records += (next(written) for _ in range(self.job.samples))
            else:
                records.append({**_place(line), "error": line.problem})
        return records

    def _checked(self, line: Line) -> Line:
        """The line, or what is wrong with it where its prompt cannot be continued by this LM."""
        if line.prompt is None:
            return line
        try:
            self.engine.open([line.prompt], max_new_tokens=self.job.max_new_tokens, seed=self.job.seed)
        except InputError as problem:
            return line._replace(prompt=None, problem=str(problem))
        return line

    def _write(self, lines: Sequence[Line]) -> list[Record]:
        from scone.text import scored

        job = self.job
        prompts = [line.prompt for line in lines if line.prompt is not None]
        out = self.engine.generate(
            prompts,
            max_new_tokens=job.max_new_tokens,
            num_return_sequences=job.samples,
            seed=job.seed,
        )
        scores = {}
        for name, judge in self.judges.items():
            texts = [self.engine.finished(prompts[i // job.samples], c, judge) for i, c in enumerate(out.continuations)]
            scores[name] = scored(texts, judge).tolist()
        records = []
        for i, (text, continuation, ids, reason) in enumerate(
            zip(out.texts, out.continuations, out.token_ids, out.finish_reasons)
        ):
            line = lines[i // job.samples]
            record = {
                **_place(line),
                "sample": i % job.samples,
                "prompt" if isinstance(line.prompt, str) else "messages": line.prompt,
                "continuation": continuation,
                "text": text,
                "tokens": len(ids),
                "finish_reason": reason,
                "score": round(float(out.scores[i]), 6),
            }
            if scores:
                record["scores"] = {name: round(values[i], 6) for name, values in scores.items()}
            records.append(record)
        return records


def _place(line: Line) -> Record:
    return {"line": line.number} if line.id is None else {"line": line.number, "id": line.id}
