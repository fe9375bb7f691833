"""The command line `scone`. Only the module of the command that was asked for is imported, so `--help` is quick."""

from __future__ import annotations

import argparse
import logging
import os
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any, NamedTuple, NoReturn

from scone import __version__
from scone.errors import ForwardError, SconeError

__all__ = ["main"]

OK, FAILED, MISTAKE, INTERRUPTED = 0, 1, 2, 130


class Command(NamedTuple):
    """A command: `module` offers `add_arguments(parser)` and `run(args)`, whose result, if any, is the exit code."""

    summary: str
    module: str


COMMANDS = {
    "generate": Command("continue prompts so that the text has an attribute", "scone.cli.generate"),
    "trace": Command("a page that shows how a text was steered, token by token", "scone.cli.trace"),
    "serve": Command("an OpenAI-style server on this machine", "scone.serve.command"),
    "demo": Command("plain against controlled text for three tasks, with a table of scores", "scone.cli.demo"),
    "models": Command("the small models that come with pip: installed or not, licence, scores", "scone.cli.models"),
    "doctor": Command("versions, backends, threads, cache, and why something is off", "scone.cli.doctor"),
    "evaluate": Command("run the experiments; a stopped run goes on where it was", "scone.evaluate.command_evaluate"),
    "report": Command("tables and figures of finished experiments", "scone.evaluate.command_report"),
    "audit": Command("how well the estimate of success ranks the candidates", "scone.evaluate.command_audit"),
}

EPILOG = """examples:
  scone generate "The movie was" --attribute positive --compare
  scone generate --file prompts.txt --attribute science=20 --avoid toxic --json
  echo "My neighbour is" | scone generate --avoid toxic --samples 3

Each command has its own --help. Exit codes: 0 fine, 1 internal failure, 2 a mistake in what was asked, 130 Ctrl-C."""


class _Parser(argparse.ArgumentParser):
    """Reports a mistake in one line; argparse itself would repeat all the options first."""

    def error(self, message: str) -> NoReturn:
        self.exit(MISTAKE, f"{self.prog}: {message} (see {self.prog} --help)\n")


def _command_of(argv: Sequence[str]) -> str | None:
    """The first word that is not an option: the command, known or not."""
    return next((word for word in argv if not word.startswith("-")), None)


def parser(argv: Sequence[str]) -> argparse.ArgumentParser:
    """The parser for these words; only the command that they name has its options."""
    top = _Parser(
        prog="scone",
        description="Steers a language model, while it writes, by a classifier that judges the finished text.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("--version", action="version", version=f"scone {__version__}")
    _add_telling(top, default=False)
    commands = top.add_subparsers(dest="command", metavar="COMMAND", required=True)
    chosen = _command_of(argv)
    for name, command in COMMANDS.items():
        sub = commands.add_parser(name, help=command.summary, description=command.summary.capitalize() + ".")
        _add_telling(sub, default=argparse.SUPPRESS)
        if name == chosen:
            module = import_module(command.module)
            module.add_arguments(sub)
            sub.set_defaults(run=module.run)
    return top


def _add_telling(parser: argparse.ArgumentParser, default: Any) -> None:
    """Options that stand before or behind the command."""
    parser.add_argument("--verbose", action="store_true", default=default, help="say what is loaded and written")
    parser.add_argument("--debug", action="store_true", default=default, help="the same and more, and tracebacks")


class _Remarks(logging.Handler):
    """What the package logs, on standard error as it is at the time."""

    def emit(self, record: logging.LogRecord) -> None:
        print(self.format(record), file=sys.stderr)


@contextmanager
def _telling(verbose: bool, debug: bool) -> Iterator[None]:
    """While a command runs, what is logged under `scone` is shown: warnings, with --verbose and --debug more."""
    log, handler = logging.getLogger("scone"), _Remarks()
    handler.setFormatter(logging.Formatter("scone: %(message)s"))
    before = log.level
    log.setLevel(logging.DEBUG if debug else logging.INFO if verbose else logging.WARNING)
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(before)


def _fail(message: object, code: int, debug: bool) -> int:
    if debug:
        traceback.print_exc()
    else:
        print(f"scone: {message}", file=sys.stderr)
    return code


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code.

    argv: the words after `scone`; None means those of the process.

        >>> main(["--version"])  # doctest: +SKIP
        scone 0.2.0
    """
    try:
        code = _run(list(sys.argv[1:] if argv is None else argv))
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # the reader has had enough; what is still buffered goes nowhere
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OK


def _run(argv: list[str]) -> int:
    debug = "--debug" in argv
    try:
        if not argv:
            parser(argv).print_help(sys.stderr)
            return MISTAKE
        args = parser(argv).parse_args(argv)
        with _telling(args.verbose, debug):
            return args.run(args) or OK
    except SystemExit as stop:  # argparse: --help, --version, or a mistake that it has reported
        return stop.code if isinstance(stop.code, int) else MISTAKE
    except KeyboardInterrupt:
        return _fail("interrupted", INTERRUPTED, debug)
    except BrokenPipeError:
        raise
    except ForwardError as failure:  # of a model: nothing was asked wrongly
        return _fail(failure, FAILED, debug)
    except SconeError as mistake:
        return _fail(mistake, MISTAKE, debug)
    except Exception as failure:
        return _fail(f"{type(failure).__name__}: {failure} (an internal failure; --debug shows where)", FAILED, debug)
