"""Just enough Markdown to check our own pages: fenced blocks, links, headings, and what a shell block calls."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    [
        *ROOT.glob("*.md"),
        *(ROOT / "examples").glob("*.md"),
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "scone").rglob("*.md"),
    ]
)

_FENCE = re.compile(r"(?P<before>[^\n]*)\n```(?P<language>\w*)[^\n]*\n(?P<body>.*?)^```\s*$", re.S | re.M)
_LINK = re.compile(r"\[[^\]]*\]\(<?([^)\s>]+)>?(?:\s[^)]*)?\)")
_MARK = re.compile(r"<!-- not run: .+ -->")


class Block(NamedTuple):
    """A fenced block, and whether the line before it says `<!-- not run: why -->`."""

    page: Path
    line: int
    language: str
    body: str
    runs: bool

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks(page: Path, *languages: str) -> list[Block]:
    """The fenced blocks of a page in one of these languages."""
    text = "\n" + page.read_text(encoding="utf-8")
    found = []
    for match in _FENCE.finditer(text):
        before = (
            text[: match.start("before")].rstrip().rsplit("\n", 1)[-1]
            if not match["before"].strip()
            else match["before"]
        )
        line = text.count("\n", 0, match.start("body")) - 1
        found.append(Block(page, line, match["language"], match["body"], not _MARK.search(before)))
    return [block for block in found if block.language in languages]


def links(page: Path) -> list[str]:
    """Targets of all links and pictures outside of fenced blocks."""
    return _LINK.findall(re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.S | re.M))


def anchors(page: Path) -> set[str]:
    """The anchors that a page's headings get."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), flags=re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def commands(block: Block) -> list[list[str]]:
    """The commands of a shell block, as words: without prompts, comments and output, up to a pipe or redirection."""
    joined = block.body.replace("\\\n", " ")
    lines = [line.strip() for line in joined.splitlines()]
    if any(line.startswith("$ ") for line in lines):  # the other lines are what was printed
        lines = [line[2:] for line in lines if line.startswith("$ ")]
    found = []
    for line in lines:
        lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;<>")
        lexer.whitespace_split = True
        words: list[str] = []
        for word in [*lexer, ";"]:
            if set(word) <= set("|&;<>"):
                if words:
                    found.append(words)
                words = []
            else:
                words.append(word)
    return found
