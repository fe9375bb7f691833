"""`scone audit`: is q right?"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

from scone.errors import InputError
from scone.evaluate.arguments import (
    PROMPTS_HELP,
    add_model_arguments,
    check_at_least_one,
    model_names,
    output_folder,
    say,
    task_prompts,
)
from scone.evaluate.audit import TARGET_ROLLOUTS, Audit, Estimator, audit
from scone.evaluate.estimators import OPTION_ROWS, myopic, next_token, plain_rollouts, remembered
from scone.evaluate.models import Models, fingerprint
from scone.evaluate.progress import Progress
from scone.evaluate.records import Records
from scone.evaluate.rollouts import POSITIONS, Prefix, collect, load_rollouts, score_rollouts
from scone.evaluate.tasks import TASKS, Prompt, Task, pick_evenly
from scone.evaluate.walk import next_token_after
from scone.settings import parse_settings

__all__ = ["add_arguments", "markdown", "run"]

PARTS = {"choose": slice(0, None, 2), "confirm": slice(1, None, 2)}
SPARE = 8  # rollouts a candidate beyond the truth, for the rows rollouts:1 and rollouts:4


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `scone audit`."""
    parser.add_argument("task", choices=list(TASKS), help="whose prompts and attribute")
    parser.add_argument("--out", type=Path, required=True, help="folder of the rollouts and of the audit")
    parser.add_argument("--prompts", help=PROMPTS_HELP)
    parser.add_argument("--count", type=int, default=12, help="number of prompts, of all groups alike (default: 12)")
    parser.add_argument(
        "--part",
        choices=list(PARTS),
        help="every other prompt, to choose settings on, or the others, to confirm them on",
    )
    parser.add_argument("--places", nargs="+", choices=list(POSITIONS), default=list(POSITIONS))
    parser.add_argument("--rollouts", type=int, default=TARGET_ROLLOUTS, help="a candidate, as truth (default: 64)")
    parser.add_argument("--max-new-tokens", type=int, default=25, help="length of a finished text (default: 25)")
    parser.add_argument("--seed", type=int, default=0, help="of prefixes and rollouts (default: 0)")
    parser.add_argument("--seeds", type=int, default=2, help="how often each random estimate is asked (default: 2)")
    parser.add_argument(
        "--rows", nargs="+", metavar="ROW", default=["myopic", "rollouts:1", "rollouts:4", *OPTION_ROWS],
        help="myopic, rollouts:N, or a preset and changes to it, such as default or lookahead=paths,count=2",
    )  # fmt: skip
    parser.add_argument(
        "--cold", action="store_true", help="carry no lookahead through the prefix: each estimate begins afresh"
    )
    parser.add_argument("--stored", action="store_true", help="draw nothing: audit on all the rollouts that are there")
    parser.add_argument("--rollouts-only", action="store_true", help="draw and store the rollouts, and stop")
    add_model_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Draw the rollouts that are not there yet, compare the rows with them, write audit.json and audit.md."""
    check_at_least_one(args, "count", "seeds", "max_new_tokens")
    if args.rollouts < 2:
        raise InputError(f"--rollouts must be at least 2, got {args.rollouts}")
    configs = {row: parse_settings(row) for row in args.rows if row != "myopic" and not row.startswith("rollouts:")}
    task = TASKS[args.task]
    all_prompts = task_prompts(task, args.prompts)[PARTS.get(args.part, slice(None))]
    targets = {prompt.text: target_of(task, prompt) for prompt in all_prompts}
    models = Models(model_names(args), task.attribute)
    folder = output_folder(args.out) / "rollouts"
    if args.stored:
        stored = [rollouts for rollouts in load_rollouts(folder) if rollouts.step.prompt in targets]
    else:
        prompts = [prompt.text for prompt in pick_evenly(all_prompts, args.count)]
        stored = collect(
            models.lm, prompts, folder, rollouts=args.rollouts + SPARE, length=args.max_new_tokens,
            places=args.places, seed=args.seed, say=say,
        )  # fmt: skip
    if args.rollouts_only:
        return 0

    name = f"{task.name}-{fingerprint(models.classifier[0])}"
    score = lambda step, texts: models.score(targets[step.prompt], task.avoid)(texts)  # noqa: E731
    phis = score_rollouts(stored, models.lm, score, name, say=say)

    def engine_for(row: str) -> Callable[[Prefix], object]:
        # Every candidate is to have its q here, the improbable ones too, unless the row says otherwise.
        config = configs[row] if "min_mass" in row else configs[row].replace(min_mass=0.0)
        return lambda step: models.engine(targets[step.prompt], task.avoid, config)

    answers = Records(args.out / "estimates.jsonl")
    progress = Progress(len(configs) * len(stored), "estimates", say=say)
    estimators: dict[str, Estimator] = {}
    for row in args.rows:
        if row == "myopic":
            estimators[row] = myopic(score, models.lm)
        elif row.startswith("rollouts:"):
            estimators[row] = plain_rollouts(int(row.partition(":")[2]), stored, phis, kept_apart=args.rollouts)
        else:
            asked = next_token(engine_for(row), seeds=range(args.seeds), walk=None if args.cold else next_token_after)
            facts = {
                "row": row,
                "config": configs[row].as_dict(),
                "verifier": name,
                "seeds": args.seeds,
                "cold": args.cold,
            }
            estimators[row] = remembered(asked, facts, answers, progress)
    result = audit(stored, phis, estimators, target_rollouts=args.rollouts, say=say)
    (args.out / "audit.json").write_text(json.dumps({"task": task.name, **asdict(result)}, indent=1), encoding="utf-8")
    (args.out / "audit.md").write_text(markdown(result, task.name), encoding="utf-8")
    print(markdown(result, task.name))
    return 0


def target_of(task: Task, prompt: Prompt) -> str:
    """The label that φ is about."""
    target = prompt.target or task.target
    assert target is not None  # prompts are checked when they are read
    return target


def markdown(result: Audit, task: str) -> str:
    """The audit as a table."""
    places = list(result.reliability_by_place)
    trust = ", ".join(f"{place} {value:.2f}" for place, value in result.reliability_by_place.items())
    lines = [
        f"## Audit: {task}",
        "",
        f"{result.steps} steps, {result.rollouts} rollouts a candidate; reliability of the rollouts' ranking "
        f"{result.reliability:.2f} ({trust}); lift of a q as good as half of the rollouts {result.best_lift:+.3f}.",
        "",
        _table_line(
            [
                "q from",
                "rank corr.",
                "corrected [95 %]",
                f"less `{result.rows[0].name}`",
                *places,
                "error",
                "lift",
                "covered",
                "LM rows",
                "verifier rows",
                "s/step",
            ]
        ),
        _table_line(["---", *["---:"] * (10 + len(places))]),
    ]
    for row in result.rows:
        value, low, high = row.corrected
        lines.append(
            _table_line(
                [
                    f"`{row.name}`",
                    f"{row.correlation:.2f}",
                    f"{value:.2f} [{low:.2f}, {high:.2f}]",
                    "{:+.2f} [{:+.2f}, {:+.2f}]".format(*row.difference),
                    *[f"{row.by_place[place]:.2f}" for place in places],
                    f"{row.error:.3f}",
                    f"{row.lift:+.3f}",
                    f"{100 * row.covered:.0f} %",
                    _count(row.lm_rows),
                    _count(row.verifier_rows),
                    f"{row.seconds:.2f}",
                ]
            )
        )
    return "\n".join(lines) + "\n"


def _count(value: float) -> str:
    return "–" if value != value else f"{value:.0f}"


def _table_line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"
