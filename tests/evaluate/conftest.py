"""Fakes that are small enough to reason about: a tiny random LM and a tokenizer whose tokens are words."""

from __future__ import annotations

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from scone.lm import CausalLM

WORDS = [
    "<end>",
    *[
        "good",
        "bad",
        "nice",
        "awful",
        "great",
        "dull",
        "warm",
        "cold",
        "fine",
        "poor",
        "the",
        "a",
        "film",
        "food",
        "was",
        "is",
        "and",
        "but",
        "so",
        "very",
    ],
]


class WordTokenizer:
    """One token a word; unknown words are an error. Enough of the transformers interface for the evaluation code."""

    eos_token_id = 0
    pad_token_id = 0
    all_special_ids = (0,)

    def __call__(self, texts, return_offsets_mapping=False, **_):
        if isinstance(texts, str):
            out = self._one(texts)
            return Encoding(out[0], out[1])
        rows = [self._one(text) for text in texts]
        return Encoding([ids for ids, _ in rows], [offsets for _, offsets in rows])

    def _one(self, text):
        ids, offsets, at = [], [], 0
        for word in text.split():
            at = text.index(word, at)
            ids.append(WORDS.index(word))
            offsets.append((at, at + len(word)))
            at += len(word)
        return ids, offsets

    def decode(self, ids, skip_special_tokens=True, **_):
        return " ".join(WORDS[int(i)] for i in ids if int(i) != 0 or not skip_special_tokens)

    def batch_decode(self, rows, skip_special_tokens=True):
        return [self.decode(row, skip_special_tokens) for row in rows]


class Encoding(dict):
    def __init__(self, ids, offsets):
        super().__init__(input_ids=ids, offset_mapping=offsets)

    def __getattr__(self, name):
        return self[name]


@pytest.fixture(scope="session")
def tokenizer():
    return WordTokenizer()


@pytest.fixture(scope="session")
def lm(tokenizer):
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(WORDS), hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, eos_token_id=0, bos_token_id=None, pad_token_id=0, initializer_range=0.5,
    )  # fmt: skip
    return CausalLM(LlamaForCausalLM(config).eval(), tokenizer)
