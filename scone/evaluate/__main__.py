"""`python -m scone.evaluate evaluate|report|audit`: the commands without the rest of the command line."""

from __future__ import annotations

import argparse
import sys
from importlib import import_module

from scone.errors import SconeError

COMMANDS = {name: f"scone.evaluate.command_{name}" for name in ("evaluate", "report", "audit")}


def main() -> int:
    """Runs one command; 2 is a mistake in what was asked."""
    parser = argparse.ArgumentParser(prog="python -m scone.evaluate")
    commands = parser.add_subparsers(dest="command", required=True)
    for name, module in COMMANDS.items():
        command = commands.add_parser(name)
        if name in sys.argv[1:2]:  # the others need not be imported
            import_module(module).add_arguments(command)
    args = parser.parse_args()
    try:
        return import_module(COMMANDS[args.command]).run(args) or 0
    except SconeError as mistake:
        print(f"scone: {mistake}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
