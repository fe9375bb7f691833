"""Stand-ins for the models, so that the command line is tested in milliseconds."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import torch

from scone.cli.writing import Writer
from scone.text import Text

PLAIN_WORDS, STEERED_WORDS = " dull and grey.", " bright and [kind] :smile:."


class FakeEngine:
    """Writes fixed words: grey ones without strength, kind ones with it."""

    lm = lm_tokenizer = None

    def __init__(self, strength=1.0, particles=3):
        self.config, self.calls = SimpleNamespace(strength=strength, particles=particles), []

    def with_config(self, *, strength, particles):
        return FakeEngine(strength, particles)

    def open(self, prompts, *, max_new_tokens, seed):
        """Every prompt fits."""

    def finished(self, prompt, continuation, verifier=None):
        return Text(prompt, [], 0, continuation=continuation)

    def generate(self, prompts, *, max_new_tokens, num_return_sequences, seed, logits_processor=()):
        self.calls.append((list(prompts), num_return_sequences, seed))
        words = STEERED_WORDS if self.config.strength else PLAIN_WORDS
        rows = [prompt for prompt in prompts for _ in range(num_return_sequences)]
        ids, logits = torch.zeros(1, 1, dtype=torch.long), torch.zeros(1, 2)
        for processor in logits_processor:
            for _ in range(max_new_tokens * len(rows) * self.config.particles):
                assert processor(ids, logits).equal(logits)
        continuations = [words] * len(rows)
        texts = [prompt + words for prompt in rows]
        return SimpleNamespace(
            texts=texts,
            continuations=continuations,
            token_ids=[[1, 2, 3]] * len(rows),
            finish_reasons=["length"] * len(rows),
            scores=KindVerifier().score(texts),
        )

    def stream(self, prompt, *, max_new_tokens, seed):
        yield from STEERED_WORDS.split(" ", 1)


class KindVerifier:
    """0.9 for kind words, 0.2 for others."""

    def score(self, texts):
        return torch.tensor([0.9 if "kind" in text else 0.2 for text in texts])


class FakeWriter(Writer):
    """A writer whose judge needs no model."""

    def judge(self, texts):
        own = {attribute.name: 0.5 for attribute in self.attributes}
        return [replace(text, independent=own, nll=3.0, nll_tokens=3) for text in texts]


class FakeModels:
    """What was asked for, and writers that need no model."""

    def __init__(self, lm, masked_lm, **options):
        self.names = (lm, masked_lm)

    def writer(self, attributes, config):
        FakeModels.asked = SimpleNamespace(models=self.names, attributes=list(attributes), config=config)
        return FakeWriter(FakeEngine(), attributes, [KindVerifier() for _ in attributes])
