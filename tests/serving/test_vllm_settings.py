"""Settings of a server, and the client's side of a stream."""

from __future__ import annotations

import re
import sys
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from scone.errors import ConfigError, InputError
from scone.vllm import Asked, Settings, released
from scone.vllm.settings import Attribute, current

needs_toml = pytest.mark.skipif(sys.version_info < (3, 11), reason="needs tomllib, of Python 3.11")
GOOD = """
draft = "some/small-lm"
lookahead = "draft+nothing"
strength = 12
[attributes]
kind = { verifier = "some/classifier", target = "POLITE" }
second = { verifier = "some/classifier", target = 1 }
"""


@needs_toml
def test_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "scone.toml"
    file.write_text(GOOD)
    monkeypatch.setenv("SCONE_VLLM", str(file))
    settings = current()
    assert settings is not None and settings.strength == 12 and settings.draft == "some/small-lm"
    assert settings.attributes == {
        "kind": Attribute("some/classifier", "POLITE"),
        "second": Attribute("some/classifier", 1),
    }
    monkeypatch.setenv("SCONE_VLLM", "embedded")
    assert current() == Settings() and {"positive", "toxic", "science"} <= set(Settings().attributes)
    monkeypatch.delenv("SCONE_VLLM")
    assert current() is None


@needs_toml
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a = ", "SCONE_VLLM must be 'embedded' or a TOML file, got"),
        ("strenght = 3", "a setting must be one of attributes, draft, .*, got 'strenght'"),
        ("strength = 'high'", "strength must be of type float, got 'high'"),
        ("top_k = true", "top_k must be of type int, got True"),
        ("attributes = 3", "attributes must be of type Mapping.*, got 3"),
        ("[attributes]\nkind = 'x'", "attribute kind must be { verifier = .*, got 'x'"),
        ("attributes = {}", "attributes must name one attribute at least, got none"),
        ("lookahead = 'far'", "lookahead must be of draft, masked, nothing"),
        ("draft = ''", "lookahead must do without draft, for this server has no such model"),
        ("lookahead = 'masked'", "lookahead must do without masked, for this server has no such model"),
    ],
)
def test_a_file_with_a_mistake(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "scone.toml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=message):
        Settings.read(str(file))


def chunk(text: str, why: str | None = None, by: Any = None, *, chat: bool = False) -> Any:
    said = {"delta": SimpleNamespace(content=text)} if chat else {"text": text}
    return SimpleNamespace(choices=[SimpleNamespace(**said, finish_reason=why, model_extra={"stop_reason": by})])


@pytest.mark.parametrize("chat", [False, True], ids=["completions", "chat"])
def test_what_is_streamed_is_held_back(chat: bool) -> None:
    words = ["One", " two", " three", " four"]
    chunks = [*(chunk(word, chat=chat) for word in words), SimpleNamespace(choices=[])]
    good, bad = [*chunks, chunk("", "length", chat=chat)], [*chunks, chunk("", "stop", 7, chat=chat)]
    assert list(released(good, tokens=2)) == [("One", None), (" two", None), (" three four", "length")]
    assert list(released(bad, tokens=2, end_token=7))[-1] == ("", "content_filter")
    assert list(released(bad, tokens=2))[-1] == (" three four", "stop")
    assert "".join(text for text, _ in released(good, tokens=9)) == "One two three four"


def test_sentences() -> None:
    chunks = [chunk(piece) for piece in ("It is 3", ".14. ", "He said", ' "No!"', " Then", " more")]
    assert list(released([*chunks, chunk("", "stop", 7)], sentence=True, end_token=7)) == [
        ("It is 3.14.", None), (' He said "No!"', None), ("", "content_filter"),
    ]  # fmt: skip
    assert list(released([*chunks, chunk("", "stop", None)], sentence=True, end_token=7))[-1] == (" Then more", "stop")


@pytest.mark.parametrize("options", [{}, {"tokens": 3, "sentence": True}])
def test_one_kind_of_window(options: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="one of tokens and sentence must be given"):
        list(released([], **options))


@needs_toml
def test_the_page_lists_all_settings_and_arguments() -> None:
    import tomllib

    page = (Path(__file__).parents[2] / "docs" / "vllm.md").read_text(encoding="utf-8")
    shown = tomllib.loads(re.findall(r"^```toml\n(.*?)^```", page, flags=re.S | re.M)[0])
    assert set(shown) == {field.name for field in fields(Settings)}
    settings, defaults = Settings.of(shown), Settings()
    assert {name: getattr(settings, name) for name in shown if name not in ("draft", "attributes")} == {
        name: getattr(defaults, name) for name in shown if name not in ("draft", "attributes")
    }
    listed = re.findall(r"`scone_(\w+)`", "".join(re.findall(r"^\| `scone_.*$", page, flags=re.M)))
    assert {field.name for field in fields(Asked)} <= set(listed)
    example = Settings.read(str(Path(__file__).parents[2] / "examples" / "vllm" / "settings.toml"))
    assert set(example.attributes) == {"positive", "negative", "toxic"}
