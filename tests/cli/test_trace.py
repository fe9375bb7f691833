"""`scone trace`: mistakes before anything is loaded, and once with the real models."""

from __future__ import annotations

import json

import pytest

from scone.cli import main
from scone.config import SconeConfig


@pytest.mark.parametrize(
    ("argv", "named"),
    [
        (["  "], "PROMPT must hold at least one word"),
        (["x", "--out", "nowhere/t.html"], "--out must be a file in a folder that exists, got 'nowhere/t.html'"),
        (["x", "--beside", "strength=loud"], "strength must be"),
        (["x", "--beside", "slow"], "preset must be"),
        (["x", "--chains", "2"], "--chains is an option of lookahead gibbs"),
    ],
)
def test_a_mistake_is_one_line(argv, named, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["trace", *argv]) == 2
    shown = capsys.readouterr()
    assert named in shown.err and len(shown.err.splitlines()) == 1 and not list(tmp_path.iterdir())


def test_a_page_and_data_with_the_real_models(tmp_path, capsys):
    page, data = tmp_path / "trace.html", tmp_path / "trace.json"
    argv = ["trace", "The food was", "--max-new-tokens", "3", "--attribute", "positive", "--avoid", "toxic"]
    assert main([*argv, "--beside", "plain", "--out", str(page)]) == 0
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert main([*argv, "--samples", "2", "--out", str(data)]) == 0
    shown = capsys.readouterr()
    assert not shown.out and str(data) in shown.err
    first, second = json.loads(data.read_text(encoding="utf-8"))["texts"]
    assert first["prompt"] == second["prompt"] == "The food was" and first["steps"][0]["score"] is not None
    assert first["settings"]["verifier_strengths"] == [SconeConfig().strength] * 2
    assert any(candidate["futures"] for candidate in first["steps"][0]["candidates"])
