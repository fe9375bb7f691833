"""Tiny random models and tokenizers of every family, made on the spot."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    DistilBertConfig,
    DistilBertForMaskedLM,
    ElectraConfig,
    ElectraForMaskedLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    ModernBertConfig,
    ModernBertForMaskedLM,
    PreTrainedTokenizerFast,
    RobertaConfig,
    RobertaForMaskedLM,
)

CORPUS = [
    "the movie was a great film and the actors were good , the story was bad but the food was nice .",
    "what a wonderful day it is ; everyone who could walk had gone outside to look at the river .",
    "the plot is dull and the music is terrible , yet i loved every minute of this strange old picture .",
    "naïve café owners in Zürich don't like déjà vu",
    "def f(x):\n    return x_1 + 2  # code\n",
    "漢字 と かな",
    "smile 🙂 and wave 👋🏽 !",
] * 3

LETTERS = "abcdefghijklmnopqrstuvwxyz"
BERT_SPECIAL = {
    "pad_token": "[PAD]",
    "unk_token": "[UNK]",
    "cls_token": "[CLS]",
    "sep_token": "[SEP]",
    "mask_token": "[MASK]",
}
ROBERTA_SPECIAL = {
    "bos_token": "<s>", "pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>", "mask_token": "<mask>",
    "cls_token": "<s>", "sep_token": "</s>",
}  # fmt: skip


def _finish(tokenizer: Tokenizer, special: dict[str, str], frame: tuple[str, str] | None) -> Any:
    if frame is not None:
        opening, closing = frame
        ids = [(token, tokenizer.token_to_id(token)) for token in frame]
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{opening} $A {closing}", pair=f"{opening} $A {closing} $B {closing}", special_tokens=ids
        )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=512, **special)


@cache
def wordpiece() -> Any:
    """Uncased WordPiece, as BERT's."""
    tok = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tok.normalizer = normalizers.BertNormalizer(lowercase=True)
    tok.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tok.decoder = decoders.WordPiece(prefix="##")
    tok.train_from_iterator(
        CORPUS, trainers.WordPieceTrainer(vocab_size=260, special_tokens=[*BERT_SPECIAL.values(), "[unused0]"])
    )
    return _finish(tok, BERT_SPECIAL, ("[CLS]", "[SEP]"))


@cache
def byte_bpe(*, masked: bool = False) -> Any:
    """Byte-level BPE, as GPT-2's and, with a mask token, RoBERTa's."""
    special = ROBERTA_SPECIAL if masked else {"eos_token": "<|end|>"}
    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tok.decoder = decoders.ByteLevel()
    tok.train_from_iterator(
        CORPUS,
        trainers.BpeTrainer(
            vocab_size=340,
            special_tokens=list(dict.fromkeys(special.values())),
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    return _finish(tok, special, ("<s>", "</s>") if masked else None)


@cache
def unigram() -> Any:
    """Unigram with ▁ for spaces, as SentencePiece makes it."""
    tok = Tokenizer(models.Unigram())
    tok.pre_tokenizer = pre_tokenizers.Metaspace()
    tok.decoder = decoders.Metaspace()
    tok.train_from_iterator(
        CORPUS,
        trainers.UnigramTrainer(
            vocab_size=200,
            special_tokens=list(dict.fromkeys(ROBERTA_SPECIAL.values())),
            unk_token="<unk>",
            show_progress=False,
        ),
    )
    return _finish(tok, ROBERTA_SPECIAL, ("<s>", "</s>"))


@cache
def characters() -> Any:
    """One token for each character."""
    alphabet = sorted(set("".join(CORPUS)) | set(LETTERS))
    vocab = {token: i for i, token in enumerate([*BERT_SPECIAL.values(), *alphabet])}
    tok = Tokenizer(models.WordLevel(vocab, unk_token="[UNK]"))
    tok.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tok.decoder = decoders.Fuse()
    return _finish(tok, BERT_SPECIAL, ("[CLS]", "[SEP]"))


@cache
def words() -> Any:
    """One token for each word."""
    tok = Tokenizer(models.WordLevel(unk_token="[UNK]"))
    tok.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tok.train_from_iterator(
        CORPUS, trainers.WordLevelTrainer(special_tokens=list(BERT_SPECIAL.values()), show_progress=False)
    )
    return _finish(tok, BERT_SPECIAL, ("[CLS]", "[SEP]"))


TOKENIZERS = {
    "wordpiece": wordpiece,
    "byte_bpe": lambda: byte_bpe(masked=True),
    "unigram": unigram,
    "characters": characters,
    "words": words,
}

_SIZES: dict[str, Any] = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=48)


def _seeded(make: Any, seed: int, scale: float = 6.0) -> Any:
    """A model whose random weights are large enough that its outputs differ from token to token."""
    torch.manual_seed(seed)
    model = make().eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1 and "norm" not in name.lower():
                parameter.mul_(scale)
    return model


def _prefers_words(model: Any, tok: Any) -> Any:
    """Zero logits for bytes that are no text of their own, so that most candidates are readable."""
    readable = torch.tensor([tok.decode([i]).isprintable() and tok.decode([i]).isascii() for i in range(len(tok))])
    with torch.no_grad():
        model.get_output_embeddings().weight[~readable] = 0
    return model


@cache
def llama(seed: int = 0) -> tuple[Any, Any]:
    """A causal LM with rotary positions and its byte-level tokenizer."""
    tok = byte_bpe()
    config = LlamaConfig(
        vocab_size=len(tok), max_position_embeddings=256, eos_token_id=tok.eos_token_id, bos_token_id=None,
        num_key_value_heads=1, **_SIZES,
    )  # fmt: skip
    return _prefers_words(_seeded(lambda: LlamaForCausalLM(config), seed), tok), tok


@cache
def gpt2(seed: int = 0) -> tuple[Any, Any]:
    """A causal LM with learned absolute positions."""
    tok = byte_bpe()
    config = GPT2Config(
        vocab_size=len(tok), n_positions=128, n_embd=32, n_layer=2, n_head=2,
        eos_token_id=tok.eos_token_id, bos_token_id=tok.eos_token_id,
    )  # fmt: skip
    return _prefers_words(_seeded(lambda: GPT2LMHeadModel(config), seed), tok), tok


def masked_lm(family: str, tokenizer: Any = None, seed: int = 1) -> tuple[Any, Any]:
    """A masked LM of a family: bert, distilbert, roberta, electra or modernbert."""
    tok = tokenizer or (byte_bpe(masked=True) if family == "roberta" else wordpiece())
    shared: dict[str, Any] = dict(vocab_size=len(tok), pad_token_id=tok.pad_token_id)
    makers: dict[str, Any] = {
        "bert": lambda: BertForMaskedLM(BertConfig(**shared, **_SIZES)),
        "distilbert": lambda: DistilBertForMaskedLM(
            DistilBertConfig(**shared, dim=32, n_layers=2, n_heads=2, hidden_dim=48)
        ),
        "roberta": lambda: RobertaForMaskedLM(RobertaConfig(**shared, max_position_embeddings=514, **_SIZES)),
        "electra": lambda: ElectraForMaskedLM(ElectraConfig(**shared, embedding_size=16, **_SIZES)),
        "modernbert": lambda: ModernBertForMaskedLM(
            ModernBertConfig(
                **shared, **_SIZES, max_position_embeddings=512, cls_token_id=tok.cls_token_id, sep_token_id=tok.sep_token_id,
                bos_token_id=None, eos_token_id=None, attn_implementation="eager",
            )
        ),
    }  # fmt: skip
    return _seeded(makers[family], seed), tok


def classifier(tokenizer: Any = None, *, labels: int = 2, seed: int = 2, **options: Any) -> tuple[Any, Any]:
    """A BERT classifier with labels "negative", "positive", "label2", …"""
    tok = tokenizer or wordpiece()
    names = ["negative", "positive", *(f"label{i}" for i in range(2, labels))][:labels]
    config = BertConfig(
        vocab_size=len(tok), pad_token_id=tok.pad_token_id, id2label=dict(enumerate(names)),
        label2id={n: i for i, n in enumerate(names)}, **_SIZES, **options,
    )  # fmt: skip
    model = _seeded(lambda: BertForSequenceClassification(config), seed)
    with torch.no_grad():
        model.classifier.weight.mul_(5)  # so that φ differs from text to text
    return model, tok
