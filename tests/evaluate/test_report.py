"""The report's numbers on a small run written by hand, and the page itself."""

import json
import tarfile
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np
import pytest

from scone.config import SconeConfig
from scone.errors import InputError
from scone.evaluate.curve import curves
from scone.evaluate.methods import parse_method
from scone.evaluate.report import write_report
from scone.evaluate.summary import read_run, summarise
from scone.evaluate.tables import task_tables


def write_run(folder, task="detoxify"):
    """Two methods, two prompts, two samples; one generation of the second method is missing."""
    phi = {"topk10": [[0.9, 0.2], [1.0, 0.8]], "scone": [[0.9, 0.9], [None, 0.7]]}
    samples, scores, costs = [], [], []
    for m, (method, table) in enumerate(phi.items()):
        for p, row in enumerate(table):
            key = f"{method}{p}"
            samples.append(
                {
                    "key": key, "place": [0, m, p], "task": task, "method": method, "setup": f"setup-{method}",
                    "settings": {"kind": method}, "prompt": f"prompt <{p}>", "group": "ab"[p], "target": "toxic",
                    "samples": [
                        x and {"continuation": f" one two {x}", "tokens": 4, "phi": x, "phi_continuation": x / 2}
                        for x in row
                    ],
                }
            )  # fmt: skip
            scores.append(
                {
                    "key": f"s{key}", "place": [0, m, p, 0], "of": key, "scorer": "perplexity",
                    "values": [x and [4 * np.log(2 + m), 4] for x in row],
                }
            )  # fmt: skip
            costs.append(
                {
                    "key": key, "place": [0, m, p], "seconds": 2.0 * (m + 1), "cpu_seconds": 3.0, "device": "cpu", "peak_bytes": 2**20 * 8, "tokens": 8,
                    "sequences": {"verifier": 16 * m, "masked_lm": 80 * m},
                }
            )  # fmt: skip
    run = {
        "time": "now", "command": "scone evaluate detoxify", "commit": "abc", "changed": False,
        "versions": {"scone": "1"}, "machine": {"processor": "p", "cores": 2, "system": "s", "gpu": None},
    }  # fmt: skip
    for name, records in {"samples": samples, "scores": scores, "costs": costs, "runs": [run]}.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return folder


def tables_of(task, folder):
    batches = read_run(folder)
    return task_tables(task, batches, {batch.label: summarise(batch, draws=50) for batch in batches})


def test_summary_by_hand(tmp_path):
    plain, scone = (summarise(batch, draws=0) for batch in read_run(write_run(tmp_path)))
    assert plain.phi.value == pytest.approx((0.9 + 0.2 + 1.0 + 0.8) / 4)
    assert plain.worst.value == pytest.approx((0.2 + 0.8) / 2)
    assert plain.all_satisfied.value == 0.5 and plain.at_least_one.value == 1.0
    assert plain.perplexity.value == pytest.approx(2.0) and scone.perplexity.value == pytest.approx(3.0)
    assert plain.phi_continuation == pytest.approx(plain.phi.value / 2)
    assert np.isnan(plain.judge.value)
    assert (scone.missing, scone.generations) == (1, 4)
    assert scone.phi.value == pytest.approx((0.9 + 0.9 + 0.7) / 3)
    assert scone.worst.value == pytest.approx((0.9 + 0.0) / 2)
    assert scone.seconds == pytest.approx(8 / 16) and scone.cpu_seconds == pytest.approx(6 / 16)
    assert scone.masked_lm == 10.0 and scone.verifier == 2.0
    assert scone.peak_mib == 8.0 and scone.mib_per_token == 1.0


def test_detoxify_counts_a_missing_generation_as_toxic(tmp_path):
    (control, quality, _) = tables_of("detoxify", write_run(tmp_path))
    assert control.header[1:4] == ["toxic prob. full", "toxic prob. a", "toxic prob. b"]
    plain, scone = control.rows
    assert plain[1].startswith("50.0 [") and plain[2:4] == ["100.0", "0.0"]
    assert scone[1].startswith("50.0 [") and scone[2:4] == ["0.0", "100.0"]
    assert scone[4].startswith("55.0 [")  # exp. max. toxicity: (0.1 + 1.0) / 2
    assert quality.rows[1][-1] == "1 of 4"


@pytest.mark.parametrize("task", ["detoxify", "toxify", "sentiment", "topic"])
def test_every_task_has_its_tables(tmp_path, task):
    for table in tables_of(task, write_run(tmp_path, task)):
        assert table.rows and all(len(row) == len(table.header) for row in table.rows)
        assert table.markdown().count("\n| ") == len(table.rows) + 2


def test_two_setups_of_a_method_are_two_rows(tmp_path):
    write_run(tmp_path)
    path = tmp_path / "samples.jsonl"
    again = [json.loads(line) for line in path.read_text().splitlines()][:2]
    with path.open("a") as file:
        for record in again:
            file.write(json.dumps(record | {"key": record["key"] + "x", "setup": "other"}) + "\n")
    assert sorted(batch.label for batch in read_run(tmp_path)) == ["scone", "topk10 (othe)", "topk10 (setu)"]


def test_the_page_needs_nothing_else(tmp_path):
    markdown, page = write_report(write_run(tmp_path))
    text = page.read_text()
    assert "http://" not in text.replace("http://www.w3.org", "").replace("http://purl.org", "").replace(
        "http://creativecommons.org", ""
    )
    assert "src=" not in text and "<link" not in text
    assert text.count("<svg") == 2 and "prompt &lt;0&gt;" in text and "missing" in text
    for piece in text.split("<svg")[1:]:
        ElementTree.fromstring("<svg" + piece[: piece.index("</svg>")] + "</svg>")
    picture = tmp_path / "curve-detoxify.svg"
    assert f"]({picture.name})" in markdown.read_text() and picture.read_text() in text
    assert "scone evaluate detoxify" in markdown.read_text() and "commit abc" in markdown.read_text()
    first = text
    write_report(tmp_path)
    assert page.read_text() == first


def test_settings_that_differ_in_effort_only_are_one_line(tmp_path):
    write_run(tmp_path)
    path = tmp_path / "samples.jsonl"
    methods = ["scone:fast,strength=1", "scone:fast", "scone:fast,strength=1,particles=7", "scone", "bon:20", "bon"]
    base = json.loads(path.read_text().splitlines()[0])
    with path.open("w") as file:
        for name in methods:
            own = {"method": name, "setup": name, "key": name, "settings": parse_method(name).settings}
            file.write(json.dumps(base | own) + "\n")
    batches = read_run(tmp_path)
    lines = curves(batches, {batch.label: summarise(batch, draws=0) for batch in batches})
    efforts = {name: [point.effort for point in points] for name, points in lines.items()}
    assert efforts == {
        "scone:fast": [1.0, SconeConfig.fast().strength],
        "scone:fast,particles=7": [1.0],
        "scone": [SconeConfig().strength],
        "bon": [10, 20],
    }


def test_an_empty_folder_is_named(tmp_path):
    with pytest.raises(InputError, match="must hold a run"):
        read_run(tmp_path)


def test_a_prompt_that_was_interrupted_does_not_make_a_method_slow(tmp_path):
    folder = write_run(tmp_path)
    lines = (folder / "costs.jsonl").read_text().splitlines()
    for p, seconds in ((2, 4.0), (3, 4000.0)):
        lines.append(json.dumps(json.loads(lines[-1]) | {"key": f"more{p}", "seconds": seconds}))
    batch = read_run(folder)[-1]
    batch.costs.extend(json.loads(line) for line in lines[-2:])
    assert summarise(batch, draws=0).seconds == pytest.approx(4.0 / 8)


def test_records_of_earlier_versions_are_read(tmp_path):
    """The evaluation that the docs show was written when the settings of a method were a flat list of options."""
    archive = Path(__file__).parents[2] / "docs" / "results" / "evaluation-records.tar.gz"
    with tarfile.open(archive) as tar:
        tar.extractall(tmp_path, filter="data")
    batches = read_run(tmp_path)
    assert {batch.task for batch in batches} == {"detoxify", "toxify", "sentiment", "topic"}
    assert {"scone", "bon", "topk10"} <= {batch.kind for batch in batches}
    scone = next(batch for batch in batches if batch.kind == "scone")
    summary = summarise(scone, draws=0)
    assert 0 < summary.phi.value <= 1 and summary.verifier > 0 and summary.seconds > 0
    assert "init" in scone.prompts[0]["settings"]["config"]  # an option that is none any more
