"""`python -m tests.makebelieve MODULE [options]` runs a module as `python -m` does, with a device made up before."""

from __future__ import annotations

import os
import runpy
import sys

from tests.makebelieve import native

if __name__ == "__main__":
    os.environ["TRITON_INTERPRET"] = "1"  # read when triton is imported
    native.load()
    sys.argv = sys.argv[1:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
