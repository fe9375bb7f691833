"""One piece of work: the samples of one method for one prompt, with their scores and costs. Runs in any process."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from functools import cache
from typing import Any

import numpy as np

from scone.evaluate.cost import count_sequences, measure
from scone.evaluate.fluency import negative_log_likelihood
from scone.evaluate.methods import Job, Method, generate
from scone.evaluate.models import ModelNames, Models
from scone.evaluate.records import Record, key_of

__all__ = ["SCORERS", "Item", "Result", "do", "facts_of", "models_for", "score_key", "setup_of"]

SCORERS = ("perplexity", "judge")


@dataclass(frozen=True)
class Item:
    """A piece of work. `place` orders the records; `written` are samples that exist and lack only `scorers`."""

    task: str
    attribute: str
    method: Method
    job: Job
    group: str
    place: tuple[int, int, int]  # task, method, prompt
    names: ModelNames
    key: str
    scorers: tuple[str, ...] = SCORERS
    written: Record | None = None


@dataclass
class Result:
    """The records of an item."""

    samples: Record | None = None
    cost: Record | None = None
    scores: list[Record] = field(default_factory=list)


@cache
def models_for(names: ModelNames, attribute: str) -> Models:
    """The models of this process."""
    return Models(names, attribute)


def facts_of(task: str, method: Method, job: Job, models: Models) -> Record:
    """Everything that determines what is written, models included as far as the method uses them."""
    used = {"lm": models.fingerprints.lm}
    if method.kind not in ("random", "topk10", "beamsearch"):
        used["verifier"] = models.fingerprints.verifier
        used["label"] = models.label(job.target)
    if method.uses_masked_lm:
        used["masked_lm"] = models.fingerprints.masked_lm
    about = {name: value for name, value in asdict(job).items() if (name, value) != ("verdict", "text")}  # as before
    return {"task": task, "method": method.settings, "job": about, "models": used}


def setup_of(facts: Record) -> str:
    """What the records of one row of a table have in common: the facts without the prompt and its target."""
    job = {name: value for name, value in facts["job"].items() if name not in ("prompt", "target")}
    models = {name: value for name, value in facts["models"].items() if name != "label"}
    return key_of({**facts, "job": job, "models": models})


def do(item: Item) -> Result:
    """Write, unless that is done, and score. A failure becomes a record of missing samples, not a stop."""
    models = models_for(item.names, item.attribute)
    result = Result()
    samples = item.written
    if samples is None:
        samples, result.cost = _write(item, models)
        result.samples = samples
    result.scores = [_score(item, models, samples, scorer) for scorer in item.scorers]
    return result


def score_key(item_key: str, scorer: str, models: Models) -> str:
    """The key of a scorer's record: it changes with the scorer's model."""
    model = models.fingerprints.perplexity_lm if scorer == "perplexity" else models.judge_name
    return key_of({"of": item_key, "scorer": scorer, "model": model})


def _write(item: Item, models: Models) -> tuple[Record, Record]:
    job, error = item.job, None
    parts = _parts(item.method, models, job)
    drawn: list[list[int]] = []
    with count_sequences(**parts) as counts, measure(models.lm.device) as cost:
        try:
            drawn = generate(item.method, models, job)
        except Exception as problem:  # a method that fails on a prompt has missing samples there
            error = f"{type(problem).__name__}: {problem}"
    prompt_ids = models.lm.encode(job.prompt)
    start = models.lm.decode(prompt_ids)
    continuations = [models.lm.decode([*prompt_ids, *ids])[len(start) :] for ids in drawn]
    present = [i for i, continuation in enumerate(continuations) if continuation.strip()]
    score = models.score(job.target, job.avoid)
    texts = [job.judged_prompt + continuations[i] for i in present] + [continuations[i] for i in present]
    phi = score(texts).reshape(2, -1) if present else np.zeros((2, 0))
    samples: list[Record | None] = [None] * job.samples
    for i, of_text, of_continuation in zip(present, *phi):
        samples[i] = {
            "continuation": continuations[i],
            "tokens": len(drawn[i]),
            "phi": round(float(of_text), 6),
            "phi_continuation": round(float(of_continuation), 6),
        }
    task, method, prompt = item.place
    record = {
        "key": item.key,
        "place": [task, method, prompt],
        "task": item.task,
        "method": item.method.name,
        "setup": setup_of(facts_of(item.task, item.method, job, models)),
        "settings": item.method.settings,
        "prompt": job.prompt,
        "group": item.group,
        "target": job.target,
        "max_new_tokens": job.max_new_tokens,
        "seed": job.seed,
        "verdict": job.verdict,
        "samples": samples,  # null: missing
    }
    if error is not None:
        record["error"] = error
    spent = {
        "key": item.key,
        "place": [task, method, prompt],
        "seconds": cost.seconds,
        "cpu_seconds": cost.cpu_seconds,
        "device": models.lm.device.type,
        "peak_bytes": cost.peak_bytes,
        "tokens": sum(map(len, drawn)),
        "sequences": counts,
    }
    return record, spent


def _parts(method: Method, models: Models, job: Job) -> dict[str, list[object]]:
    """What sequences go through; all of it is loaded here, so that loading is not measured."""
    parts: dict[str, list[object]] = {"lm": [models.lm], "verifier": [*models.verifier(job.target, job.avoid).leaves]}
    if method.config is not None:
        own = models.engine(job.target, job.avoid, method.config).parts
        parts["lm"].append(own.lm)
        parts["masked_lm"] = [own.masked_lm] if method.uses_masked_lm else []
    return parts


def _score(item: Item, models: Models, samples: Record, scorer: str) -> Record:
    present = [i for i, sample in enumerate(samples["samples"]) if sample is not None]
    continuations = [samples["samples"][i]["continuation"] for i in present]
    record: dict[str, Any] = {
        "key": score_key(item.key, scorer, models),
        "place": [*item.place, SCORERS.index(scorer)],
        "of": item.key,
        "scorer": scorer,
    }
    values: list[Any] = [None] * len(samples["samples"])
    if present and scorer == "perplexity":
        nll, tokens = negative_log_likelihood(models.perplexity_lm, item.job.prompt, continuations)
        for i, total, count in zip(present, nll, tokens):
            values[i] = [round(float(total), 4), int(count)]
    elif present:
        texts = [item.job.judged_prompt + continuation for continuation in continuations]
        for i, value in zip(present, models.judge_score(item.job.target, item.job.avoid)(texts)):
            values[i] = round(float(value), 6)
    record["values"] = values
    return record
