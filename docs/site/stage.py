"""Lays out the pages of the site: everything that links to one another, where it stands, and a page of API a room.

`make site` runs it, then mkdocs. README becomes the first page; sources that pages link to are served as they are.
"""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = ("*.md", "docs/**/*", "examples/*", "bench/*.md")
LINK = re.compile(r"\]\(<?([^)\s>#]+)")
ROOMS = {
    "decode": "the engine: generate, stream, one step",
    "config": "options and presets",
    "lookahead": "who looks ahead",
    "verifier": "who judges, and how judges combine",
    "output": "what generation returns",
    "hf": "inside transformers' generate",
    "jobs": "files of prompts, many machines",
    "errors": "what is raised on purpose",
}


def stage(folder: Path) -> None:
    """Fills the folder afresh."""
    shutil.rmtree(folder, ignore_errors=True)
    for pattern in PAGES:
        for file in filter(Path.is_file, ROOT.glob(pattern)):
            if file.is_relative_to(ROOT / "docs" / "site"):
                continue
            _copy(file, folder)
            for link in LINK.findall(file.read_text(encoding="utf-8")) if file.suffix == ".md" else ():
                linked = (file.parent / link).resolve()
                if "://" not in link and linked.is_file():
                    _copy(linked, folder)
    (folder / "api").mkdir()
    rooms = [(f"scone.{room}", what) for room, what in ROOMS.items()] + [("scone_kernels", "fused operations")]
    rows = [f"| [`{name}`]({name}.md) | {what} |" for name, what in rooms]
    (folder / "api" / "index.md").write_text("# API\n\n| | |\n|---|---|\n" + "\n".join(rows) + "\n", encoding="utf-8")
    for name, _ in rooms:
        (folder / "api" / f"{name}.md").write_text(f"# `{name}`\n\n::: {name}\n", encoding="utf-8")


def _copy(file: Path, folder: Path) -> None:
    target = folder / file.relative_to(ROOT)
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(file, target)


if __name__ == "__main__":
    stage(Path(sys.argv[1]))
