"""All that runs on the make-believe device, in a process of its own."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from tests.makebelieve import native

FOLDER = Path(__file__).with_name("on_device")
ROOT = Path(__file__).parents[2]

pytestmark = [
    pytest.mark.skipif(native.compiler() is None, reason="needs a C++ compiler"),
    pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs the package triton"),
]


@pytest.mark.parametrize("file", sorted(FOLDER.glob("test_*.py")), ids=lambda file: file.stem)
def test_on_device(file):
    command = [sys.executable, "-m", "tests.makebelieve", "pytest", "-p", "no:cacheprovider", str(file)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
