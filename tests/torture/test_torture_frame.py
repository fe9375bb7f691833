"""The frame of the torture tells every way in which a stage can end badly, and loses no count to it."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

STAGES = """
import os, signal, time
from tests.torture.tally import stage

@stage(minutes=0.001)
def goes_well(tally):
    for i in range(3):
        with tally.trial("inputs tried", f"input {i}"):
            assert i < 3

@stage(minutes=0.001)
def finds_something(tally):
    for i in range(3):
        with tally.trial("calls fuzzed", f"call {i}"):
            assert i != 1, "one is wrong"

@stage(minutes=0.001)
def crashes(tally):
    with tally.trial("faults injected", "the last straw"):
        tally.fail("a failure before the crash")
        os.kill(os.getpid(), signal.SIGSEGV)

@stage(minutes=0.001)
def hangs(tally):
    with tally.trial("generations soaked", "a long wait"):
        time.sleep(600)
"""


def test_failures_crashes_and_hangs_are_told_and_counted(tmp_path):
    (tmp_path / "bad_luck").mkdir()
    (tmp_path / "bad_luck" / "__init__.py").touch()
    (tmp_path / "bad_luck" / "all.py").write_text(STAGES)
    command = [sys.executable, "-m", "tests.torture", "--stages", "bad_luck", "--grace", "1", "--jobs", "4"]
    env = {"PYTHONPATH": f"{tmp_path}:{ROOT}", "PATH": ""}
    run = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=300)
    assert run.returncode == 1, run.stderr
    table = {line[:28].strip(): line[28:].split() for line in run.stdout.splitlines()[-6:]}
    assert table["goes well"][:5] == ["3", "0", "0", "0", "0"]
    assert table["finds something"][:5] == ["0", "0", "3", "0", "1"]
    assert table["crashes"][4] == "2" and table["hangs"][4] == "1"
    assert table["all"][4] == "4"
    for words in ("call 1", "one is wrong", "signal SIGSEGV, at: the last straw", "at: a long wait"):
        assert words in run.stdout


def test_the_stages_are_found(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT))
    frame = importlib.import_module("tests.torture.__main__")
    stages = {stage.name: stage.minutes for stage in frame.load_stages("tests.torture.stages")}
    assert "threads" in stages
    assert sum(stages.values()) <= 110  # on two cores, under an hour
