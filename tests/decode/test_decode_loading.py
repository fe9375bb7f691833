"""What cannot be loaded or put in place is refused by name, before any other model is read."""

from __future__ import annotations

import pytest
import tiny
import torch
from safetensors.torch import load_file, save_file

from scone import embedded
from scone.decode import Scone
from scone.errors import DeviceError, InputError, ModelError
from scone.loading import load_causal_lm, load_classifier, load_masked_lm


@pytest.mark.parametrize(
    ("argument", "load"), [("lm", load_causal_lm), ("masked_lm", load_masked_lm), ("verifier", load_classifier)]
)
def test_a_folder_without_a_model(argument: str, load, tmp_path) -> None:
    expected = f"{argument} must be 'embedded', a folder or an id of the Hub, got"
    with pytest.raises(InputError, match=f"{expected} '{tmp_path}/none': there is no such folder"):
        load(f"{tmp_path}/none")
    with pytest.raises(InputError, match=f"{expected} '{tmp_path}': .*config.json"):
        load(str(tmp_path))


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"device": "gpu"}, InputError, "device must be a device of torch such as 'cpu' or 'cuda:0', got 'gpu'"),
        ({"dtype": "float7"}, InputError, "dtype must be 'auto' or a dtype of torch such as 'bfloat16', got 'float7'"),
        ({"dtype": 16}, InputError, "got 16"),
        ({"device": "cuda"}, DeviceError, "device must be one that torch can use here, got 'cuda' without CUDA"),
    ],
)
def test_a_place_that_does_not_exist(options: dict, kind: type, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for name in ("load_lm", "load_masked_lm", "load_classifier"):
        monkeypatch.setattr(
            embedded, name, lambda *args: pytest.fail("a model was read before the arguments were checked")
        )
    with pytest.raises(kind) as caught:
        Scone.from_pretrained(**options)
    assert message in str(caught.value)


@pytest.mark.parametrize("argument", ["lm", "masked_lm", "verifier"])
def test_pickled_weights_are_refused(argument: str, tmp_path) -> None:
    """Whoever reads a pickle runs what is in it: a folder that has nothing else is not loaded."""
    make = {"lm": tiny.llama, "masked_lm": lambda: tiny.masked_lm("bert"), "verifier": tiny.classifier}[argument]
    load = {"lm": load_causal_lm, "masked_lm": load_masked_lm, "verifier": load_classifier}[argument]
    model, tok = make()
    model.save_pretrained(tmp_path)
    tok.save_pretrained(tmp_path)
    assert type(load(str(tmp_path))[0]) is type(model)
    (tmp_path / "model.safetensors").unlink()
    torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
    with pytest.raises(InputError, match=f"{argument} must be 'embedded', a folder or an id of the Hub, got"):
        load(str(tmp_path))


LOADERS = {
    "lm": (tiny.llama, load_causal_lm, "model.layers.1.mlp.up_proj.weight"),
    "masked_lm": (lambda: tiny.masked_lm("bert"), load_masked_lm, "cls.predictions.transform.dense.bias"),
    "verifier": (tiny.classifier, load_classifier, "classifier.weight"),
}


@pytest.mark.parametrize("argument", LOADERS)
def test_weights_that_are_missing_or_of_another_shape_are_named(argument: str, tmp_path) -> None:
    """They would be random numbers, and others at each load."""
    make, load, name = LOADERS[argument]
    model, tok = make()
    model.save_pretrained(tmp_path)
    tok.save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    whole = load_file(file)
    expected = f"{argument} must hold all weights of a {type(model).__name__}, got '{tmp_path}'"

    save_file({key: value for key, value in whole.items() if key != name}, file, metadata={"format": "pt"})
    with pytest.raises(ModelError, match=f"^{expected} without {name}$"):
        load(str(tmp_path))

    save_file({**whole, name: torch.zeros(3, 5)}, file, metadata={"format": "pt"})
    shape = tuple(whole[name].shape)
    with pytest.raises(ModelError) as caught:
        load(str(tmp_path))
    assert str(caught.value) == f"{expected} with {name} of shape (3, 5), expected {shape}"

    file.write_bytes(file.read_bytes()[:1000])
    with pytest.raises(InputError, match=f"{argument} must be 'embedded', a folder or an id of the Hub, got"):
        load(str(tmp_path))


def test_an_encoder_without_a_head_is_no_verifier(tmp_path) -> None:
    model, tok = tiny.classifier()
    model.bert.save_pretrained(tmp_path)
    tok.save_pretrained(tmp_path)
    with pytest.raises(ModelError, match=r"without classifier\.bias and 1 more"):
        load_classifier(str(tmp_path))


def test_what_is_loaded_is_logged_under_the_name_of_the_package(caplog) -> None:
    with caplog.at_level("INFO", logger="scone"), pytest.raises(InputError):
        load_causal_lm("/no/such/folder")
    assert [record.getMessage() for record in caplog.records] == ["loading the LM '/no/such/folder'"]
