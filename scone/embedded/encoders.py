"""The masked LM and the verifiers: MiniLM's weights plus the small files that come with scone."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import torch
from safetensors.torch import load_file
from transformers import (
    AutoTokenizer,
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    PreTrainedTokenizerBase,
)

from scone.embedded.adapters import Tensors, merge, unpack
from scone.embedded.errors import MissingModelError
from scone.embedded.names import LABELS, WEIGHTS
from scone.embedded.packages import MINILM
from scone.errors import InputError, ModelError


def load_masked_lm() -> tuple[BertForMaskedLM, PreTrainedTokenizerBase]:
    """The masked LM and its tokenizer, float32, in eval mode; its decoder is its word-embedding table plus a bias.

    >>> model, tokenizer = load_masked_lm()
    >>> model.get_output_embeddings().weight is model.get_input_embeddings().weight
    True
    """
    return assemble_masked_lm(load_file(_weights("masked-lm"))), encoder_tokenizer()


def load_classifier(attribute: str) -> tuple[BertForSequenceClassification, PreTrainedTokenizerBase]:
    """A verifier (`"sentiment"`, `"toxicity"` or `"topic"`) and its tokenizer, float32, in eval mode.

    >>> model, tokenizer = load_classifier("sentiment")
    >>> model.config.id2label
    {0: 'negative', 1: 'positive'}
    """
    if attribute not in LABELS:
        raise InputError(f"attribute must be one of {', '.join(LABELS)}, got {attribute!r}")
    return assemble_classifier(load_file(_weights(attribute)), LABELS[attribute]), encoder_tokenizer()


def assemble_masked_lm(packed: Tensors) -> BertForMaskedLM:
    """A masked LM from MiniLM and what `adapters.pack` stored."""
    model = fresh_masked_lm()
    merge(model, unpack(packed, model.state_dict()))
    return model


def assemble_classifier(tensors: Tensors, labels: tuple[str, ...]) -> BertForSequenceClassification:
    """A verifier from MiniLM, low-rank adapters, and the layers that are stored whole."""
    missing = {"classifier.weight", "classifier.bias"} - set(tensors)
    if missing:  # no encoder has them: they would be random
        raise ModelError(f"weights of a verifier must hold {min(missing)}, got none")
    model = fresh_classifier(labels)
    merge(model, tensors)
    return model


def encoder_tokenizer() -> PreTrainedTokenizerBase:
    """MiniLM's tokenizer, which does not cut or pad unless asked."""
    tokenizer = AutoTokenizer.from_pretrained(MINILM.locate())
    tokenizer.model_max_length = _config().max_position_embeddings
    tokenizer.backend_tokenizer.no_truncation()
    tokenizer.backend_tokenizer.no_padding()
    return tokenizer


def fresh_masked_lm() -> BertForMaskedLM:
    """MiniLM with a tied decoder behind a transform that is the identity: where training begins."""
    config = _config()
    config.tie_word_embeddings = True
    model = BertForMaskedLM(config)
    _fill(model.bert, {name: value for name, value in _encoder().items() if "pooler" not in name})
    model.tie_weights()
    head = model.cls.predictions
    with torch.no_grad():
        head.transform.dense.weight.copy_(torch.eye(config.hidden_size))
        head.transform.dense.bias.zero_()
        head.bias.zero_()
    return model.eval()


def fresh_classifier(labels: tuple[str, ...]) -> BertForSequenceClassification:
    """MiniLM with its own pooler and a new classifier: where training begins."""
    config = _config()
    config.id2label = dict(enumerate(labels))
    config.label2id = {label: index for index, label in enumerate(labels)}
    model = BertForSequenceClassification(config)
    _fill(model.bert, _encoder())
    return model.eval()


def _fill(encoder: torch.nn.Module, tensors: Tensors) -> None:
    """Give the encoder its weights, all of them and nothing else."""
    try:
        encoder.load_state_dict(tensors)
    except RuntimeError as problem:
        raise ModelError(f"the weights of {MINILM.name} must be those of its encoder: {problem}") from problem


def _config() -> BertConfig:
    settings = json.loads((MINILM.locate() / "config.json").read_text())
    config = BertConfig(
        **{key: value for key, value in settings.items() if key not in ("architectures", "torch_dtype")}
    )
    config.hidden_dropout_prob = config.attention_probs_dropout_prob = 0.0
    return config


@cache
def _encoder() -> Tensors:
    """MiniLM's tensors, read once a process."""
    tensors = load_file(MINILM.locate() / "model.safetensors")
    return {name: value.float() for name, value in tensors.items() if not name.endswith("position_ids")}


def _weights(name: str) -> Path:
    path = WEIGHTS / f"{name}.safetensors"
    if not path.exists():
        recipe = "mlm" if name == "masked-lm" else name
        raise MissingModelError(f"{path} is missing; train it in the repository's folder: python -m recipes {recipe}")
    return path
