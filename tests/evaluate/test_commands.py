"""The commands from their arguments to their files, on tiny models."""

import argparse
import json

import pytest

from scone.errors import DeviceError, InputError
from scone.evaluate import command_audit, command_evaluate, command_report
from scone.evaluate.fluency import negative_log_likelihood
from scone.evaluate.judges import load_judge
from scone.evaluate.runner import Store
from scone.lm import CausalLM
from scone.loading import load_causal_lm


@pytest.fixture
def call(names, tmp_path):
    """Run a command with the tiny models in place of the embedded ones."""
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("the film was\nthe food is very\n")

    def run(module, *words, models=True):
        parser = argparse.ArgumentParser()
        module.add_arguments(parser)
        given = ["--lm", names.lm, "--masked-lm", names.masked_lm, "--verifier", names.verifier] if models else []
        given += ["--prompts", str(prompts)] if models else []
        return module.run(parser.parse_args([*words, *given]))

    return run


def test_audit_draws_once_and_writes_its_table(call, tmp_path, capsys):
    words = ["sentiment", "--out", str(tmp_path / "audit"), "--rollouts", "6", "--max-new-tokens", "6", "--seeds", "1"]
    assert call(command_audit, *words, "--rollouts-only") == 0
    drawn = {path: path.stat().st_mtime_ns for path in (tmp_path / "audit" / "rollouts").iterdir()}
    assert len(drawn) == 8 and not (tmp_path / "audit" / "audit.json").exists()
    rows = ["myopic", "rollouts:4", "default", "lookahead=masked,tokens=3", "lookahead=gibbs,start=carried,tokens=3"]
    assert call(command_audit, *words, "--stored", "--rows", *rows) == 0
    assert all(path.stat().st_mtime_ns == time for path, time in drawn.items())
    found = json.loads((tmp_path / "audit" / "audit.json").read_text())
    assert [row["name"] for row in found["rows"]] == rows and found["steps"] == 8
    assert all(row["covered"] == 1.0 for row in found["rows"])
    table = (tmp_path / "audit" / "audit.md").read_text()
    assert table in capsys.readouterr().out and table.count("\n| `") == len(rows)
    for part, places in (("choose", 4), ("confirm", 4)):
        assert call(command_audit, *words, "--stored", "--part", part, "--rows", "rollouts:4") == 0
        assert json.loads((tmp_path / "audit" / "audit.json").read_text())["steps"] == places


def test_evaluate_then_report(call, tmp_path, capsys):
    folder = tmp_path / "run"
    words = ["--methods", "topk10", "bon:2", "--samples", "2", "--max-new-tokens", "4", "--no-judge"]
    assert call(command_evaluate, "sentiment", "--out", str(folder), *words) == 0
    assert len(Store(folder).samples) == 4
    assert call(command_report, str(folder), models=False) == 0
    assert "| topk10 |" in capsys.readouterr().out
    assert (folder / "report.html").read_text().startswith("<!doctype html>")


@pytest.mark.parametrize(
    ("module", "words", "message"),
    [
        (command_evaluate, ["all"], "must come with one task"),
        (command_evaluate, ["sentiment", "--samples", "0"], "--samples must be at least 1, got 0"),
        (command_evaluate, ["sentiment", "--methods", "topk10", "bon-matched"], "must include scone and bon"),
        (command_evaluate, ["sentiment", "--methods", "magic"], "method must be one of"),
        (command_evaluate, ["sentiment", "--count", "-5"], "--count must be at least 1, got -5"),
        (command_evaluate, ["sentiment", "--count", "0"], "--count must be at least 1, got 0"),
        (command_audit, ["sentiment", "--rollouts", "1"], "--rollouts must be at least 2, got 1"),
        (command_audit, ["sentiment", "--count", "-5"], "--count must be at least 1, got -5"),
    ],
)
def test_mistakes_are_found_before_any_work(call, tmp_path, module, words, message):
    with pytest.raises(InputError, match=message):
        call(module, *words, "--out", str(tmp_path / "out"))
    assert not (tmp_path / "out").exists()


def test_a_device_that_is_not_there_is_known_before_anything_is_written(call, tmp_path, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(DeviceError, match="device must be one that torch can use here, got 'cuda:99'"):
        call(command_evaluate, "sentiment", "--out", str(tmp_path / "out"), "--device", "cuda:99")
    assert not (tmp_path / "out").exists()


def test_half_precision_from_the_command_line(call, tmp_path):
    words = ["sentiment", "--out", str(tmp_path / "out"), "--samples", "2", "--max-new-tokens", "3", "--no-judge"]
    assert call(command_evaluate, *words, "--dtype", "bfloat16", "--methods", "topk10", "scone:top_k=3") == 0
    assert len((tmp_path / "out" / "samples.jsonl").read_text().splitlines()) == 4


@pytest.mark.parametrize("module", [command_evaluate, command_audit])
@pytest.mark.parametrize("place", ["file", "file/below"])
def test_a_folder_that_cannot_be_is_a_mistake(call, tmp_path, module, place):
    (tmp_path / "file").write_text("here already")
    with pytest.raises(InputError, match=r"--out must be a folder that can be written to, got '.*file"):
        call(module, "sentiment", "--out", str(tmp_path / place))


def scores_of(folder, scorer):
    """(method, prompt, continuation, value) of every text that was scored."""
    records = {r["key"]: r for r in map(json.loads, (folder / "samples.jsonl").read_text().splitlines())}
    for score in map(json.loads, (folder / "scores.jsonl").read_text().splitlines()):
        if score["scorer"] == scorer:
            written = records[score["of"]]
            for sample, value in zip(written["samples"], score["values"]):
                yield written["method"], written["prompt"], sample["continuation"], value


def test_perplexity_is_under_the_model_that_was_asked_for(call, tmp_path, other_lm):
    words = ["sentiment", "--methods", "topk10", "--samples", "2", "--max-new-tokens", "4", "--no-judge"]
    call(command_evaluate, *words, "--out", str(tmp_path / "own"))
    call(command_evaluate, *words, "--out", str(tmp_path / "other"), "--perplexity-model", other_lm)
    lm = CausalLM(*load_causal_lm(other_lm))
    for _, prompt, continuation, (nll, tokens) in scores_of(tmp_path / "other", "perplexity"):
        expected, count = negative_log_likelihood(lm, prompt, [continuation])
        assert nll == pytest.approx(float(expected[0]), abs=1e-3) and tokens == count[0]
    own, other = ([value for *_, value in scores_of(tmp_path / name, "perplexity")] for name in ("own", "other"))
    assert len(own) == len(other) == 4 and own != other


def test_the_judge_is_not_the_verifier(call, tmp_path):
    words = ["--methods", "topk10", "--samples", "2", "--max-new-tokens", "4"]
    call(command_evaluate, "sentiment", *words, "--out", str(tmp_path / "run"))
    judge, found = load_judge("sentiment"), list(scores_of(tmp_path / "run", "judge"))
    assert len(found) == 4
    for _, prompt, continuation, value in found:
        assert value == pytest.approx(float(judge.score([prompt + continuation], "positive")[0]), abs=1e-5)


def test_what_is_avoided_counts_the_other_way_round(call, tmp_path):
    """The same texts of the same LM: φ of the task that avoids is one less φ of the task that does not."""
    words = ["--methods", "topk10", "--samples", "2", "--max-new-tokens", "4", "--labels", "toxic=negative"]
    phi, judged = {}, {}
    for task in ("detoxify", "toxify"):
        folder = tmp_path / task
        call(command_evaluate, task, *words, "--out", str(folder))
        written = map(json.loads, (folder / "samples.jsonl").read_text().splitlines())
        phi[task] = [sample["phi"] for record in written for sample in record["samples"]]
        judged[task] = [value for *_, value in scores_of(folder, "judge")]
    assert len(phi["toxify"]) == len(judged["toxify"]) == 4
    assert phi["detoxify"] == pytest.approx([1 - value for value in phi["toxify"]], abs=1e-5)
    assert judged["detoxify"] == pytest.approx([1 - value for value in judged["toxify"]], abs=1e-5)
