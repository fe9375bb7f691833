"""An engine that writes fixed words, so that what is tested is the job."""

from __future__ import annotations

from types import SimpleNamespace

import torch

from scone.decode import SconeConfig
from scone.errors import InputError


class FakeEngine:
    """Continues every prompt by its own length, and refuses one that holds "too long"; keeps its calls."""

    def __init__(self, **options):
        self.config = SconeConfig(**options)
        self.lm = SimpleNamespace(config=SimpleNamespace(name_or_path="fake"))
        self.calls = []

    def open(self, prompts, *, max_new_tokens, seed):
        if "too long" in prompts[0]:
            raise InputError("prompts must leave room")

    def generate(self, prompts, *, max_new_tokens, num_return_sequences, seed):
        self.calls.append(list(prompts))
        rows = [prompt for prompt in prompts for _ in range(num_return_sequences)]
        continuations = [f" {len(row)}é" for row in rows]
        starts = [row if isinstance(row, str) else "" for row in rows]
        return SimpleNamespace(
            texts=[start + more for start, more in zip(starts, continuations)],
            continuations=continuations,
            token_ids=[[1, 2]] * len(rows),
            finish_reasons=["length"] * len(rows),
            scores=torch.full((len(rows),), 1 / 3),
        )
