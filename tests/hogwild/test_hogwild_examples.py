"""What the docstrings and docs/hogwild.md show runs."""

import doctest
import re
from pathlib import Path

from scone_kernels import hogwild


def test_docstrings():
    assert doctest.testmod(hogwild).failed == 0


def test_page():
    """The Python blocks, in order, as one session; they assert what they claim."""
    page = (Path(__file__).parents[2] / "docs" / "hogwild.md").read_text(encoding="utf-8")
    session: dict[str, object] = {}
    for block in re.findall(r"^```python\n(.*?)^```", page, flags=re.S | re.M):
        exec(compile(block, "docs/hogwild.md", "exec"), session)
    assert {"state", "run"} <= set(session)
