"""A folder of converted models that survives crashes, damage, a full disk and two processes that start at once.

A model is built into a temporary folder beside its place, with a manifest of checksums, and moved there in one step;
a lock makes the second process wait for the first. A folder whose files do not match its manifest is built anew, and
what a process that was killed has left behind is removed by the next that builds.
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
from safetensors import SafetensorError

from scone.embedded.errors import CacheError

MANIFEST = "manifest.json"
CONVERSION = 1  # raise it when what is written of a converted model changes


def cache_folder() -> Path:
    """`SCONE_CACHE`, else `scone` in the user's cache directory."""
    if chosen := os.environ.get("SCONE_CACHE"):
        return Path(chosen).expanduser()
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "scone"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "scone"


def folder_name(model: str, file: str, size: int) -> str:
    """What the folder of a model is called that was converted from a file of this name and size."""
    return f"{model}-{hashlib.sha256(f'{file} {size} {CONVERSION}'.encode()).hexdigest()[:10]}"


def cached(name: str, build: Callable[[Path], None], *, root: Path | None = None) -> Path:
    """The folder `name` in the cache, whole; `build(folder)` fills it when it is missing or damaged.

    name: one folder per content, so a new version has a new name   root: the cache folder unless given
    """
    root = root or cache_folder() / "models"
    folder = root / name
    if is_whole(folder):  # nothing is written, so that a cache that was filled before may be read-only
        return folder
    try:
        root.mkdir(parents=True, exist_ok=True)
        with FileLock(root / f"{name}.lock"):
            if not is_whole(folder):  # else another process was faster
                _build(folder, build)
    except (OSError, SafetensorError) as problem:
        raise CacheError(
            f"the cache folder must be one that can be written to and has room, got {root}: {problem}; "
            "SCONE_CACHE names another"
        ) from problem
    return folder


def _build(folder: Path, build: Callable[[Path], None]) -> None:
    """Put a new folder in the place of one that is missing or damaged; the lock is held."""
    for left in _leftovers(folder):
        shutil.rmtree(left, ignore_errors=True)
    if folder.exists():
        aside = Path(tempfile.mkdtemp(prefix=f"{folder.name}.", dir=folder.parent))
        os.replace(folder, aside / "damaged")
        shutil.rmtree(aside, ignore_errors=True)
    fresh = Path(tempfile.mkdtemp(prefix=f"{folder.name}.", dir=folder.parent))
    try:
        build(fresh)
        _write_manifest(fresh)
        fresh.chmod(0o755)
        os.replace(fresh, folder)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def _leftovers(folder: Path) -> list[Path]:
    """What builders of this folder that were killed have left: `mkdtemp` adds eight characters to the name."""
    return [path for path in folder.parent.glob(f"{folder.name}.????????") if path.is_dir()]


def is_whole(folder: Path) -> bool:
    """Whether the folder has a manifest that names files, each with the size and checksum that it says."""
    try:
        files = json.loads((folder / MANIFEST).read_text())["files"]
        if not files:
            return False
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
