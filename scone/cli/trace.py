"""`scone trace`: a page that shows how a text was steered, token by token."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from scone.cli.arguments import positive
from scone.cli.attributes import Attribute, add_wishes, wanted
from scone.cli.console import err, note, quiet_libraries
from scone.cli.options import add_config, add_models, read_config
from scone.errors import InputError
from scone.settings import parse_settings

if TYPE_CHECKING:
    from scone.config import SconeConfig
    from scone.trace import Trace

EPILOG = """examples:
  scone trace "The movie was" --out trace.html
  scone trace "The movie was" --attribute positive --beside plain
  scone trace "My day" --lookahead paths --beside default,lookahead=nothing --out compare.html
  scone trace "The food was" --samples 4 --out trace.json"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `scone trace`."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.usage = "scone trace PROMPT [--out FILE] [--beside SETTINGS] [options]"
    parser.epilog = EPILOG
    parser.add_argument("prompt", metavar="PROMPT", help="text to continue")
    parser.add_argument(
        "--out", type=Path, default=Path("trace.html"), metavar="FILE",
        help="where the page goes; data in JSON if the name ends in .json (default: trace.html)",
    )  # fmt: skip
    parser.add_argument(
        "--beside",
        metavar="SETTINGS",
        help="a second text with other settings, for example plain or fast,top_k=20",
    )
    parser.add_argument("--samples", type=positive, default=1, metavar="N", help="texts of each settings (default: 1)")
    parser.add_argument("--max-new-tokens", type=positive, default=25, metavar="N", help="length (default: 25)")
    parser.add_argument("--seed", type=int, default=0, help="the same seed gives the same text (default: 0)")
    add_wishes(parser)
    add_models(parser)
    add_config(parser)


def run(args: argparse.Namespace) -> None:
    """Checks what can be checked without a model, writes the texts and then the page."""
    if not args.prompt.strip():
        raise InputError("PROMPT must hold at least one word, got none")
    if not args.out.parent.is_dir() or args.out.is_dir():
        raise InputError(f"--out must be a file in a folder that exists, got {str(args.out)!r}")
    settings = {"": read_config(args)}
    if args.beside:
        settings = {args.preset: settings[""], args.beside: parse_settings(args.beside)}
    trace = _written(args, settings)
    whole = trace.to_json(indent=1) if args.out.suffix == ".json" else trace.to_html(title=f"{args.prompt} …")
    args.out.write_text(whole, encoding="utf-8")
    err().print(f"[dim]written:[/] {args.out}", soft_wrap=True)


def _written(args: argparse.Namespace, settings: dict[str, SconeConfig]) -> Trace:
    attributes: Sequence[Attribute] = args.wishes or [wanted("positive")]
    note("loading models")
    quiet_libraries()
    from scone.cli.writing import Models
    from scone.trace import Trace

    models, together = Models(args.lm, args.masked_lm, device=args.device, dtype=args.dtype), Trace([], [])
    for label, config in settings.items():
        note(f"writing {label}".rstrip())
        out = models.writer(attributes, config).engine.generate(
            args.prompt,
            max_new_tokens=args.max_new_tokens,
            num_return_sequences=args.samples,
            seed=args.seed,
            explain=True,
        )
        together = together + out.trace.labelled(label)
    return together
