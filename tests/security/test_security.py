"""Nothing is fetched, nothing is listened to, and what a file says cannot lead out of the folder that was named."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from scone.evaluate.report import write_report

WITHOUT_SOCKETS = """
import sys

def refuse(event, arguments):
    if event.startswith("socket.") and event != "socket.gethostname":
        print("SOCKET", event, arguments, file=sys.stderr)
        raise PermissionError(event)

sys.addaudithook(refuse)
import pkgutil
from importlib import import_module
import scone, scone_kernels

for package in (scone, scone_kernels):
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        if not module.name.endswith("__main__"):
            try:
                import_module(module.name)
            except ImportError as problem:  # of a library that is not installed
                print("left out", module.name, problem)
from scone.cli import main
sys.exit(main(sys.argv[1:]))
"""


def test_neither_import_nor_demo_opens_a_socket():
    words = ["demo", "--task", "sentiment", "--samples", "1", "--max-new-tokens", "2"]
    done = subprocess.run([sys.executable, "-c", WITHOUT_SOCKETS, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "SOCKET" not in done.stderr, done.stderr
    assert "sentiment" in done.stdout


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
