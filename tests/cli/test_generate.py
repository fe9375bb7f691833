"""`scone generate` with fakes for the models, and once with the real ones."""

from __future__ import annotations

import io
import json
import subprocess
import sys

import pytest
from fakes import PLAIN_WORDS, STEERED_WORDS, FakeEngine, KindVerifier

from scone.cli import main
from scone.cli.attributes import Attribute
from scone.cli.writing import CONTROLLED, PLAIN, Writer
from scone.config import SconeConfig
from scone.lookahead import Mix, Nothing, Paths

pytestmark = pytest.mark.usefixtures("fake_models")


def run(capsys, *argv):
    assert main(["generate", *argv]) == 0
    return capsys.readouterr()


def records(printed):
    return [json.loads(line) for line in printed.out.splitlines()]


def test_texts_and_nothing_else_on_standard_output(capsys):
    printed = run(capsys, "The sky is", "The sea is", "--samples", "2")
    assert printed.out.splitlines() == ["The sky is" + STEERED_WORDS] * 2 + ["The sea is" + STEERED_WORDS] * 2


def test_long_texts_are_not_wrapped(capsys):
    prompt = "word " * 100
    assert run(capsys, prompt).out == prompt + STEERED_WORDS + "\n"


def test_json_lines(capsys):
    (record,) = records(run(capsys, "Der Käse [ist]", "--json", "--seed", "5", "--attribute", "positive"))
    assert record["prompt"] == "Der Käse [ist]"
    assert record["text"] == record["prompt"] + record["continuation"]
    assert record["scores"] == {"positive": pytest.approx(0.9)}
    assert (record["method"], record["sample"], record["seed"]) == (CONTROLLED, 0, 5)
    assert "independent" not in record


def test_compare_as_json_has_both_methods(capsys):
    plain, controlled = records(run(capsys, "The sky is", "--compare", "--json"))
    assert (plain["method"], controlled["method"]) == (PLAIN, CONTROLLED)
    assert plain["scores"]["positive"] < controlled["scores"]["positive"]
    assert controlled["independent"] == {"positive": 0.5}


def test_compare_fits_80_columns(capsys):
    shown = run(capsys, "The sky is", "--compare", "--attribute", "positive", "--avoid", "toxic").out
    assert max(map(len, shown.splitlines())) <= 80
    for expected in (PLAIN_WORDS.strip(), STEERED_WORDS.strip(), "positive 0.90", "not toxic 0.20", "independent"):
        assert expected in shown
    assert "2.7" in shown  # perplexity: exp(3 / 3)


def test_stream(capsys):
    assert run(capsys, "The sky", "The sea", "--stream").out.splitlines() == [
        "The skybright and [kind] :smile:.",
        "The seabright and [kind] :smile:.",
    ]


def test_prompts_from_a_file_and_from_standard_input(capsys, tmp_path, monkeypatch):
    file = tmp_path / "prompts.txt"
    file.write_text("Eins\n\nZwei für\n", encoding="utf-8")
    assert [r["prompt"] for r in records(run(capsys, "--file", str(file), "--json"))] == ["Eins", "Zwei für"]
    monkeypatch.setattr(sys, "stdin", io.StringIO("Drei\n"))
    assert [r["prompt"] for r in records(run(capsys, "--json"))] == ["Drei"]


def test_a_byte_order_mark_is_not_part_of_the_first_prompt(capsys, tmp_path, monkeypatch):
    file = tmp_path / "prompts.txt"
    file.write_text("Eins\nZwei\n", encoding="utf-8-sig")
    assert [r["prompt"] for r in records(run(capsys, "--file", str(file), "--json"))] == ["Eins", "Zwei"]
    monkeypatch.setattr(sys, "stdin", io.StringIO("\ufeffDrei\n"))
    assert [r["prompt"] for r in records(run(capsys, "--json"))] == ["Drei"]


def test_a_lone_surrogate_is_named(capsys):
    assert main(["generate", "fine", "half a \udcff byte"]) == 2
    message = capsys.readouterr().err
    assert "lone surrogate" in message and r"'half a \udcff byte'" in message and "Traceback" not in message


def test_bytes_that_are_no_text_are_a_mistake(capsys, tmp_path, monkeypatch):
    (tmp_path / "prompts").write_bytes(b"caf\xe9\n")
    assert main(["generate", "--file", str(tmp_path / "prompts")]) == 2
    assert "must be readable text in UTF-8" in capsys.readouterr().err
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"caf\xe9\n"), encoding="utf-8"))
    assert main(["generate"]) == 2
    assert "standard input must be readable text in UTF-8" in capsys.readouterr().err


@pytest.mark.parametrize("given", ["", "\n  \n"])
def test_no_prompt_is_a_mistake(given, capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO(given))
    assert main(["generate"]) == 2
    assert "at least one prompt" in capsys.readouterr().err


def test_what_was_asked_for_reaches_the_models(capsys, fake_models):
    argv = ["-a", "positive=3", "--avoid", "toxic", "--strength", "2", "--lm", "a", "--masked-lm", "b"]
    run(capsys, "x", *argv, "--lookahead", "paths+nothing", "--count", "2")
    asked = fake_models.asked
    assert asked.models == ("a", "b")
    assert [(wish.name, wish.strength) for wish in asked.attributes] == [("positive", 3.0), ("not toxic", None)]
    assert asked.config == SconeConfig(strength=2.0, lookahead=Mix(Paths(count=2), Nothing()))


def test_positive_is_the_default_attribute(capsys, fake_models):
    run(capsys, "x")
    assert [wish.name for wish in fake_models.asked.attributes] == ["positive"]


def test_writer_works_in_batches_and_counts_tokens():
    engine = FakeEngine()
    writer = Writer(engine, [Attribute.parse("positive")], [KindVerifier()])
    ticks = []
    options = {"samples": 2, "max_new_tokens": 4, "seed": 7, "batch": 4}
    texts = list(writer.write(CONTROLLED, ["a", "b", "c"], **options, tick=lambda: ticks.append(1)))
    assert engine.calls == [(["a", "b"], 2, 7), (["c"], 2, 7)]
    assert [(text.prompt, text.sample) for text in texts] == [(p, s) for p in "abc" for s in (0, 1)]
    assert len(ticks) == 3 * 2 * 4
    assert all(text.tokens == 3 and text.seconds >= 0 for text in texts)


def test_with_the_real_models():
    """A process of its own, as a user runs it: one JSON line, nothing else, steered by two attributes at once."""
    argv = [
        "generate",
        "The food was",
        "--json",
        "--max-new-tokens",
        "4",
        "--attribute",
        "positive=3",
        "--avoid",
        "toxic",
    ]
    done = subprocess.run([sys.executable, "-m", "scone", *argv], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (record,) = (json.loads(line) for line in done.stdout.splitlines())
    assert record["text"].startswith("The food was") and record["continuation"]
    assert set(record["scores"]) == {"positive", "not toxic"}
    assert all(0 <= score <= 1 for score in record["scores"].values())
    assert "Traceback" not in done.stderr and "Warning" not in done.stderr
