"""`scone generate --input --output` with fakes for the models."""

from __future__ import annotations

import json

import pytest
from fakes import STEERED_WORDS

from scone.cli import main
from scone.cli.job import Remarks

pytestmark = pytest.mark.usefixtures("fake_models")


@pytest.fixture
def prompts(tmp_path):
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "The sky is", "id": "a"}\n"The sea is"\n', encoding="utf-8")
    return path


def run(prompts, *argv):
    output = prompts.with_name("texts.jsonl")
    assert main(["generate", "--input", str(prompts), "--output", str(output), *argv]) == 0
    return [json.loads(line) for line in output.read_text(encoding="utf-8").splitlines()]


def test_a_file_of_prompts_becomes_a_file_of_texts(prompts, capsys, fake_models):
    first, second = run(prompts, "-a", "positive=3", "--avoid", "toxic", "--strength", "2")
    assert first == {
        "line": 1, "id": "a", "sample": 0, "prompt": "The sky is", "continuation": STEERED_WORDS,
        "text": "The sky is" + STEERED_WORDS, "tokens": 3, "finish_reason": "length", "score": 0.9,
        "scores": {"positive": 0.9, "not toxic": 0.9},
    }  # fmt: skip
    assert (second["line"], second["prompt"], "id" in second) == (2, "The sea is", False)
    printed = capsys.readouterr()
    assert printed.out == "" and "2/2 lines, 0s left" in printed.err and "2 prompts are done" in printed.err
    assert [(wish.name, wish.strength) for wish in fake_models.asked.attributes] == [
        ("positive", 3.0),
        ("not toxic", None),
    ]
    assert fake_models.asked.config.strength == 2.0


def test_the_same_command_again_loads_nothing(prompts, capsys, monkeypatch):
    before = run(prompts, "--samples", "2")
    monkeypatch.setattr("scone.cli.writing.Models", lambda *args, **options: pytest.fail("models were loaded"))
    assert run(prompts, "--samples", "2") == before and len(before) == 4


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--seed", "1"], "seed must be 0"),
        (["--max-new-tokens", "9"], "max_new_tokens must be 25"),
        (["--strength", "3"], "config.strength must be"),
        (["--avoid", "toxic"], "attributes must be"),
        (["--lm", "other"], "lm must be 'embedded'"),
        (["--dtype", "bfloat16"], "dtype must be None"),
        (["--top-k", "3"], "config.top_k must be 10"),
        (["--order", "finished"], "order must be 'input'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_with_other_options_it_does_not_go_on_in_the_same_file(argv, words, prompts, capsys):
    run(prompts)
    output = prompts.with_name("texts.jsonl")
    assert main(["generate", "--input", str(prompts), "--output", str(output), *argv]) == 2
    message = capsys.readouterr().err
    assert words in message and "begun" in message and "loading" not in message.rpartition("done")[2]


def test_a_bad_line_stops_before_models_are_loaded_or_is_skipped(prompts, capsys):
    with prompts.open("a", encoding="utf-8") as file:
        file.write("{nonsense\n")
    output = prompts.with_name("texts.jsonl")
    assert main(["generate", "--input", str(prompts), "--output", str(output)]) == 2
    message = capsys.readouterr().err
    assert f"line 3 of {str(prompts)!r} cannot be used: must be JSON" in message and "loading" not in message
    assert [record["line"] for record in run(prompts, "--bad-lines", "skip")] == [1, 2, 3]
    assert "line 3" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--input", "x"], "--output must be given with --input"),
        (["--output", "x"], "--input must be given with --output"),
        (["--bad-lines", "skip", "A prompt"], "--input must be given with --bad-lines"),
        (["--engine", "ray", "A prompt"], "--input must be given with --engine"),
        (["--input", "x", "--output", "y", "A prompt"], "--input must come alone, got prompts too"),
        (["--input", "x", "--output", "y", "--file", "z"], "--input must come alone, got --file too"),
        (["--input", "x", "--output", "y", "--compare"], "--input must come alone, got --compare too"),
        (["--input", "x", "--output", "y", "--stream"], "--input must come alone, got --stream too"),
        (["--input", "x", "--output", "y", "--json"], "--input must come alone, got --json too"),
        (["--input", "x", "--output", "y", "--actors", "3"], "--actors must come with --engine ray"),
        (["--input", "/none", "--output", "y"], "input must be a file of JSON lines, got '/none'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_half_a_job_is_a_mistake(argv, words, capsys):
    assert main(["generate", *argv]) == 2
    assert words in capsys.readouterr().err


def test_ray_that_is_not_installed_is_named_with_its_extra(prompts, capsys, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    output = prompts.with_name("texts.jsonl")
    assert main(["generate", "--input", str(prompts), "--output", str(output), "--engine", "ray"]) == 2
    assert "pip install 'scone[ray]'" in capsys.readouterr().err


def test_remarks_on_progress_have_the_time_left(capsys):
    """They come at most every ten seconds; what was found done does not make the rest look quick."""
    now = [0.0]
    remark = Remarks(clock=lambda: now[0], every=10)
    for seconds, done in ((1, 500), (2, 501), (11, 510), (12, 511), (101, 600), (102, 1000)):
        now[0] = float(seconds)
        remark(done, 1000)
    assert capsys.readouterr().err.splitlines() == [
        "510/1,000 lines, 8m10s left", "600/1,000 lines, 6m40s left", "1,000/1,000 lines, 0s left",
    ]  # fmt: skip
