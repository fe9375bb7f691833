"""`scone generate`: continue prompts so that the finished text has an attribute."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from rich.markup import escape

from scone.cli.arguments import positive
from scone.cli.attributes import SHORT_NAMES, Attribute, add_wishes, wanted
from scone.cli.console import above, err, note, out, progress, quiet_libraries
from scone.cli.job import add_job, is_job, run_job
from scone.cli.options import add_config, add_models, read_config
from scone.errors import InputError

if TYPE_CHECKING:
    from rich.progress import Progress

    from scone.cli.writing import Writer, Written

DESCRIPTION = f"""Continue prompts so that the finished text has an attribute.

An attribute is one of
  {", ".join(list(SHORT_NAMES)[:4])},
  {", ".join(list(SHORT_NAMES)[4:])},
or MODEL:LABEL with any sequence classifier of transformers. Without one the
attribute is positive. A strength replaces --strength for that attribute."""

EPILOG = """examples:
  scone generate "The movie was" --attribute positive --compare
  scone generate "The movie was" --attribute positive=6 --avoid toxic=2 --samples 3
  scone generate --file prompts.txt --attribute science --json > texts.jsonl
  scone generate --input prompts.jsonl --output texts.jsonl --avoid toxic
  scone generate "My day" --lookahead expectation+nothing --tokens 3
  scone generate "Dear customer," --attribute my-org/politeness:polite --lm gpt2"""

BYTE_ORDER_MARK = "\ufeff"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `scone generate`."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.usage = "scone generate [PROMPT ...] [--attribute NAME[=STRENGTH]] [options]"
    parser.description, parser.epilog = DESCRIPTION, EPILOG
    parser.add_argument("prompts", nargs="*", metavar="PROMPT", help="text to continue; none: lines of standard input")
    parser.add_argument("--file", type=Path, help="prompts from a file, one a line; - is standard input")

    add_wishes(parser)
    shape = parser.add_argument_group("output")
    shape.add_argument("--samples", type=positive, default=1, metavar="N", help="texts for each prompt (default: 1)")
    shape.add_argument("--max-new-tokens", type=positive, default=25, metavar="N", help="length (default: 25)")
    shape.add_argument("--seed", type=int, default=0, help="the same seed gives the same text (default: 0)")
    shape.add_argument("--batch", type=positive, default=16, metavar="N", help="texts written at once (default: 16)")
    how = shape.add_mutually_exclusive_group()
    how.add_argument("--stream", action="store_true", help="print each text while it is written")
    how.add_argument("--compare", action="store_true", help="beside plain sampling, with independent scores")
    shape.add_argument("--json", action="store_true", help="one JSON object for each text, a line each")

    add_models(parser)
    add_job(parser)
    add_config(parser)


def run(args: argparse.Namespace) -> None:
    """Checks everything that can be checked without a model, loads, writes."""
    if args.stream and args.json:
        raise InputError("--stream prints pieces of text and --json finished ones: give one of them")
    if args.stream and args.samples > 1:
        raise InputError(f"--stream writes one text for each prompt, got --samples {args.samples}")
    config = read_config(args)
    attributes: Sequence[Attribute] = args.wishes or [wanted("positive")]
    if is_job(args):
        run_job(args, attributes, config)
        return
    prompts = read_prompts(args.prompts, args.file)

    note("loading models")
    quiet_libraries()
    from scone.cli.writing import Models

    models = Models(args.lm, args.masked_lm, device=args.device, dtype=args.dtype)
    writer = models.writer(attributes, config)
    if args.compare:
        _ = writer.judges  # a missing one is known before anything is written
    if args.stream:
        _stream(writer, prompts, args)
    elif args.compare:
        _compare(writer, prompts, args)
    else:
        _list(writer, prompts, args)


def read_prompts(given: Sequence[str], file: Path | None) -> list[str]:
    """Prompts from the arguments, else from a file, else from standard input; blank lines are none."""
    if given and file:
        raise InputError("prompts must come from the arguments or from --file, got both")
    lines = list(given) if given else _read(file).removeprefix(BYTE_ORDER_MARK).splitlines()
    prompts = [line.rstrip("\n") for line in lines if line.strip()]
    if not prompts:
        raise InputError("expected at least one prompt, got none")
    for prompt in prompts:
        if any("\ud800" <= character <= "\udfff" for character in prompt):
            raise InputError(f"prompts must be valid Unicode, got a lone surrogate in {prompt!a}")
    return prompts


def _read(file: Path | None) -> str:
    """All of a file, or of standard input."""
    where = None if file is None or str(file) == "-" else file
    if where is None and sys.stdin.isatty():
        err().print("[dim]prompts, one a line; end with Ctrl-D[/]")
    try:
        return sys.stdin.read() if where is None else where.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as problem:
        name = "standard input" if where is None else f"--file {str(where)!r}"
        raise InputError(f"{name} must be readable text in UTF-8: {problem}") from problem


def _list(writer: Writer, prompts: Sequence[str], args: argparse.Namespace) -> None:
    """Texts as soon as their batch is written."""
    from scone.cli.writing import CONTROLLED

    with progress() as bar:
        console = above(bar)
        for text in _written(writer, CONTROLLED, prompts, args, bar):
            if args.json:
                console.out(_json(text, args))
            elif console.is_terminal:
                scores = ", ".join(f"{name} {score:.2f}" for name, score in text.scores.items())
                console.print(f"[bold]{escape(text.prompt)}[/]{escape(text.continuation)}\n[dim]{escape(scores)}[/]\n")
            else:
                console.out(text.text)


def _compare(writer: Writer, prompts: Sequence[str], args: argparse.Namespace) -> None:
    """Pairs of texts, then the means."""
    from scone.cli import show
    from scone.cli.writing import CONTROLLED, PLAIN

    with progress() as bar:
        plain, controlled = (
            writer.judge(list(_written(writer, method, prompts, args, bar))) for method in (PLAIN, CONTROLLED)
        )
    console = out()
    if args.json:
        console.out("\n".join(_json(text, args) for pair in zip(plain, controlled) for text in pair))
        return
    goal = ", ".join(attribute.name for attribute in writer.attributes)
    console.print(show.heading(goal))
    for pair in zip(plain, controlled):
        console.print(show.pair(*pair))
    console.print(show.summary({goal: [*plain, *controlled]}))


def _stream(writer: Writer, prompts: Sequence[str], args: argparse.Namespace) -> None:
    for prompt in prompts:
        sys.stdout.write(prompt)
        sys.stdout.flush()
        for piece in writer.engine.stream(prompt, max_new_tokens=args.max_new_tokens, seed=args.seed):
            sys.stdout.write(piece)
            sys.stdout.flush()
        sys.stdout.write("\n")


def _written(
    writer: Writer, method: str, prompts: Sequence[str], args: argparse.Namespace, bar: Progress
) -> Iterator[Written]:
    """The texts of one method; the bar counts their tokens."""
    total = len(prompts) * args.samples * args.max_new_tokens
    task = bar.add_task(f"{method} text", total=total)
    yield from writer.write(
        method, prompts, samples=args.samples, max_new_tokens=args.max_new_tokens, seed=args.seed,
        batch=args.batch, tick=lambda: bar.advance(task),
    )  # fmt: skip
    bar.update(task, completed=total)  # texts that ended early


def _json(text: Written, args: argparse.Namespace) -> str:
    record = {"text": text.text, **asdict(text), "seed": args.seed}
    if not text.nll_tokens:  # not judged
        for unknown in ("independent", "nll", "nll_tokens"):
            del record[unknown]
    return json.dumps(record, ensure_ascii=False)
