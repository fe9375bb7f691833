"""What README and docs/ say exists: links resolve, commands parse, Python blocks run."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

import pytest
from pages import PAGES, ROOT, anchors, blocks, commands, links

import scone.cli

README = ROOT / "README.md"
SHELL_BLOCKS = [block for page in PAGES for block in blocks(page, "sh", "bash", "console", "shell")]
PYTHON_BLOCKS = [block for page in PAGES for block in blocks(page, "python")]
MAKE_TARGETS = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.M))


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_relative_links_resolve(page):
    for link in links(page):
        if re.match(r"[a-z]+:", link):  # https:, mailto:
            continue
        target, _, anchor = link.partition("#")
        file = (page.parent / target).resolve() if target else page
        assert file.exists(), f"{name_of(page)} links to {link}, which is not there"
        assert not anchor or file.suffix != ".md" or anchor in anchors(file), f"{name_of(page)}: no heading for {link}"


@pytest.mark.parametrize("block", SHELL_BLOCKS, ids=str)
def test_commands_exist(block):
    for words in commands(block):
        program, rest = words[0], words[1:]
        if program == "make":
            targets = {word for word in rest if "=" not in word and not word.startswith("-")}
            assert targets <= MAKE_TARGETS, f"no such make target: {targets - MAKE_TARGETS}"
        elif program == "scone" or words[:3] == ["python", "-m", "scone"]:
            assert_parses(rest if program == "scone" else words[3:])
        elif words[:2] == ["python", "-m"]:
            assert find_spec(words[2]), f"no module {words[2]}"


def assert_parses(argv: list[str]) -> None:
    """`--help` and `--version` leave with 0; everything else must be understood."""
    try:
        scone.cli.parser(argv).parse_args(argv)
    except SystemExit as stop:
        assert stop.code == 0, f"scone {' '.join(argv)} is not understood"


@pytest.mark.parametrize("block", PYTHON_BLOCKS, ids=str)
def test_python_blocks_compile(block):
    compile(block.body, str(block), "exec")


def test_readme_python_runs(tmp_path, monkeypatch):
    """The blocks of README, in order, as one session; a block that needs more than this repo says so above it."""
    monkeypatch.chdir(tmp_path)
    session: dict[str, object] = {"__name__": "readme"}
    for block in blocks(README, "python"):
        if block.runs:
            exec(compile(block.body, str(block), "exec"), session)


def test_every_page_of_docs_is_linked_from_readme():
    reachable, ahead = set(), [README]
    while ahead:
        page = ahead.pop()
        if page in reachable or page.suffix != ".md" or not page.exists():
            continue
        reachable.add(page)
        ahead += [(page.parent / link.partition("#")[0]).resolve() for link in links(page) if "://" not in link]
    lost = [name_of(page) for page in PAGES if page.is_relative_to(ROOT / "docs") and page not in reachable]
    assert not lost, f"no link leads from README to {lost}"
