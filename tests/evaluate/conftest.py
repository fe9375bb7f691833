"""Real models that are tiny: random weights, a vocabulary of words, saved in folders as a user's models would be."""

from __future__ import annotations

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

from scone.evaluate.models import ModelNames
from scone.lm import CausalLM
from scone.loading import load_causal_lm

SPECIAL = ["[END]", "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = [
    *SPECIAL,
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


def word_tokenizer(*, frame: bool) -> PreTrainedTokenizerFast:
    """One token a word; `frame` adds [CLS] and [SEP] as a BERT tokenizer does."""
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    if frame:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 3), ("[SEP]", 4)]
        )
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]"}
    if frame:
        names |= {"cls_token": "[CLS]", "sep_token": "[SEP]", "mask_token": "[MASK]"}
    else:
        names["eos_token"] = "[END]"
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names)


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """Tiny tensors: threads would only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def tiny_lm(seed):
    torch.manual_seed(seed)
    lm = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(WORDS), hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
            num_key_value_heads=1, eos_token_id=0, bos_token_id=None, pad_token_id=1, initializer_range=0.5,
        )
    )  # fmt: skip
    with torch.no_grad():  # only words are ever likely: the other special tokens have no text
        lm.lm_head.weight[1 : len(SPECIAL)] = 0
    return lm


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory):
    """A folder with an LM, a masked LM and a sentiment classifier."""
    folder = tmp_path_factory.mktemp("models")
    lm = tiny_lm(seed=0)
    bert = dict(
        vocab_size=len(WORDS), hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
        initializer_range=0.5, max_position_embeddings=64, pad_token_id=1,
    )  # fmt: skip
    labels = {0: "negative", 1: "positive"}
    parts = {
        "lm": (lm, word_tokenizer(frame=False)),
        "masked": (BertForMaskedLM(BertConfig(**bert)), word_tokenizer(frame=True)),
        "verifier": (
            BertForSequenceClassification(
                BertConfig(**bert, id2label=labels, label2id={label: i for i, label in labels.items()})
            ),
            word_tokenizer(frame=True),
        ),
    }
    for name, (model, tokenizer) in parts.items():
        model.save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
    return folder


@pytest.fixture(scope="session")
def other_lm(tmp_path_factory):
    """The folder of an LM with other weights."""
    folder = tmp_path_factory.mktemp("other")
    tiny_lm(seed=1).save_pretrained(folder)
    word_tokenizer(frame=False).save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="session")
def names(model_folder):
    return ModelNames(*(str(model_folder / part) for part in ("lm", "masked", "verifier")))


@pytest.fixture(scope="session")
def lm(model_folder):
    return CausalLM(*load_causal_lm(str(model_folder / "lm")))
