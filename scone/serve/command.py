"""`scone serve`: an OpenAI-style server on this machine."""

from __future__ import annotations

import argparse
from typing import Any

from scone.cli.arguments import positive
from scone.cli.attributes import SHORT_NAMES, Attribute, add_wishes
from scone.cli.console import note, quiet_libraries
from scone.cli.options import add_config, add_models, read_config
from scone.errors import InputError

EPILOG = """examples:
  scone serve --attribute positive
  scone serve --lm my-org/chat-model --avoid my-org/toxicity:toxic --port 8080 --batch 32
  curl localhost:8000/v1/completions -H 'content-type: application/json' \\
    -d '{"prompt": "The movie was", "max_tokens": 25, "scone": {"attribute": "positive=12"}}'"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `scone serve`."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.usage = "scone serve [--attribute NAME[=STRENGTH]] [--host HOST] [--port PORT] [options]"
    parser.epilog = EPILOG
    place = parser.add_argument_group("server")
    place.add_argument("--host", default="127.0.0.1", help="address to listen on; 0.0.0.0: all (default: 127.0.0.1)")
    place.add_argument("--port", type=int, default=8000, help="default: 8000; 0: any that is free")
    place.add_argument("--batch", type=positive, default=16, metavar="N", help="texts written at once (default: 16)")
    place.add_argument(
        "--queue", type=positive, default=64, metavar="N", help="requests that may wait; more get 429 (default: 64)"
    )
    place.add_argument(
        "--max-tokens",
        type=positive,
        default=1024,
        metavar="N",
        help="new tokens a request may ask for (default: 1024)",
    )
    place.add_argument("--name", help="the model's name in requests (default: that of --lm)")
    add_wishes(parser)
    add_models(parser)
    add_config(parser)


def run(args: argparse.Namespace) -> None:
    """Loads the models and listens until Ctrl-C."""
    config = read_config(args)
    try:
        import uvicorn
    except ImportError as missing:
        raise InputError(f"a server needs fastapi and uvicorn: pip install 'scone[serve]' ({missing})") from missing
    note("loading models")
    quiet_libraries()
    from scone.serve import Steering, build
    from scone.verifier import Verifier

    where: dict[str, Any] = {"device": args.device, "dtype": args.dtype}
    named: list[Attribute] = args.wishes
    own = {f"{a.model}:{a.label}": a for a in named if a.label not in SHORT_NAMES}
    steering = Steering.from_pretrained(
        args.lm,
        args.masked_lm,
        verifiers={name: Verifier.from_pretrained(a.model, target=a.label, **where) for name, a in own.items()},
        default=[_named(a) for a in named if not a.avoid] or (() if named else ("positive",)),
        avoid=[_named(a) for a in named if a.avoid],
        name=args.name or args.lm,
        config=config,
        **where,
    )
    app = build(steering, batch=args.batch, queue=args.queue, max_tokens=args.max_tokens)
    uvicorn.run(app, host=args.host, port=args.port, log_level="info")


def _named(attribute: Attribute) -> str:
    """How `Steering` writes a wish."""
    name = attribute.label if attribute.label in SHORT_NAMES else f"{attribute.model}:{attribute.label}"
    return name if attribute.strength is None else f"{name}={attribute.strength}"
