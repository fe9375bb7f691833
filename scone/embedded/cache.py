"""A folder of converted models that survives crashes, damage and two processes that start at once.

A model is built into a temporary folder beside its place, with a manifest of checksums, and moved there in one step;
a lock makes the second process wait for the first. A folder whose files do not match its manifest is built anew.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from filelock import FileLock

MANIFEST = "manifest.json"


def cache_folder() -> Path:
    """`SCONE_CACHE`, else `scone` in the user's cache directory."""
    if chosen := os.environ.get("SCONE_CACHE"):
        return Path(chosen).expanduser()
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "scone"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "scone"


def cached(name: str, build: Callable[[Path], None], *, root: Path | None = None) -> Path:
    """The folder `name` in the cache, whole; `build(folder)` fills it when it is missing or damaged.

    name: one folder per content, so a new version has a new name   root: the cache folder unless given
    """
    root = root or cache_folder() / "models"
    folder = root / name
    if is_whole(folder):
        return folder
    root.mkdir(parents=True, exist_ok=True)
    with FileLock(root / f"{name}.lock"):
        if is_whole(folder):  # another process was faster
            return folder
        fresh = Path(tempfile.mkdtemp(prefix=f"{name}.", dir=root))
        try:
            build(fresh)
            _write_manifest(fresh)
            fresh.chmod(0o755)
            _replace(fresh, folder)
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
    return folder


def is_whole(folder: Path) -> bool:
    """Whether the folder has a manifest, and every file in it has the size and checksum that the manifest says."""
    try:
        files = json.loads((folder / MANIFEST).read_text())["files"]
        sizes_match = all((folder / name).stat().st_size == entry["size"] for name, entry in files.items())
        return sizes_match and all(checksum(folder / name) == entry["sha256"] for name, entry in files.items())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def checksum(path: Path) -> str:
    """The file's SHA-256 in hexadecimal."""
    digest = hashlib.sha256()
    with open(path, "rb") as handle:
        while block := handle.read(1 << 22):
            digest.update(block)
    return digest.hexdigest()


def _write_manifest(folder: Path) -> None:
    files = {
        path.relative_to(folder).as_posix(): {"size": path.stat().st_size, "sha256": checksum(path)}
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
    (folder / MANIFEST).write_text(json.dumps({"files": files}, indent=1))


def _replace(fresh: Path, folder: Path) -> None:
    """Put `fresh` in the place of `folder`; a damaged folder there is moved aside first and then deleted."""
    if folder.exists():
        aside = Path(tempfile.mkdtemp(prefix=f"{folder.name}.old.", dir=folder.parent))
        os.replace(folder, aside / "old")
        os.replace(fresh, folder)
        shutil.rmtree(aside, ignore_errors=True)
    else:
        os.replace(fresh, folder)
