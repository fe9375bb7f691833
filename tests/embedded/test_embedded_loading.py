"""What is refused when weights are loaded: pickles, tensors that are missing, and tensors that nobody asked for."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file
from transformers import BertConfig, BertForMaskedLM, BertForSequenceClassification, LlamaConfig, LlamaForCausalLM

from scone.embedded import encoders, load_classifier, load_masked_lm
from scone.embedded.encoders import assemble_classifier, assemble_masked_lm, encoder_tokenizer
from scone.embedded.names import LABELS, WEIGHTS
from scone.errors import InputError, ModelError
from scone.loading import load_causal_lm
from scone.loading import load_classifier as load_classifier_by_name
from scone.loading import load_masked_lm as load_masked_lm_by_name

SIZE = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8, "vocab_size": 30522}
KINDS = {
    "causal": (LlamaForCausalLM, LlamaConfig, load_causal_lm),
    "masked": (BertForMaskedLM, BertConfig, load_masked_lm_by_name),
    "classifier": (BertForSequenceClassification, BertConfig, load_classifier_by_name),
}


@pytest.mark.parametrize("kind", KINDS)
def test_pickles_are_not_read(tmp_path, kind):
    model_class, config_class, load = KINDS[kind]
    model = model_class(config_class(**SIZE))
    encoder_tokenizer().save_pretrained(tmp_path)
    model.save_pretrained(tmp_path)
    assert type(load(str(tmp_path))[0]) is model_class  # the folder is fine as it is
    (tmp_path / "model.safetensors").unlink()
    torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
    with pytest.raises(InputError, match="must be 'embedded', a folder or an id of the Hub"):
        load(str(tmp_path))


@pytest.fixture
def encoder_with(monkeypatch):
    """Let the encoder's package hold other tensors."""
    whole = encoders._encoder()

    def change(**tensors):
        changed = {name: value for name, value in (whole | tensors).items() if value is not None}
        monkeypatch.setattr(encoders, "_encoder", lambda: changed)

    return change


LOADERS = {"masked LM": load_masked_lm, "verifier": lambda: load_classifier("sentiment")}


@pytest.mark.parametrize("load", LOADERS.values(), ids=LOADERS)
def test_a_missing_tensor_of_the_encoder_is_named(encoder_with, load):
    name = "encoder.layer.3.output.dense.weight"
    encoder_with(**{name: None})
    with pytest.raises(ModelError, match=name):
        load()


@pytest.mark.parametrize("load", LOADERS.values(), ids=LOADERS)
def test_an_unknown_tensor_of_the_encoder_is_named(encoder_with, load):
    encoder_with(**{"encoder.layer.99.weight": torch.zeros(1)})
    with pytest.raises(ModelError, match=r"encoder\.layer\.99\.weight"):
        load()


def shipped(name):
    return load_file(WEIGHTS / f"{name}.safetensors")


@pytest.mark.parametrize("extra", ["classifier.scale", "bert.encoder.layer.9.output.dense.down"])
def test_an_unknown_tensor_of_a_verifier_is_named(extra):
    with pytest.raises(ModelError, match=f"layers that BertForSequenceClassification has, got '{extra}'"):
        assemble_classifier(shipped("sentiment") | {extra: torch.zeros(2, 2)}, LABELS["sentiment"])


def test_an_unknown_tensor_of_the_masked_lm_is_named():
    with pytest.raises(ModelError, match=r"layers that BertForMaskedLM has, got 'cls.seq_relationship.bias'"):
        assemble_masked_lm(shipped("masked-lm") | {"cls.seq_relationship.bias": torch.zeros(2)})


@pytest.mark.parametrize("lost", ["classifier.weight", "classifier.bias"])
def test_a_verifier_without_its_classifier_is_refused(lost):
    tensors = shipped("sentiment")
    del tensors[lost]
    with pytest.raises(ModelError, match=f"must hold {lost}"):
        assemble_classifier(tensors, LABELS["sentiment"])


@pytest.mark.parametrize("factor", ["down", "up"])
def test_half_an_adapter_is_refused(factor):
    tensors = shipped("sentiment")
    del tensors[next(name for name in tensors if name.endswith(f".{factor}"))]
    with pytest.raises(ModelError, match="must be of layers"):
        assemble_classifier(tensors, LABELS["sentiment"])


def test_a_scale_without_its_matrix_is_refused():
    tensors = shipped("masked-lm")
    del tensors[next(name for name in tensors if name.endswith(".int8"))]
    with pytest.raises(ModelError, match="must have both"):
        assemble_masked_lm(tensors)


def test_weights_that_are_not_there_say_how_to_train_them(monkeypatch, tmp_path):
    monkeypatch.setattr(encoders, "WEIGHTS", tmp_path)
    with pytest.raises(encoders.MissingModelError, match="python -m recipes mlm"):
        load_masked_lm()
    with pytest.raises(encoders.MissingModelError, match="python -m recipes sentiment"):
        load_classifier("sentiment")
