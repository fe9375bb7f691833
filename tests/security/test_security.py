"""What a file says cannot lead out of the folder that was named."""

from __future__ import annotations

import json

import pytest

from scone.evaluate.report import write_report


@pytest.mark.parametrize("task", ["../outside", "/outside", "sentiment/../../outside"])
def test_records_cannot_lead_a_report_out_of_its_folder(tmp_path, task):
    folder = tmp_path / "deep" / "run"
    (folder / f"curve-{task.split('/')[0]}").mkdir(parents=True)  # so that such a path would resolve
    record = {
        "key": "../../outside", "place": [0, 0, 0], "task": task, "method": "../outside", "setup": "../outside",
        "settings": {"kind": "random"}, "prompt": "<script>", "group": "a", "target": "positive", "samples": [None],
        "max_new_tokens": 1, "seed": 0,
    }  # fmt: skip
    (folder / "samples.jsonl").write_text(json.dumps(record) + "\n")
    written = write_report(folder)
    assert all(path.parent == folder for path in written)
    assert [path.name for path in tmp_path.rglob("*") if "outside" in path.name] == []
    assert {path.name for path in tmp_path.iterdir()} == {"deep"} and len(list((tmp_path / "deep").iterdir())) == 1
