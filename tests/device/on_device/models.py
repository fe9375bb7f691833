"""Tiny models, on the CPU or on the device."""

from __future__ import annotations

import copy
from typing import Any

import tiny
import torch

from scone.decode import Scone, SconeConfig, Verifier

PROMPTS = ["the movie was", "what a", "the plot is dull and the music"]


def placed(pair: tuple[Any, Any], device: Any, dtype: torch.dtype) -> tuple[Any, Any]:
    """A copy of a model on a device, with its tokenizer."""
    return copy.deepcopy(pair[0]).to(device, dtype), pair[1]


def classifier(device: Any, dtype: torch.dtype = torch.float32, **options: Any) -> Verifier:
    return Verifier(*placed(tiny.classifier(**options), device, dtype), target="positive")


def engine(
    device: Any,
    config: SconeConfig | None = None,
    *,
    others: Any = None,
    dtype: torch.dtype = torch.float32,
    verifier: Any = None,
) -> Scone:
    """An engine whose LM is on a device, and masked LM and verifier there too or on another; verifier: made by device."""
    beside = device if others is None else others
    judge = classifier(beside, dtype) if verifier is None else verifier(beside)
    masked = placed(tiny.masked_lm("bert"), beside, dtype)
    return Scone(placed(tiny.llama(), device, dtype), masked, judge, config or SconeConfig())
