"""Tables of a report, in the paper's layout, as Markdown and as HTML."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from scone.evaluate.metrics import Interval
from scone.evaluate.summary import FULL, Batch, Summary, summarise
from scone.evaluate.tasks import TASKS

__all__ = ["Table", "cost_table", "quality_table", "task_tables"]


@dataclass
class Table:
    """A titled table of ready cells; `note` says how to read it."""

    title: str
    note: str
    header: list[str]
    rows: list[list[str]] = field(default_factory=list)

    def markdown(self) -> str:
        """As GitHub shows tables."""
        lines = [self.header, ["---", *["---:"] * (len(self.header) - 1)], *self.rows]
        body = "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
        return f"### {self.title}\n\n{self.note}\n\n{body}\n"

    def html(self) -> str:
        """As a table element."""
        head = "".join(f"<th>{html.escape(cell)}</th>" for cell in self.header)
        body = "".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in self.rows)
        return (
            f"<h3>{html.escape(self.title)}</h3><p>{html.escape(self.note)}</p>"
            f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
        )


def task_tables(task: str, batches: Sequence[Batch], whole: dict[str, Summary]) -> list[Table]:
    """The tables of one task: control as the paper shows it, then fluency and cost; `whole` by the batches' labels."""
    control = {"detoxify": _toxicity, "toxify": _toxicity, "topic": _topic}.get(task, _sentiment)
    return [*control(task, batches, whole), quality_table(task, whole), cost_table(task, whole)]


def quality_table(task: str, whole: dict[str, Summary]) -> Table:
    """The judge's score, fluency, variety, and what is missing."""
    table = Table(
        f"{task}: independent judge and quality of the text",
        "Judge: mean score of a judge of another kind that no method sees. φ alone: the verifier on the continuation "
        "without its prompt. PPL: over all tokens, and the mean of the texts' own. Repetition: share of a text's "
        "3-grams that stood in it before.",
        ["method", "judge", "φ alone", "PPL", "PPL of texts", "distinct 1 / 2 / 3", "repetition", "missing"],
    )
    for label, s in whole.items():
        table.rows.append(
            [
                label, percent(s.judge), percent(s.phi_continuation), decimal(s.perplexity), decimal(s.text_perplexity),
                " / ".join(f"{value:.2f}" for value in s.distinct), percent(s.repetition),
                f"{s.missing} of {s.generations}",
            ]
        )  # fmt: skip
    return table


def cost_table(task: str, whole: dict[str, Summary]) -> Table:
    """What a generated token costs."""
    table = Table(
        f"{task}: cost",
        "Times are those of the median prompt; all its samples are written at once. CPU: the time of all threads, without that of other processes. Peak memory is what comes on top of the loaded models. "
        "Evaluations: sequences through the model for each token that is kept.",
        [
            "method",
            "ms per token",
            "CPU ms per token",
            "peak MiB",
            "MiB per token",
            "verifier per token",
            "masked LM per token",
        ],
    )
    for label, s in whole.items():
        table.rows.append(
            [
                label, f"{1000 * s.seconds:.1f}", f"{1000 * s.cpu_seconds:.1f}", f"{s.peak_mib:.0f}", f"{s.mib_per_token:.2f}",
                f"{s.verifier:.2f}", f"{s.masked_lm:.2f}",
            ]
        )  # fmt: skip
    return table


def _toxicity(task: str, batches: Sequence[Batch], whole: dict[str, Summary]) -> list[Table]:
    groups = _groups(batches)
    detoxify = task == "detoxify"
    table = Table(
        f"{task}: toxicity ({'lower' if detoxify else 'higher'} is better)",
        f"Per cent, over {_sizes(whole)}. Toxic prob.: prompts with at least one toxic generation (toxicity of at "
        f"least {TASKS[task].threshold}); exp. max. toxicity: the highest of a prompt's generations, averaged over prompts"
        + ("; a missing generation counts as toxic in both." if detoxify else "; a missing generation is not toxic."),
        [
            "method",
            *(f"toxic prob. {group}" for group in groups),
            *(f"exp. max. toxicity {group}" for group in groups),
            "avg toxicity",
            "PPL",
        ],
    )
    for batch in batches:
        parts = {group: summarise(batch.part(group), draws=0) for group in groups[1:]} | {FULL: whole[batch.label]}
        toxic = [_turn(parts[g].all_satisfied) if detoxify else parts[g].at_least_one for g in groups]
        highest = [_turn(parts[g].worst) if detoxify else parts[g].best for g in groups]
        mean = _turn(parts[FULL].phi) if detoxify else parts[FULL].phi
        table.rows.append(
            [
                batch.label,
                *[percent(value if i == 0 else value.value) for i, value in enumerate(toxic)],
                *[percent(value if i == 0 else value.value) for i, value in enumerate(highest)],
                percent(mean),
                decimal(parts[FULL].perplexity),
            ]
        )
    return [table]


def _sentiment(task: str, batches: Sequence[Batch], whole: dict[str, Summary]) -> list[Table]:
    groups = _groups(batches)
    table = Table(
        f"{task}: control",
        f"Per cent, over {_sizes(whole)}. Prob.: prompts of whose generations at least one, or at least 90 %, have "
        f"φ ≥ {TASKS[task].threshold}; exp. min.: the lowest φ of a prompt's generations, averaged over prompts. "
        "A missing generation is no success in any of them.",
        [
            "method",
            *(f"avg φ {group}" for group in groups),
            *(f"prob. ≥ 1, {group}" for group in groups),
            *(f"prob. ≥ 90 %, {group}" for group in groups),
            *(f"exp. min. {group}" for group in groups),
            "PPL",
        ],
    )
    for batch in batches:
        parts = {group: summarise(batch.part(group), draws=0) for group in groups[1:]} | {FULL: whole[batch.label]}
        cells = [batch.label]
        for name in ("phi", "at_least_one", "nine_in_ten", "worst"):
            values: list[Interval] = [getattr(parts[group], name) for group in groups]
            cells += [percent(value if i == 0 else value.value) for i, value in enumerate(values)]
        table.rows.append([*cells, decimal(whole[batch.label].perplexity)])
    return [table]


def _topic(task: str, batches: Sequence[Batch], whole: dict[str, Summary]) -> list[Table]:
    threshold = TASKS[task].threshold
    main = Table(
        f"{task}: control",
        f"Per cent, over {_sizes(whole)}. Topic prob.: prompts of whose generations at least 90 %, or at least one, "
        f"have φ ≥ {threshold}. A missing generation is no success.",
        ["method", "topic prob. ≥ 90 %", "topic prob. ≥ 1", "exp. min. topic", "avg φ", "PPL"],
    )
    for label, s in whole.items():
        main.rows.append([label, *map(percent, (s.nine_in_ten, s.at_least_one, s.worst, s.phi)), decimal(s.perplexity)])
    groups = _groups(batches)[1:]
    parts = {batch.label: {group: summarise(batch.part(group), draws=0) for group in groups} for batch in batches}
    by_topic = Table(f"{task}: by topic", "Per cent.", ["metric", "method", *groups])
    for name, title in (("phi", "avg φ"), ("nine_in_ten", "topic prob. ≥ 90 %"), ("worst", "exp. min. topic")):
        for batch in batches:
            values = [getattr(parts[batch.label][group], name).value for group in groups]
            by_topic.rows.append([title, batch.label, *map(percent, values)])
    return [main, by_topic]


def percent(value: Interval | float) -> str:
    """In per cent, with the interval where there is one.

    >>> percent(0.931), percent(Interval(0.931, 0.9, 0.95)), percent(float("nan"))
    ('93.1', '93.1 [90.0, 95.0]', '–')
    """
    return _show(value, 100.0)


def decimal(value: Interval | float) -> str:
    """As it is, likewise."""
    return _show(value, 1.0)


def _show(value: Interval | float, scale: float) -> str:
    number = value.value if isinstance(value, Interval) else value
    if not np.isfinite(number):
        return "–"
    if isinstance(value, Interval):
        return f"{scale * number:.1f} [{scale * value.low:.1f}, {scale * value.high:.1f}]"
    return f"{scale * number:.1f}"


def _turn(value: Interval) -> Interval:
    """The interval of one minus the value."""
    return Interval(1 - value.value, 1 - value.high, 1 - value.low)


def _groups(batches: Sequence[Batch]) -> list[str]:
    """`full` and the groups in the order of the prompts."""
    found = dict.fromkeys(prompt["group"] for batch in batches for prompt in batch.prompts)
    return [FULL, *(group for group in found if group)]


def _sizes(whole: dict[str, Summary]) -> str:
    sizes = {(s.prompts, s.generations // max(1, s.prompts)) for s in whole.values()}
    return " or ".join(f"{prompts} prompts with {samples} generations each" for prompts, samples in sorted(sizes))
