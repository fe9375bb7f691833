"""Every file of examples/ runs as it stands, and shows what `checks.py` says of it.

A new example needs a function of its name there. One that needs more than `make setup` installs says so in its first
line, `# needs: MODULE`, and is skipped where that is missing.
"""

from __future__ import annotations

import re
import runpy
import sys
from importlib.util import find_spec
from pathlib import Path

import checks
import pytest

FOLDER = Path(__file__).resolve().parents[2] / "examples"
EXAMPLES = sorted(FOLDER.glob("*.py"))


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.stem)
def test_example(file, tmp_path, monkeypatch, capsys):
    needed = re.match(r"# needs: (\w+)", file.read_text(encoding="utf-8"))
    if needed and find_spec(needed[1]) is None:
        pytest.skip(f"needs {needed[1]}")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [str(file)])
    variables = runpy.run_path(str(file), run_name="__main__")
    getattr(checks, file.stem)(variables, capsys.readouterr().out)


def test_every_example_is_in_the_table():
    page = (FOLDER / "README.md").read_text(encoding="utf-8")
    named = re.findall(r"\]\((\w+\.py)\)", page)
    assert sorted(named) == [file.name for file in EXAMPLES]
