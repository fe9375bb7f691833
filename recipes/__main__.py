"""`python -m recipes mlm|sentiment|toxicity|topic|judges`: make the files in `scone/embedded/weights`."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import torch

from recipes import classifier, judges, mlm, publish, tasks
from scone.embedded.cache import cache_folder
from scone.embedded.encoders import fresh_masked_lm, load_masked_lm
from scone.embedded.names import LABELS, WEIGHTS

MINUTES = {"mlm": 100.0, "sentiment": 15.0, "toxicity": 8.0, "topic": 8.0}


def main(arguments: list[str] | None = None) -> int:
    """Train one model, write its file and card, and print its scores on held-out text."""
    parser = argparse.ArgumentParser(prog="python -m recipes", description=__doc__)
    parser.add_argument("recipe", choices=[*MINUTES, "judges"])
    parser.add_argument("--minutes", type=float, help=f"how long to train (default: {MINUTES})")
    parser.add_argument("--rate", type=float, help="peak learning rate")
    parser.add_argument("--workers", type=int, default=2, help="threads that compute gradients (default: 2)")
    parser.add_argument("--out", type=Path, default=WEIGHTS, help="where the weights go (default: the package)")
    parser.add_argument("--runs", type=Path, default=cache_folder() / "runs", help="where checkpoints go")
    parser.add_argument("--onwards", action="store_true", help="mlm: begin with the weights that scone ships")
    parser.add_argument("--bfloat16", action="store_true", help="mlm: faster where the CPU has AVX512-BF16 or AMX")
    parser.add_argument("--no-train", action="store_true", help="publish the last checkpoint as it is")
    parser.add_argument(
        "--score", action="store_true", help="mlm: score what scone ships and what it began with, no more"
    )
    options = parser.parse_args(arguments)
    if options.minutes is not None and options.minutes <= 0:
        parser.error(f"--minutes must be positive, got {options.minutes}")
    for flag in ("onwards", "bfloat16", "score"):
        if getattr(options, flag) and options.recipe != "mlm":
            parser.error(f"--{flag} must come with mlm, got {options.recipe}")
    if options.recipe == "judges":
        scores = {name: _train_judge(name, options) for name in LABELS}
    elif options.score:
        models = {"masked-lm": load_masked_lm()[0], "masked-lm before training": fresh_masked_lm()}
        scores = {name: publish.score_masked_lm(model) for name, model in models.items()}
    elif options.recipe == "mlm":
        scores = {"masked-lm": _train_masked_lm(options)}
    else:
        scores = {options.recipe: _train_classifier(options.recipe, options)}
    for name, values in scores.items():
        print(name)
        for key, value in values.items():
            print(f"  {value:<8g} {key}")
    return 0


def _command(options: argparse.Namespace, minutes: float | None = None) -> str:
    command = f"python -m recipes {options.recipe}" + (f" --minutes {minutes:g}" if minutes else "")
    command += f" --rate {options.rate:g}" if options.rate else ""
    return command + "".join(f" --{flag}" for flag in ("onwards", "bfloat16") if getattr(options, flag))


def _settings(options: argparse.Namespace) -> dict:
    return {"workers": options.workers} | ({"rate": options.rate} if options.rate else {})


def _train_masked_lm(options: argparse.Namespace) -> dict[str, float]:
    minutes = options.minutes or MINUTES["mlm"]
    folder, precision = options.runs / "mlm", torch.bfloat16 if options.bfloat16 else torch.float32
    run = mlm.prepare(folder, minutes, onwards=options.onwards, precision=precision, **_settings(options))
    model = run.averaged() if options.no_train else run.finish()
    command, earlier = _command(options, minutes), {}
    if options.onwards:
        shipped = json.loads((WEIGHTS / "masked-lm.json").read_text())
        command, earlier = f"{shipped['command']} && {command}", shipped["training"]
    return publish.publish_masked_lm(model, options.out, folder / "curve.csv", command, earlier)


def _train_classifier(name: str, options: argparse.Namespace) -> dict[str, float]:
    minutes = options.minutes or MINUTES[name]
    task = tasks.task(name)
    run = classifier.prepare(task, options.runs / name, minutes, **_settings(options))
    model = run.averaged() if options.no_train else run.finish()
    temperature = classifier.calibrate(model, classifier.word_pieces(), task.validation)
    training = {key: round(float(run.state[key]), 1) for key in ("step", "tokens")}
    training |= {"minutes": minutes, "temperature": round(temperature, 3)}
    return publish.publish_classifier(name, model, options.out, _command(options, minutes), training)


def _train_judge(name: str, options: argparse.Namespace) -> dict[str, float]:
    path = options.out / f"judge-{name}.safetensors"
    judge, training = judges.train(name, path)
    return publish.publish_judge(name, judge, path, _command(options), training)


if __name__ == "__main__":
    sys.exit(main())
