"""Puts together what can be uploaded to Hugging Face's hub: `python -m hub`, by default to dist/hub.

kernels/    a repository of the kernel hub: hub/kernels with the package as its torch-ext/ and built for every backend
generate/   a repository that `model.generate(custom_generate=...)` runs: hub/generate as it stands
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import shutil
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = "scone_kernels"


def main(argv: list[str] | None = None) -> int:
    """Write both folders anew and say where they are."""
    parser = argparse.ArgumentParser(prog="python -m hub", description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "dist" / "hub")
    out = parser.parse_args(argv).out
    for name in ("kernels", "generate"):
        shutil.rmtree(out / name, ignore_errors=True)
        shutil.copytree(ROOT / "hub" / name, out / name, ignore=shutil.ignore_patterns("__pycache__"))
    build(out / "kernels")
    print(f"{out}: kernels, generate")
    return 0


def build(folder: Path) -> None:
    """Give a copy of hub/kernels the package's sources, and a build of them for each backend of its build.toml."""
    source = folder / "torch-ext" / PACKAGE
    shutil.copytree(ROOT / PACKAGE, source, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    text = (folder / "build.toml").read_text(encoding="utf-8")
    general = dict(re.findall(r'^(name|version|license) = "?([^"\n]+)"?$', text, flags=re.MULTILINE))
    key = digest(source)
    for backend in re.findall(r'^    "(\w+)",$', text.partition("[torch-noarch]")[0], flags=re.MULTILINE):
        variant = folder / "build" / f"torch-{backend}"
        shutil.copytree(source, variant)
        namespace = f"_{PACKAGE}_{backend}_{key}"  # versions and backends of the kernels can live in one process
        names = (variant / "_ops.py").read_text(encoding="utf-8")
        (variant / "_ops.py").write_text(names.replace(f"torch.ops.{PACKAGE}", f"torch.ops.{namespace}"))
        metadata = {
            "id": namespace,
            "name": general["name"],
            "version": int(general["version"]),
            "license": general["license"],
            "python-depends": [],
            "backend": {"type": backend},
        }
        (variant / "metadata.json").write_text(json.dumps(metadata, indent=1) + "\n")


def digest(folder: Path) -> str:
    """Seven digits that stand for all sources of a folder."""
    found = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            found.update(f"{path.relative_to(folder)}\0".encode() + path.read_bytes())
    return found.hexdigest()[:7]


if __name__ == "__main__":
    raise SystemExit(main())
