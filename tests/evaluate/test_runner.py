"""Runs: killed and resumed without loss or repetition, the same file for the same seed, failures counted."""

import json
import os
import resource
import signal
import subprocess
import sys
import time

import pytest
import torch

from scone.evaluate import runner, work
from scone.evaluate.methods import Job, parse_method
from scone.evaluate.records import Records
from scone.evaluate.runner import Plan, execute
from scone.evaluate.summary import read_run
from scone.evaluate.tasks import Prompt

PROMPTS = [Prompt("the film was", "a"), Prompt("the food is", "b"), Prompt("so very", "b")]
FILES = ("samples.jsonl", "scores.jsonl")


def make_plan(names, *methods, **options):
    defaults = {"samples": 2, "max_new_tokens": 4, "seed": 1, "scorers": ("perplexity",)}
    parsed = [parse_method(m) for m in methods or ("topk10", "bon:2")]
    return Plan({"sentiment": PROMPTS}, parsed, names, **(defaults | options))


def contents(folder):
    return {name: (folder / name).read_text() for name in FILES}


def lines(folder, name):
    return [json.loads(line) for line in (folder / name).read_text().splitlines()]


@pytest.fixture(scope="module")
def whole(names, tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    execute(make_plan(names), folder, say=lambda line: None)
    return folder


def test_one_record_for_each_method_and_prompt_in_order(whole):
    records = lines(whole, "samples.jsonl")
    assert [(r["method"], r["prompt"]) for r in records] == [(m, p.text) for m in ("topk10", "bon:2") for p in PROMPTS]
    assert all(len(r["samples"]) == 2 for r in records)
    assert len(lines(whole, "scores.jsonl")) == len(lines(whole, "costs.jsonl")) == 6


def test_nothing_is_done_twice(whole, names, monkeypatch):
    before = contents(whole)
    monkeypatch.setattr(runner, "do", lambda item: pytest.fail("work was repeated"))
    execute(make_plan(names), whole, say=lambda line: None)
    assert contents(whole) == before


@pytest.mark.parametrize("after", [1, 4])
def test_resumed_after_an_interruption_it_is_the_same_file(whole, names, tmp_path, after):
    done = []

    def interrupt(line):
        done.append(line)
        if len(done) == after:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        execute(make_plan(names), tmp_path, say=interrupt)
    with (tmp_path / "samples.jsonl").open("a") as file:
        file.write('{"key": "torn, because the process was ki')
    assert len(Records(tmp_path / "samples.jsonl")) == after
    execute(make_plan(names), tmp_path, say=lambda line: done.append(line))
    assert len(done) == 6  # each item was done once
    assert contents(tmp_path) == contents(whole)


@pytest.mark.parametrize(
    "damage", [b'{"key": "torn in the mid', b"\xff\xfe\x00", b"[" * 100_000, b"[1, 2]", b'{"key": 3}']
)
def test_a_damaged_line_is_put_aside_and_its_work_done_again(whole, names, tmp_path, damage):
    for name in ("samples.jsonl", "scores.jsonl", "costs.jsonl"):
        (tmp_path / name).write_bytes((whole / name).read_bytes())
    samples = tmp_path / "samples.jsonl"
    first, _, *rest = samples.read_bytes().splitlines(keepends=True)
    samples.write_bytes(b"".join([first, damage + b"\n", *rest]))
    done = []
    with pytest.warns(UserWarning, match=r"samples.jsonl had 1 damaged lines.*samples.damaged"):
        execute(make_plan(names), tmp_path, say=done.append)
    assert len(done) == 1 and contents(tmp_path) == contents(whole)
    assert (tmp_path / "samples.damaged").read_bytes() == damage + b"\n"
    execute(make_plan(names), tmp_path, say=done.append)  # nothing to warn of, nothing to do
    assert len(done) == 1


def test_a_record_that_does_not_fit_on_the_disk_leaves_nothing(tmp_path):
    records = Records(tmp_path / "samples.jsonl")
    records.append({"key": "a"})
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, hard))
    try:
        with pytest.raises(OSError):
            records.append({"key": "b", "text": "x" * 2_000_000})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    records.append({"key": "c"})
    assert [record["key"] for record in Records(tmp_path / "samples.jsonl")] == ["a", "c"]


def test_two_processes_give_the_same_file(whole, names, tmp_path):
    execute(make_plan(names), tmp_path, workers=2, say=lambda line: None)
    assert contents(tmp_path) == contents(whole)


def test_killed_for_real(names, tmp_path):
    """SIGKILL in the middle of the command, then the command again: every record once."""
    prompts = tmp_path / "prompts"
    prompts.write_text(
        "".join(f"the film was {w}\n" for w in ["good", "bad", "nice", "awful", "great", "dull", "warm", "cold"])
    )
    command = [
        sys.executable, "-m", "scone.evaluate", "evaluate", "sentiment", "--out", str(tmp_path / "run"),
        "--prompts", str(prompts), "--methods", "topk10", "myopic", "--samples", "2", "--max-new-tokens", "8",
        "--lm", names.lm, "--masked-lm", names.masked_lm, "--verifier", names.verifier, "--no-judge",
    ]  # fmt: skip
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    samples = tmp_path / "run" / "samples.jsonl"
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while process.poll() is None and not (samples.exists() and samples.read_bytes().count(b"\n") >= 2):
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.wait()
    before = samples.read_bytes().splitlines()[:2]
    subprocess.run(command, env=environment, check=True, capture_output=True)
    keys = [record["key"] for record in lines(tmp_path / "run", "samples.jsonl")]
    assert len(keys) == len(set(keys)) == 16
    assert set(before) <= set(samples.read_bytes().splitlines())


def test_a_failure_is_a_record_of_missing_samples(names, tmp_path, monkeypatch):
    def fail(method, models, job):
        if job.prompt == "so very":
            raise RuntimeError("no luck")
        return [[6], []]  # a word, and an empty generation

    monkeypatch.setattr(work, "generate", fail)
    execute(make_plan(names, "topk10"), tmp_path, say=lambda line: None)
    first, _, last = lines(tmp_path, "samples.jsonl")
    assert first["samples"][0]["continuation"].strip() == "good" and first["samples"][1] is None
    assert last["samples"] == [None, None] and last["error"] == "RuntimeError: no luck"
    assert lines(tmp_path, "scores.jsonl")[2]["values"] == [None, None]

    monkeypatch.setattr(work, "generate", lambda method, models, job: [[6], [7]])
    execute(make_plan(names, "topk10"), tmp_path, say=lambda line: None)
    assert None in lines(tmp_path, "samples.jsonl")[0]["samples"]
    execute(make_plan(names, "topk10"), tmp_path, retry=True, say=lambda line: None)
    assert all(None not in record["samples"] for record in lines(tmp_path, "samples.jsonl"))


METHODS_USE = {
    "topk10": {"lm"},
    "bon": {"lm", "verifier", "label"},
    "scone": {"lm", "verifier", "label"},  # the default looks ahead with the LM alone
    "scone:lookahead=masked+nothing": {"lm", "verifier", "label", "masked_lm"},
}


def test_the_key_holds_everything_that_matters(names):
    models = work.models_for(names, "sentiment")
    method, job = parse_method("scone"), runner._job(make_plan(names), runner.TASKS["sentiment"], PROMPTS[0])

    def key(method=method, **changes):
        return runner.key_of(work.facts_of("sentiment", method, runner.dataclasses.replace(job, **changes), models))

    keys = [
        key(), key(seed=2), key(samples=3), key(max_new_tokens=9), key(prompt="x"), key(target="negative"),
        key(avoid=True), key(parse_method("scone:strength=9")), key(parse_method("scone:tokens=2")), key(parse_method("bon")), key(parse_method("bon:3")),
    ]  # fmt: skip
    assert len(set(keys)) == len(keys)
    used = {name: set(work.facts_of("sentiment", parse_method(name), job, models)["models"]) for name in METHODS_USE}
    assert used == METHODS_USE


def test_verdicts_do_not_mix(names, tmp_path):
    """What is judged is in the key, in φ and in the row of the report; without it the key is what it was before."""
    for verdict in ("text", "continuation"):
        execute(make_plan(names, "topk10", verdict=verdict), tmp_path, say=lambda line: None)
    records = lines(tmp_path, "samples.jsonl")
    assert len(records) == 2 * len(PROMPTS) == len({record["key"] for record in records})
    for record in records:
        for sample in record["samples"]:
            assert (sample["phi"] == sample["phi_continuation"]) == (record["verdict"] == "continuation")
    assert sorted(batch.label for batch in read_run(tmp_path)) == ["topk10", "topk10, continuation judged"]
    job = Job("the film was", "positive", False, 2, 4, 1)
    models = work.models_for(names, "sentiment")
    about = work.facts_of("sentiment", parse_method("topk10"), job, models)["job"]
    assert "verdict" not in about


def test_the_judge_hears_what_the_verifier_hears(names, monkeypatch, tmp_path):
    heard = []

    class Judge:
        name, labels = "watched", ("positive",)

        def score(self, texts, label):
            heard.extend(texts)
            return [0.5] * len(texts)

    models = work.models_for(names, "sentiment")
    monkeypatch.setitem(models.__dict__, "judge", Judge())
    monkeypatch.setitem(models.__dict__, "judge_name", "watched")
    for verdict in ("text", "continuation"):
        heard.clear()
        plan = make_plan(names, "topk10", verdict=verdict, scorers=("judge",))
        execute(plan, tmp_path, say=lambda line: None)
        starts = tuple(prompt.text for prompt in PROMPTS)
        assert heard and all(text.startswith(starts) == (verdict == "text") for text in heard)


def test_the_key_changes_with_the_type_of_the_weights(names):
    job = runner._job(make_plan(names), runner.TASKS["sentiment"], PROMPTS[0])
    halved = runner.dataclasses.replace(names, dtype="bfloat16")
    models = [work.models_for(which, "sentiment") for which in (names, halved)]
    assert models[1].lm.model.dtype == models[1].classifier[0].dtype == torch.bfloat16
    for method in map(parse_method, ("topk10", "scone")):
        keys = {runner.key_of(work.facts_of("sentiment", method, job, of)) for of in models}
        assert len(keys) == 2


def test_matched_tries_are_measured_once(names, tmp_path, monkeypatch):
    plan = make_plan(names, "bon:2", "scone:top_k=3", "bon-matched")
    execute(plan, tmp_path, say=lambda line: None)
    (measured,) = json.loads((tmp_path / "matched.json").read_text()).values()
    costs = {tuple(r["place"]): r["cpu_seconds"] for r in lines(tmp_path, "costs.jsonl")}
    middle = [sorted(costs[2, m, p] for p in range(3))[1] for m in (0, 1)]
    assert measured["tries"] == max(1, round(middle[1] / middle[0] * 2))
    records = [r for r in lines(tmp_path, "samples.jsonl") if r["method"] == "bon-matched"]
    assert [r["settings"]["tries"] for r in records] == [measured["tries"]] * 3
    monkeypatch.setattr(runner, "do", lambda item: pytest.fail("work was repeated"))
    execute(plan, tmp_path, say=lambda line: None)
    (tmp_path / "matched.json").write_text('{"torn')  # measured once more, from the costs that are there
    execute(plan, tmp_path, say=lambda line: None)
    assert [measured] == list(json.loads((tmp_path / "matched.json").read_text()).values())


def test_matched_tries_stay_when_prompts_are_added(names, tmp_path):
    methods = ("bon:2", "scone:top_k=3", "bon-matched")
    few = make_plan(names, *methods)
    few.prompts["sentiment"] = PROMPTS[:1]
    execute(few, tmp_path, say=lambda line: None)
    before = (tmp_path / "matched.json").read_text()
    execute(make_plan(names, *methods), tmp_path, say=lambda line: None)
    assert (tmp_path / "matched.json").read_text() == before
