"""Lines of prompts: what is read, and what is wrong with the others."""

from __future__ import annotations

import json

import pytest

from scone.errors import InputError
from scone.jobs.lines import Source, parse

CHAT = [{"role": "user", "content": "Hello"}]


@pytest.mark.parametrize(
    ("raw", "prompt", "known"),
    [
        ('"The sea"', "The sea", None),
        ('{"prompt": "The sea", "id": 7}', "The sea", 7),
        ('{"messages": [{"role": "user", "content": "Hello"}], "id": "a", "other": 1}', CHAT, "a"),
        ('  {"prompt": "Käse 🙂"}\r\n', "Käse 🙂", None),
    ],
)
def test_a_line_is_a_text_or_a_conversation(raw, prompt, known):
    line = parse(3, raw.encode())
    assert (line.number, line.prompt, line.id, line.problem) == (3, prompt, known, None)


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b"plain words", "must be JSON: Expecting value at column 1"),
        (b"7", "must be a string or an object, got int"),
        (b"[1]", "must be a string or an object, got list"),
        (b'{"id": 1}', "must have 'prompt' or 'messages', got 'id'"),
        (b"{}", "must have 'prompt' or 'messages', got neither"),
        (b'{"prompt": "a", "messages": []}', "got 'prompt' and 'messages'"),
        (b'""', "'prompt' must be a text that is not empty, got ''"),
        (b'{"prompt": 3}', "'prompt' must be a text that is not empty, got 3"),
        (b'{"messages": "Hello"}', "'messages' must be a list of messages, got 'Hello'"),
        (b'{"messages": [{"role": "user"}]}', "'role' and 'content' in each message"),
        (b'{"messages": [1]}', "prompts must be strings or lists of messages"),
        (b'{"prompt": "a", "id": [1]}', "'id' must be a string or an integer, got [1]"),
        (b'{"prompt": "a", "id": true}', "'id' must be a string or an integer, got True"),
        (b'"caf\xe9"', "must be valid Unicode"),
        (b'"half \\ud83d"', "must be valid Unicode, got a lone surrogate at character 5"),
        (b"[" * 100_000, "must be JSON"),
    ],
)
def test_what_is_wrong_with_a_line(raw, words):
    line = parse(1, raw)
    assert line.prompt is None and words in line.problem


def test_a_bad_line_keeps_its_id():
    assert parse(1, b'{"id": "a"}').id == "a"


@pytest.mark.parametrize("raw", [b"", b" \t\r\n"])
def test_a_blank_line_is_none(raw):
    assert parse(1, raw) is None


def test_batches_are_so_many_lines_of_the_file_blank_and_bad_ones_too(prompts):
    source = Source.survey(prompts, 4)
    assert (len(source), source.lines, source.prompts, source.bad) == (3, 11, 10, 1)
    assert source.first_bad.number == 6
    numbers = [[line.number for line in source.read(i).lines] for i in range(3)]
    assert numbers == [[1, 2, 3], [5, 6, 7, 8], [9, 10, 11]]
    assert [source.lines_in(i) for i in range(3)] == [4, 4, 3]
    assert source.read(0).lines[1].prompt == "Käse"


def test_a_byte_order_mark_is_not_part_of_the_first_line(tmp_path):
    path = tmp_path / "marked"
    path.write_text('"One"\n"Two"\n', encoding="utf-8-sig")
    source = Source.survey(path, 1)
    assert source.bad == 0 and source.read(0).lines[0].prompt == "One"


def test_memory_does_not_grow_with_the_file(tmp_path):
    """Of each batch only where it begins is kept."""
    path = tmp_path / "many"
    path.write_text(json.dumps("word " * 50) + "\n", encoding="utf-8")
    few = Source.survey(path, 10)
    path.write_text((json.dumps("word " * 50) + "\n") * 1000, encoding="utf-8")
    many = Source.survey(path, 10)
    assert len(many) == 100
    assert many.starts.itemsize * len(many.starts) == 100 * 8 and few.starts.itemsize == 8
    assert {name: type(value) for name, value in vars(few).items()} == {n: type(v) for n, v in vars(many).items()}


def test_no_such_file(tmp_path):
    with pytest.raises(InputError, match=r"input must be a file of JSON lines, got '.*none': No such file"):
        Source.survey(tmp_path / "none", 1)
    with pytest.raises(InputError, match="Is a directory"):
        Source.survey(tmp_path, 1)
