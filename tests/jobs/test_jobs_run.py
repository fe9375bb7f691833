"""Jobs: every line once, in order, also when the job was killed at any byte of its output."""

from __future__ import annotations

import json
import logging

import pytest
from filelock import FileLock
from fixed_words import FakeEngine

from scone.errors import ConfigError, InputError
from scone.jobs import Job, Worker, do, look_through, write_file
from scone.jobs.lines import Source


def records(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.fixture
def whole(engine, prompts, tmp_path):
    """The output of a job that nothing interrupted."""
    output = tmp_path / "whole.jsonl"
    write_file(engine, prompts, output, samples=2, batch=6, bad_lines="skip")
    return output


def test_every_line_once_in_order_with_its_id(whole):
    written = records(whole)
    assert [(r["line"], r.get("sample")) for r in written if "error" not in r] == [
        (line, sample) for line in (1, 2, 3, 5, 7, 9, 10, 11) for sample in (0, 1)
    ]
    assert [r["line"] for r in written] == sorted(r["line"] for r in written)
    assert written[0] == {
        "line": 1, "id": "p1", "sample": 0, "prompt": "Prompt 1", "continuation": " 8é", "text": "Prompt 1 8é",
        "tokens": 2, "finish_reason": "length", "score": 0.333333,
    }  # fmt: skip
    (chat,) = (r for r in written if r["line"] == 10 and r["sample"] == 0)
    assert chat["messages"] == [{"role": "user", "content": "Hello"}] and "prompt" not in chat and "id" not in chat


def test_bad_lines_are_told_by_number_and_left_out(engine, prompts, tmp_path, caplog):
    write_file(engine, prompts, tmp_path / "out", bad_lines="skip")
    errors = [r for r in records(tmp_path / "out") if "error" in r]
    assert [(r["line"], r.get("id")) for r in errors] == [(6, None), (8, 8)]
    assert "must be JSON" in errors[0]["error"] and errors[1]["error"] == "prompts must leave room"
    told = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert [line.split(" of ")[0] for line in told] == ["line 6", "line 8"]
    assert all(str(prompts) in line for line in told)


def test_a_bad_line_ends_the_job_before_anything_is_written(engine, prompts, tmp_path):
    with pytest.raises(InputError, match=r"line 6 of .*prompts.jsonl' cannot be used: must be JSON"):
        write_file(engine, prompts, tmp_path / "out")
    assert not engine.calls and not (tmp_path / "out").exists()


def test_a_line_that_the_lm_refuses_ends_the_job_and_what_was_written_stays(engine, prompts, tmp_path):
    fixed = prompts.read_text(encoding="utf-8").replace("{broken", '"whole"')
    prompts.write_text(fixed, encoding="utf-8")
    with pytest.raises(InputError, match=r"line 8 of .* cannot be used: prompts must leave room"):
        write_file(engine, prompts, tmp_path / "out", batch=4)
    assert [r["line"] for r in records(tmp_path / "out")] == [1, 2, 3]


def test_the_same_call_again_does_nothing(whole, prompts):
    before, engine = whole.read_bytes(), FakeEngine()
    write_file(engine, prompts, whole, samples=2, batch=6, bad_lines="skip")
    assert whole.read_bytes() == before and not engine.calls


def test_killed_anywhere_and_resumed_it_is_the_same_file(whole, prompts, tmp_path):
    """Whole batches are not written again; the one before the tear may be."""
    content = whole.read_bytes()
    note = json.loads((tmp_path / "whole.jsonl.job").read_text())
    output = tmp_path / "torn.jsonl"
    ends = {i + near for i, byte in enumerate(content) if byte == 10 for near in (0, 1, 2)}
    for cut in sorted({*range(0, len(content), 97), *ends} & {*range(len(content) + 1)}):
        output.write_bytes(content[:cut])
        (tmp_path / "torn.jsonl.job").write_text(json.dumps({**note, "finished": False}))
        engine = FakeEngine()
        write_file(engine, prompts, output, samples=2, batch=6, bad_lines="skip")
        assert output.read_bytes() == content, cut
    assert len(engine.calls) == 1  # of four: all but the last batch were there


class StopsAfter(FakeEngine):
    """Is interrupted in its n-th batch."""

    def __init__(self, batches):
        super().__init__()
        self.batches = batches

    def generate(self, prompts, **options):
        if len(self.calls) == self.batches:
            raise KeyboardInterrupt
        return super().generate(prompts, **options)


@pytest.mark.parametrize(("after", "there"), [(0, 0), (1, 6), (3, 14)])
def test_interrupted_and_resumed_it_is_the_same_file(whole, prompts, tmp_path, after, there):
    output = tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        write_file(StopsAfter(after), prompts, output, samples=2, batch=6, bad_lines="skip")
    assert len(records(output)) == there
    write_file(FakeEngine(), prompts, output, samples=2, batch=6, bad_lines="skip")
    assert output.read_bytes() == whole.read_bytes()


def test_batches_may_come_in_any_order_and_twice(engine, prompts, tmp_path):
    """As from a cluster: each is kept once, and a resumed job knows which."""
    job = Job(batch=3, bad_lines="skip", order="finished")
    source = look_through(prompts, job)
    worker = Worker(engine, job)

    def backwards(source, missing, stop=None):
        for count, index in enumerate(reversed(missing)):
            if count == stop:
                raise KeyboardInterrupt
            yield index, worker(source.read(index))
            yield index, worker(source.read(index))

    output = tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        do(job, source, output, lambda s, m: backwards(s, m, stop=2), facts={})
    asked = []
    do(job, source, output, lambda s, m: (asked.extend(m), backwards(s, m))[1], facts={})
    assert asked == [0, 1, 2]  # 3 was whole; 2 was the last, which might have been torn
    assert sorted(r["line"] for r in records(output)) == [1, 2, 3, 5, 6, 7, 8, 9, 10, 11]


def test_progress_begins_with_what_was_found(prompts, tmp_path):
    output, told = tmp_path / "out", []
    with pytest.raises(KeyboardInterrupt):
        write_file(StopsAfter(2), prompts, output, batch=3, bad_lines="skip")
    write_file(
        FakeEngine(),
        prompts,
        output,
        batch=3,
        bad_lines="skip",
        progress=lambda done, total: told.append((done, total)),
    )
    assert told == [(3, 11), (6, 11), (9, 11), (11, 11)]


@pytest.mark.parametrize(
    ("changes", "other", "words"),
    [
        ({"seed": 1}, FakeEngine(), "seed must be 0, with which '.*' was begun, got 1"),
        ({"max_new_tokens": 9}, FakeEngine(), "max_new_tokens must be 25, .* got 9"),
        ({}, FakeEngine(strength=3.0), "config.strength must be .*, got 3.0"),
    ],
)
def test_other_settings_do_not_go_on_in_the_same_file(changes, other, words, whole, prompts):
    before = whole.read_bytes()
    with pytest.raises(InputError, match=words):
        write_file(other, prompts, whole, **{"samples": 2, "batch": 6, "bad_lines": "skip"} | changes)
    assert whole.read_bytes() == before and not other.calls


def test_a_changed_input_does_not_go_on_in_the_same_file(whole, prompts):
    with prompts.open("a", encoding="utf-8") as file:
        file.write('\n"One more"')
    with pytest.raises(InputError, match="input must be"):
        write_file(FakeEngine(), prompts, whole, samples=2, batch=6, bad_lines="skip")


def test_a_file_that_is_something_else_is_left_alone(engine, prompts, tmp_path):
    (tmp_path / "out").write_text("precious")
    with pytest.raises(InputError, match="output must be new or of an earlier run of this job"):
        write_file(engine, prompts, tmp_path / "out", bad_lines="skip")
    assert (tmp_path / "out").read_text() == "precious"


def test_an_output_that_was_deleted_begins_anew(whole, prompts):
    content = whole.read_bytes()
    whole.unlink()
    write_file(FakeEngine(), prompts, whole, samples=2, batch=6, bad_lines="skip", seed=5)
    assert whole.read_bytes() == content  # the fake's words do not hang on the seed


def test_two_jobs_do_not_write_the_same_file(engine, prompts, tmp_path):
    with FileLock(tmp_path / "out.lock"), pytest.raises(InputError, match="output must be of one job at a time"):
        write_file(engine, prompts, tmp_path / "out", bad_lines="skip")


def test_an_output_that_cannot_be_written(engine, prompts, tmp_path):
    with pytest.raises(InputError, match="output must be a file that can be written"):
        write_file(engine, prompts, prompts / "out", bad_lines="skip")


def test_an_empty_input(engine, tmp_path):
    (tmp_path / "empty").write_text("\n \n")
    with pytest.raises(InputError, match="input must hold at least one prompt"):
        write_file(engine, tmp_path / "empty", tmp_path / "out")


def test_options_are_checked(engine, prompts, tmp_path):
    with pytest.raises(ConfigError, match="samples must be an integer of at least 1, got 0"):
        write_file(engine, prompts, tmp_path / "out", samples=0)


def test_a_batch_is_of_texts_and_holds_at_least_one_line(prompts):
    assert [
        len(look_through(prompts, Job(batch=b, samples=s, bad_lines="skip"))) for b, s in ((16, 1), (6, 3), (2, 9))
    ] == [1, 6, 11]
    assert isinstance(look_through(prompts, Job(bad_lines="skip")), Source)
