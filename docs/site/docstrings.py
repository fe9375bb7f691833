"""Our docstrings as Markdown: examples get a fence, indented blocks stay, and lines `name: what` become a list."""

from __future__ import annotations

import re
from typing import Any

import griffe

_ARGUMENT = re.compile(r"^(\*{0,2}\w+(?:, \w+)*): (?=\S)")


def as_markdown(text: str) -> str:
    """
    >>> print(as_markdown("Adds.\\n\\na: one\\nb: two\\n\\n>>> add(1, 2)\\n3"))
    Adds.
    <BLANKLINE>
    - `a`: one
    - `b`: two
    <BLANKLINE>
    ```python
    >>> add(1, 2)
    3
    ```
    """
    lines: list[str] = []
    fenced = False
    for line in text.splitlines():
        if not fenced and line.startswith(">>>"):
            lines += ["", "```python"] if lines and lines[-1] else ["```python"]
            fenced = True
        elif fenced and not line.strip():
            lines.append("```")
            fenced = False
        lines.append(line if fenced else _ARGUMENT.sub(r"- `\1`: ", line))
    return "\n".join([*lines, "```"] if fenced else lines)


class Docstrings(griffe.Extension):
    """Applies it to every docstring that griffe reads."""

    def on_object(self, *, obj: Any, **_: Any) -> None:
        """Called by griffe for each object."""
        if obj.docstring:
            obj.docstring.value = as_markdown(obj.docstring.value)
