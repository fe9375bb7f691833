"""The code of docs/kernels.md runs as it stands; blocks that continue one another share their names."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "kernels.md"


def _sections():
    """Every headed part of the page that has code, as one program."""
    for part in re.split(r"\n(?=#+ )", PAGE.read_text()):
        blocks = re.findall(r"```python\n(.*?)```", part, re.S)
        if blocks:
            yield pytest.param("\n".join(blocks), id=part.splitlines()[0].strip("# "))


@pytest.mark.parametrize("program", _sections())
def test_examples_run(program):
    exec(compile(program, str(PAGE), "exec"), {})


def test_the_worked_examples_are_there():
    names = [section.id for section in _sections()]
    assert "An expected embedding and its dot product, in one call" in names
    assert "The sampling step of a generate loop" in names
    assert "A reward-guided step that looks ahead" in names
