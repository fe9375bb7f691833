"""The numbers of a run: records in, one `Summary` for each task, method and group of prompts out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from scone.errors import InputError
from scone.evaluate import metrics
from scone.evaluate.metrics import Interval
from scone.evaluate.records import Record, Records
from scone.evaluate.tasks import TASKS

__all__ = ["FULL", "Batch", "Summary", "read_run", "summarise"]

FULL = "full"


@dataclass(frozen=True)
class Batch:
    """What one method wrote for one task: arrays are (prompts, samples), NaN where a generation is missing."""

    task: str
    label: str
    kind: str
    prompts: list[Record]  # text, group, target, samples
    phi: np.ndarray
    phi_continuation: np.ndarray
    judge: np.ndarray
    nll: np.ndarray
    nll_tokens: np.ndarray
    costs: list[Record]

    def part(self, group: str) -> Batch:
        """Only the prompts of a group."""
        rows = [i for i, prompt in enumerate(self.prompts) if group in (FULL, prompt["group"])]
        arrays = {name: getattr(self, name)[rows] for name in ("phi", "phi_continuation", "judge", "nll", "nll_tokens")}
        chosen = [self.prompts[i] for i in rows], [self.costs[i] for i in rows]
        return Batch(self.task, self.label, self.kind, chosen[0], costs=chosen[1], **arrays)


@dataclass(frozen=True)
class Summary:
    """The metrics of a batch; fractions, not per cent."""

    prompts: int
    generations: int
    missing: int
    phi: Interval
    worst: Interval
    best: Interval
    at_least_one: Interval  # prompts with a sample that satisfies the constraint
    nine_in_ten: Interval  # prompts of whose samples at least 90 % do
    all_satisfied: Interval  # prompts of whose samples all do
    phi_continuation: float  # φ of the continuation alone
    judge: Interval
    perplexity: Interval  # over all tokens
    text_perplexity: float  # mean of the texts' own
    distinct: tuple[float, float, float]  # 1-, 2- and 3-grams over a prompt's samples
    repetition: Interval
    seconds: float  # per generated token, by the clock: the median prompt's, as one that was interrupted says nothing
    cpu_seconds: float  # per generated token, of all threads: likewise
    peak_mib: float  # above what the models take, for all samples of a prompt at once
    mib_per_token: float
    verifier: float  # sequences through it per generated token
    masked_lm: float


def read_run(folder: Path) -> list[Batch]:
    """The batches of a run folder, in the order of its tables."""
    if not (folder / "samples.jsonl").is_file():
        raise InputError(f"folder must hold a run of `scone evaluate` (samples.jsonl), got {folder}")
    samples, costs = Records(folder / "samples.jsonl"), Records(folder / "costs.jsonl")
    scores = {(record["of"], record["scorer"]): record["values"] for record in Records(folder / "scores.jsonl")}
    groups: dict[tuple[str, str, str], list[Record]] = {}
    for record in sorted(samples, key=lambda record: record["place"]):
        method = record["method"] + (", continuation judged" if record.get("verdict") == "continuation" else "")
        groups.setdefault((record["task"], method, record["setup"]), []).append(record)
    names = [(task, method) for task, method, _ in groups]
    batches = []
    for (task, method, setup), records in groups.items():
        # One method with two setups (another seed, other weights) makes two rows.
        label = method if names.count((task, method)) == 1 else f"{method} ({setup[:4]})"
        perplexity = [_values(scores, record, "perplexity") for record in records]
        batches.append(
            Batch(
                task, label, records[0]["settings"]["kind"], records,
                phi=_array(records, "phi"),
                phi_continuation=_array(records, "phi_continuation"),
                judge=np.array([[_number(v) for v in _values(scores, record, "judge")] for record in records]),
                nll=np.array([[_number(v and v[0]) for v in row] for row in perplexity]),
                nll_tokens=np.array([[v[1] if v else 0 for v in row] for row in perplexity]),
                costs=[costs.get(record["key"]) or {} for record in records],
            )
        )  # fmt: skip
    return batches


def summarise(batch: Batch, *, draws: int = 1000) -> Summary:
    """All metrics of a batch, with bootstrap intervals over its prompts unless `draws` is 0."""
    threshold, phi = TASKS[batch.task].threshold, batch.phi
    present = ~np.isnan(batch.nll) & (batch.nll_tokens > 0)
    own = np.exp(batch.nll[present] / batch.nll_tokens[present])
    texts = [[sample["continuation"] for sample in prompt["samples"] if sample] for prompt in batch.prompts]
    repeated = np.array([np.mean([metrics.repetition(t) for t in some]) if some else np.nan for some in texts])
    tokens = sum(cost.get("tokens", 0) for cost in batch.costs)
    peaks = [cost["peak_bytes"] / 2**20 for cost in batch.costs if cost]

    def interval(statistic: Callable[[np.ndarray], float], array: np.ndarray = phi) -> Interval:
        return metrics.bootstrap(lambda rows: statistic(array[rows]), len(array), draws=draws)

    return Summary(
        prompts=len(phi),
        generations=phi.size,
        missing=metrics.missing(phi),
        phi=interval(metrics.average),
        worst=interval(metrics.worst_score),
        best=interval(metrics.best_score),
        at_least_one=interval(lambda some: metrics.constraint_probability(some, threshold)),
        nine_in_ten=interval(lambda some: metrics.constraint_probability(some, threshold, share=0.9)),
        all_satisfied=interval(lambda some: metrics.constraint_probability(some, threshold, share=1.0)),
        phi_continuation=metrics.average(batch.phi_continuation),
        judge=interval(metrics.average, batch.judge),
        perplexity=metrics.bootstrap(
            lambda rows: metrics.corpus_perplexity(batch.nll[rows], batch.nll_tokens[rows]), len(phi), draws=draws
        ),
        text_perplexity=float(own.mean()) if own.size else float("nan"),
        distinct=tuple(_mean([metrics.distinct_n(some, n) for some in texts]) for n in (1, 2, 3)),  # type: ignore[arg-type]
        repetition=interval(metrics.average, repeated),
        seconds=_median_per_token(batch.costs, "seconds"),
        cpu_seconds=_median_per_token(batch.costs, "cpu_seconds"),
        peak_mib=max(peaks, default=float("nan")),
        mib_per_token=_per(sum(peaks), tokens),
        verifier=_per(_sequences(batch.costs, "verifier"), tokens),
        masked_lm=_per(_sequences(batch.costs, "masked_lm"), tokens),
    )


def _values(scores: dict[tuple[str, str], list[Any]], record: Record, scorer: str) -> list[Any]:
    """What a scorer said of a record's samples; nothing where it was not asked."""
    return scores.get((record["key"], scorer)) or [None] * len(record["samples"])


def _array(records: Sequence[Record], name: str) -> np.ndarray:
    return np.array([[_number(sample and sample[name]) for sample in record["samples"]] for record in records])


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) else float("nan")


def _mean(values: Sequence[float]) -> float:
    finite = [value for value in values if np.isfinite(value)]
    return float(np.mean(finite)) if finite else float("nan")


def _per(total: float, tokens: int) -> float:
    return total / tokens if tokens else float("nan")


def _median_per_token(costs: Sequence[Record], name: str) -> float:
    found = [cost[name] / cost["tokens"] for cost in costs if cost.get("tokens")]
    return median(found) if found else float("nan")


def _sequences(costs: Sequence[Record], model: str) -> int:
    return sum(cost.get("sequences", {}).get(model, 0) for cost in costs)
