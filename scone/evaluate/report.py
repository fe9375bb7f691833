"""A run as one Markdown file and one HTML page that needs nothing else."""

from __future__ import annotations

import html
import json
from collections.abc import Sequence
from pathlib import Path

from scone.evaluate.curve import curves
from scone.evaluate.plots import calibration_plot, curve_plot, score_plot
from scone.evaluate.summary import Batch, read_run, summarise
from scone.evaluate.tables import Table, task_tables
from scone.evaluate.tasks import TASKS

__all__ = ["write_report"]

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 76rem; margin: 2rem auto; padding: 0 1rem; color: #222; }
table { border-collapse: collapse; margin: 1rem 0; display: block; overflow-x: auto; font-size: 13px; }
th, td { padding: .25rem .6rem; border-bottom: 1px solid #ddd; text-align: right; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; } .curve svg { width: 100%; height: auto; } .plots svg { max-width: 48%; height: auto; min-width: 20rem; }
.texts td { white-space: normal; text-align: left; } .prompt { color: #777; } .missing { color: #b00; }
summary { cursor: pointer; } nav a { margin-right: 1rem; }
"""
FILTER = """
document.querySelectorAll('input.filter').forEach(box => box.addEventListener('input', () => {
  const words = box.value.toLowerCase();
  box.parentElement.querySelectorAll('tbody tr').forEach(row =>
    row.hidden = !row.textContent.toLowerCase().includes(words));
}));
"""


def write_report(folder: Path) -> tuple[Path, Path]:
    """Writes report.md, with a picture for each task, and report.html into the folder of a run; returns their paths."""
    batches = read_run(folder)
    by_task = {task: [batch for batch in batches if batch.task == task] for task in TASKS}
    by_task = {task: some for task, some in by_task.items() if some}
    whole = {task: {batch.label: summarise(batch) for batch in some} for task, some in by_task.items()}
    tables = {task: task_tables(task, some, whole[task]) for task, some in by_task.items()}
    pictures = {task: curve_plot(task, curves(some, whole[task])) for task, some in by_task.items()}
    for task, picture in pictures.items():
        (folder / f"curve-{task}.svg").write_text(picture, encoding="utf-8")
    runs = _runs(folder)
    markdown, page = folder / "report.md", folder / "report.html"
    markdown.write_text(_markdown(tables, runs, folder), encoding="utf-8")
    page.write_text(_html(by_task, pictures, tables, runs, folder), encoding="utf-8")
    return markdown, page


def _markdown(tables: dict[str, list[Table]], runs: Sequence[dict], folder: Path) -> str:
    parts = ["# Results", "", *_about(runs), ""]
    for task, some in tables.items():
        parts += [
            f"## {task}",
            "",
            f"![Control against what it is paid with](curve-{task}.svg)",
            "",
            *[table.markdown() for table in some],
        ]
    audit = folder / "audit.md"
    if audit.exists():
        parts.append(audit.read_text(encoding="utf-8"))
    return "\n".join(parts)


def _html(
    by_task: dict[str, list[Batch]], pictures: dict[str, str], tables: dict[str, list[Table]],
    runs: Sequence[dict], folder: Path,
) -> str:  # fmt: skip
    sections = []
    for task, batches in by_task.items():
        sections.append(
            f'<h2 id="{task}">{task}</h2>'
            + "".join(table.html() for table in tables[task])
            + f'<div class="curve">{pictures[task]}</div><div class="plots">{score_plot(task, batches)}</div>'
            + _texts(batches)
        )
    audit = folder / "audit.json"
    if audit.exists():
        rows = json.loads(audit.read_text(encoding="utf-8"))["rows"]
        table = html.escape((folder / "audit.md").read_text(encoding="utf-8"))
        sections.append(f'<h2 id="audit">audit</h2><pre>{table}</pre><div class="plots">{calibration_plot(rows)}</div>')
    links = "".join(f'<a href="#{name}">{name}</a>' for name in [*by_task, *(["audit"] if audit.exists() else [])])
    about = "".join(f"<p>{html.escape(line)}</p>" for line in _about(runs) if line)
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>SConE: results</title>'
        f"<style>{STYLE}</style></head><body><h1>Results</h1>{about}<nav>{links}</nav>{''.join(sections)}"
        f"<script>{FILTER}</script></body></html>\n"
    )


def _texts(batches: Sequence[Batch]) -> str:
    """Every generation, to browse and to filter."""
    rows = []
    for batch in batches:
        for prompt in batch.prompts:
            start = f'<span class="prompt">{html.escape(prompt["prompt"])}</span>'
            for sample in prompt["samples"]:
                cells = (
                    f"<td>{sample['phi']:.3f}</td><td>{start}{html.escape(sample['continuation'])}</td>"
                    if sample
                    else f'<td>–</td><td>{start} <span class="missing">missing</span></td>'
                )
                rows.append(
                    f"<tr><td>{html.escape(batch.label)}</td><td>{html.escape(prompt['target'])}</td>{cells}</tr>"
                )
    return (
        f"<details><summary>{len(rows)} texts</summary><input class='filter' placeholder='filter by any word'>"
        f"<table class='texts'><thead><tr><th>method</th><th>target</th><th>φ</th><th>text</th></tr></thead>"
        f"<tbody>{''.join(rows)}</tbody></table></details>"
    )


def _about(runs: Sequence[dict]) -> list[str]:
    """Command, commit and machine of every invocation; equal ones once."""
    lines = []
    for run in runs:
        machine, versions = run["machine"], run["versions"]
        commit = f"{run['commit'] or 'unknown'}{' with uncommitted changes' if run['changed'] else ''}"
        lines += [
            f"`{run['command']}`, {run['time']}, commit {commit}; {machine['processor']}, {machine['cores']} cores, "
            f"GPU: {machine['gpu'] or 'none'}; {machine['system']}; "
            + ", ".join(f"{name} {version}" for name, version in versions.items())
            + ".",
            "",
        ]
    return lines


def _runs(folder: Path) -> list[dict]:
    path = folder / "runs.jsonl"
    whole = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    runs = {}
    for line in whole:
        try:
            run = json.loads(line)
        except ValueError:  # torn by a kill
            continue
        runs[run["command"], run["commit"]] = run
    return list(runs.values())
