"""On a Ray of this machine with two actors a job and an evaluation give what they give without, also when an actor dies.

`make test-ray` makes the environment.
"""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest

pytest.importorskip("ray.data", reason="needs the extra scone[ray]: make test-ray")  # `ray` is this folder

from models import save

from scone.cli import main
from scone.cli.attributes import Attribute
from scone.cli.job import Recipe
from scone.config import SconeConfig
from scone.errors import InputError
from scone.evaluate.methods import parse_method
from scone.evaluate.models import ModelNames
from scone.evaluate.runner import Plan, execute
from scone.evaluate.tasks import Prompt
from scone.jobs import Job, do, here, look_through
from scone.jobs.cluster import Pool

LINES = [
    f"the movie was {word}"
    for word in ["great", "bad", "nice", "dull", "strange", "wonderful", "terrible", "old", "good", "new"]
]


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("ray")


@pytest.fixture(scope="session")
def names(folder):
    return save(folder)


@pytest.fixture(scope="session")
def prompts(folder):
    path = folder / "prompts.jsonl"
    path.write_text("".join(json.dumps({"prompt": line, "id": i}) + "\n" for i, line in enumerate(LINES)) + "{broken\n")
    return path


def command(names, prompts, output, *more):
    lm, judge = names
    return ["generate", "--input", str(prompts), "--output", str(output), "--lm", lm, "-a", f"{judge}:positive",
            "--batch", "2", "--max-new-tokens", "5", "--bad-lines", "skip", *more]  # fmt: skip


@pytest.fixture(scope="session")
def alone(folder, names, prompts):
    """What one process writes."""
    output = folder / "alone.jsonl"
    assert main(command(names, prompts, output)) == 0
    return output.read_bytes()


def test_the_same_file_as_without(folder, names, prompts, alone):
    output = folder / "ordered.jsonl"
    assert main(command(names, prompts, output, "--engine", "ray", "--actors", "2")) == 0
    assert output.read_bytes() == alone


def test_as_batches_get_done_the_same_records(folder, names, prompts, alone):
    output = folder / "finished.jsonl"
    assert main(command(names, prompts, output, "--engine", "ray", "--order", "finished")) == 0
    assert sorted(output.read_bytes().splitlines(), key=lambda raw: json.loads(raw)["line"]) == alone.splitlines()


@pytest.fixture
def recipe(names):
    lm, judge = names
    job = Job(batch=2, max_new_tokens=5, bad_lines="skip")
    attributes = (Attribute.parse(f"{judge}:positive"),)
    return Recipe(lm, "embedded", None, None, attributes, SconeConfig(), job)


@pytest.mark.parametrize("order", ["input", "finished"])
def test_an_actor_that_is_killed_is_replaced(order, folder, tmp_path, prompts, recipe, alone):
    """By SIGKILL while it is at work: nothing is lost, nothing comes twice."""
    seen = tmp_path / "actors"
    seen.mkdir()

    def make(recipe=recipe, seen=str(seen)):
        worker = recipe.make()
        (Path(seen) / str(os.getpid())).touch()

        def work(batch):
            time.sleep(0.5)
            return batch.index, worker(batch)

        return work

    def on_ray(source, missing):
        return Pool(actors=2).map(make, source.read, missing, ordered=order == "input")

    killed = []

    def kill(done, total):
        if done and not killed:
            killed.append(int(sorted(seen.iterdir())[0].name))
            os.kill(killed[0], signal.SIGKILL)

    job = recipe.job.replace(order=order)
    output = tmp_path / "out.jsonl"
    do(job, look_through(prompts, job), output, on_ray, facts={}, progress=kill)
    assert killed and len(list(seen.iterdir())) == 3  # two, and the one that took the place
    written = output.read_bytes()
    if order == "finished":
        written = b"".join(sorted(written.splitlines(True), key=lambda raw: json.loads(raw)["line"]))
    assert written == alone


def test_a_job_begun_alone_is_finished_with_ray(tmp_path, prompts, recipe, alone):
    output = tmp_path / "out.jsonl"

    def stop(done, total):
        if done >= 4:
            raise KeyboardInterrupt

    source = look_through(prompts, recipe.job)
    with pytest.raises(KeyboardInterrupt):
        do(recipe.job, source, output, here(recipe.make), facts=recipe.facts(), progress=stop)
    lm, judge = recipe.lm, recipe.attributes[0].model
    assert main(command((lm, judge), prompts, output, "--engine", "ray")) == 0
    assert output.read_bytes() == alone


def test_what_an_actor_raises_on_purpose_is_raised_here():
    def make():
        def refuse(piece):
            raise InputError(f"no piece {piece}")

        return refuse

    with pytest.raises(InputError, match="no piece 3"):
        list(Pool(actors=1).map(make, int, [3], ordered=True))


def test_an_evaluation_gives_the_same_samples_and_scores(names, tmp_path):
    lm, judge = names
    plan = Plan(
        {"sentiment": [Prompt("the movie was", "a"), Prompt("the food was", "b")]},
        [parse_method("topk10"), parse_method("scone:top_k=4")],
        ModelNames(lm, "embedded", judge),
        samples=2, max_new_tokens=4, seed=1, scorers=("perplexity",),
    )  # fmt: skip
    for name, actors in (("alone", 0), ("ray", 2)):
        execute(plan, tmp_path / name, actors=actors, say=lambda line: None)
    for file in ("samples.jsonl", "scores.jsonl"):
        assert (tmp_path / "ray" / file).read_bytes() == (tmp_path / "alone" / file).read_bytes()
