"""Tiny random models and tokenizers of every family, made on the spot."""

from __future__ import annotations

import itertools
from collections import Counter
from functools import cache
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
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
]

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


def _words() -> list[str]:
    return sorted({word for line in CORPUS for word in line.lower().split()})


@cache
def wordpiece() -> Any:
    """Uncased WordPiece, as BERT's: short words whole, longer ones in pieces."""
    letters = sorted({c for word in _words() for c in word} | set(LETTERS))
    pieces = [*letters, *(w for w in _words() if 1 < len(w) <= 6), "wonder", "every", "##ful", "##one", "##ing"]
    pieces += [f"##{c}" for c in letters]
    vocab = {token: i for i, token in enumerate(dict.fromkeys([*BERT_SPECIAL.values(), "[unused0]", *pieces]))}
    tok = Tokenizer(models.WordPiece(vocab, unk_token="[UNK]"))
    tok.normalizer = normalizers.BertNormalizer(lowercase=True)
    tok.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tok.decoder = decoders.WordPiece(prefix="##")
    return _finish(tok, BERT_SPECIAL, ("[CLS]", "[SEP]"))


@cache
def byte_bpe(*, masked: bool = False) -> Any:
    """Byte-level BPE, as GPT-2's and, with a mask token, RoBERTa's."""
    special = ROBERTA_SPECIAL if masked else {"eos_token": "<|end|>"}
    merges = _byte_merges(80)
    tokens = [*special.values(), *sorted(pre_tokenizers.ByteLevel.alphabet()), *(a + b for a, b in merges)]
    vocab = {token: i for i, token in enumerate(dict.fromkeys(tokens))}
    tok = Tokenizer(models.BPE(vocab, merges))
    tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tok.decoder = decoders.ByteLevel()
    return _finish(tok, special, ("<s>", "</s>") if masked else None)


@cache
def _byte_merges(count: int) -> list[tuple[str, str]]:
    """The most frequent pairs, one after the other; the trainers of `tokenizers` break ties differently in every run."""
    split = pre_tokenizers.ByteLevel(add_prefix_space=False).pre_tokenize_str
    texts = [list(piece) for line in CORPUS for piece, _ in split(line)]
    merges: list[tuple[str, str]] = []
    for _ in range(count):
        pairs = Counter(pair for text in texts for pair in itertools.pairwise(text))
        best = min(pairs, key=lambda pair: (-pairs[pair], pair))
        merges.append(best)
        for text in texts:
            for at in range(len(text) - 1, 0, -1):
                if at < len(text) and (text[at - 1], text[at]) == best:
                    text[at - 1 : at + 1] = ["".join(best)]
    return merges


@cache
def unigram() -> Any:
    """Unigram with ▁ for spaces, as SentencePiece makes it."""
    letters = sorted({c for word in _words() for c in word} | set(LETTERS) | {"▁"})
    pieces = [(token, 0.0) for token in dict.fromkeys(ROBERTA_SPECIAL.values())]
    pieces += [(c, -8.0) for c in letters] + [(f"▁{w}", -5.0) for w in _words() if len(w) <= 6]
    unknown = [token for token, _ in pieces].index("<unk>")
    tok = Tokenizer(models.Unigram(pieces, unk_id=unknown))
    tok.pre_tokenizer = pre_tokenizers.Metaspace()
    tok.decoder = decoders.Metaspace()
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
    known = sorted({word for line in CORPUS for word in line.split()})
    vocab = {token: i for i, token in enumerate([*BERT_SPECIAL.values(), *known])}
    tok = Tokenizer(models.WordLevel(vocab, unk_token="[UNK]"))
    tok.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
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
def llama(seed: int = 0, positions: int = 256, tokens: str = "") -> tuple[Any, Any]:
    """A causal LM with rotary positions and its byte-level tokenizer, or another of `TOKENIZERS`."""
    tok = TOKENIZERS[tokens]() if tokens else byte_bpe()
    config = LlamaConfig(
        vocab_size=len(tok), max_position_embeddings=positions, eos_token_id=tok.eos_token_id, bos_token_id=None,
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
