"""`python -m bench report` and `waits`, rehearsed: what they say of a device that does well, and of one that does not."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.makebelieve import native

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.skipif(native.compiler() is None, reason="needs a C++ compiler")


def bench(*options):
    command = [sys.executable, "-m", "bench", *options]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_a_report_is_rehearsed(tmp_path):
    pytest.importorskip("triton")
    parts = ["draws", "hogwild"]
    done = bench("report", "--out", str(tmp_path / "found"), *(word for part in parts for word in ("--only", part)))
    assert done.returncode == 0, done.stdout + done.stderr
    page, report = (tmp_path / "found.md").read_text(), json.loads((tmp_path / "found.json").read_text())
    assert page.startswith("# PASS, as a rehearsal on a make-believe device")
    assert report["passed"] and report["rehearsal"] and list(report["parts"]) == parts
    assert [row[0] for row in report["parts"]["hogwild"]["tables"][0]["rows"]] == [1, 2, 4, 8]
    assert [row[2] for row in report["parts"]["draws"]["tables"][0]["rows"]] == [0, 0]


def test_the_notebook_runs_the_report():
    notebook = json.loads((ROOT / "examples" / "gpu_report.ipynb").read_text(encoding="utf-8"))
    code = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert len(code) == 3 and "python -m bench report" in code[1]
