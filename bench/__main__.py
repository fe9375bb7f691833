"""`python -m bench NAME [options]` calls main(options) of bench/NAME.py. A new benchmark is a new file."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path


def names() -> list[str]:
    """The benchmarks: every file of this folder that defines `main`."""
    files = Path(__file__).parent.glob("[a-z]*.py")
    return sorted(file.stem for file in files if "\ndef main(" in file.read_text())


def main(argv: list[str]) -> int:
    """Dispatch to one benchmark, or list them."""
    if not argv or argv[0] not in names():
        print(f"usage: python -m bench {{{','.join(names())}}} [options]", file=sys.stderr)
        return 2
    return importlib.import_module(f"bench.{argv[0]}").main(argv[1:])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
