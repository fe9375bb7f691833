"""The options of `SconeConfig` as options of the command line, made from its fields so that none is forgotten."""

from __future__ import annotations

import argparse
import dataclasses
import types
import typing
from collections.abc import Callable
from typing import Any

from scone.config import SconeConfig

__all__ = ["HELP", "PRESETS", "add_config", "read_config"]

PRESETS: dict[str, Callable[[], SconeConfig]] = {
    "default": SconeConfig,
    "fast": SconeConfig.fast,
    "paper": SconeConfig.paper,
}

HELP = {
    "top_k": "candidates for the next token: the k likeliest",
    "top_p": "keep only the likeliest candidates that together reach this probability",
    "min_p": "drop candidates below this share of the likeliest one's probability",
    "min_mass": "a candidate less probable than this gets no lookahead of its own",
    "temperature": "of the language model's distribution",
    "reweigh": "how the estimated probability q of success changes the next-token distribution",
    "strength": "how strongly q counts, for attributes without a strength of their own",
    "epsilon": "q is clamped to at least this, so that no candidate is ruled out by one estimate",
    "init": "where a lookahead starts: the last step's, the language model's words, or masks",
    "lookahead": "tokens to look ahead; none: all that remain, up to 25",
    "lm_lookahead": "tokens of a lookahead that the language model writes before the masked model goes on; none: all",
    "lookahead_top_p": "top-p of the language model's lookaheads",
    "lookahead_min_p": "min-p of the language model's lookaheads",
    "context_window": "tokens of prefix that masked model and verifier see; none: as many as fit",
    "mlm_temperature": "of the masked model's conditionals",
    "schedule": "which positions a Gibbs update takes: all in turn, or blocks at random",
    "block": "positions updated at once",
    "iterations": "Gibbs updates per candidate and step",
    "warmup": "extra Gibbs updates at the first step",
    "thin": "keep every n-th state of a chain; none: only the last",
    "chains": "lookaheads per candidate",
    "workers": "asynchronous workers that share a chain's state; 1 is synchronous and reproducible",
    "sync_every": "updates between two synchronisations of the workers",
    "coupled": "candidates share their random numbers, so that they differ by the candidate and not by noise",
    "blend": "weight of the text so far, without lookahead, in q; 0: the lookahead alone",
    "expand": "expand the verifier about the drawn lookahead, or about its expected embeddings",
    "marginals": "conditionals of the estimate: those of the last sweep, masked one by one, or in one unmasked pass",
    "taylor": "gradient and difference matched by position, or the paper's means",
    "linearise": "the verifier's probability or its logit is linearised",
    "taylor_scale": "weight of the first-order term: 0 is lookahead only, 1 the full term",
}


def add_config(parser: argparse.ArgumentParser) -> None:
    """Adds `--preset` and one option for each field of `SconeConfig`."""
    group = parser.add_argument_group(
        "method", "Options of SconeConfig; docs/options.md has the measurement behind each default."
    )
    group.add_argument("--preset", choices=list(PRESETS), default="default", help="the settings to start from")
    hints = typing.get_type_hints(SconeConfig)
    for field in dataclasses.fields(SconeConfig):
        flag = "--" + field.name.replace("_", "-")
        text = f"{HELP[field.name]} (default: {_show(field.default)})"
        # An option that is not given leaves no trace, so that presets keep their values.
        common: dict[str, Any] = {"dest": field.name, "default": argparse.SUPPRESS, "help": text.replace("%", "%%")}
        group.add_argument(flag, **common, **_reading(hints[field.name]))


def read_config(args: argparse.Namespace) -> SconeConfig:
    """The preset with the options that were given; a value out of range raises `ConfigError`."""
    names = [field.name for field in dataclasses.fields(SconeConfig)]
    return PRESETS[args.preset]().replace(**{name: getattr(args, name) for name in names if hasattr(args, name)})


def _reading(hint: Any) -> dict[str, Any]:
    """How argparse reads a value of the type `hint`."""
    if typing.get_origin(hint) is typing.Literal:
        return {"choices": typing.get_args(hint)}
    if hint is bool:
        return {"action": argparse.BooleanOptionalAction}
    if typing.get_origin(hint) in (types.UnionType, typing.Union):  # int | None
        kind = next(kind for kind in typing.get_args(hint) if kind is not type(None))
        return {"type": _or_none(kind), "metavar": f"{kind.__name__.upper()}|none"}
    return {"type": hint, "metavar": hint.__name__.upper()}


def _or_none(kind: Callable[[str], Any]) -> Callable[[str], Any]:
    def read(text: str) -> Any:
        return None if text == "none" else kind(text)

    read.__name__ = f"{getattr(kind, '__name__', kind)} or none"  # argparse: "invalid int or none value"
    return read


def _show(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return "none" if value is None else f"{value}"
