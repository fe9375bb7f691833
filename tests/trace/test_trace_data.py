"""A trace as JSON, as a page's source and in a notebook."""

from __future__ import annotations

import copy
import json
import pickle
import re
from html.parser import HTMLParser
from importlib.resources import files
from types import SimpleNamespace

import jsonschema
import pytest
import torch
from made import NASTY, step, trace

from scone.errors import InputError
from scone.output import Cost, Output
from scone.trace import Trace

SCHEMA = json.loads(files("scone.trace").joinpath("schema.json").read_text(encoding="utf-8"))


class Elements(HTMLParser):
    """The names of all elements of a page, and the bodies of its scripts."""

    def __init__(self, source):
        super().__init__()
        self.names, self.scripts, self._inside = [], [], False
        self.feed(source)

    def handle_starttag(self, tag, attrs):
        self.names.append(tag)
        self._inside = tag == "script"

    def handle_endtag(self, tag):
        self._inside = False

    def handle_data(self, data):
        if self._inside:
            self.scripts.append(data)


@pytest.mark.parametrize("explain", [True, False])
def test_json_keeps_to_its_schema(explain):
    found = json.loads(trace(explain=explain).to_json())
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    jsonschema.validate(found, SCHEMA)
    (text,) = found["texts"]
    assert "".join(part["text"] for part in text["steps"]) == text["continuation"]
    assert [part["score"] is None for part in text["steps"]] == [not explain] * 4


def test_the_schema_names_every_field_and_describes_it():
    (text,) = trace().to_dict()["texts"]
    for name, sample in (("text", text), ("step", text["steps"][0]), ("candidate", text["steps"][0]["candidates"][0])):
        described = SCHEMA["$defs"][name]
        assert set(described["properties"]) == set(described["required"]) == set(sample)


def test_a_page_is_one_file_whose_data_cannot_leave_their_place():
    source = trace().to_html(title="<i>")
    assert NASTY[0].strip() not in source and "<img" not in source and "<b>bold" not in source
    assert not re.search(r"""(src|href)=["'](?!data:)""", source) and "http:" not in source.replace(
        "http://www.w3.org/2000/svg", ""
    )
    found = Elements(source)
    assert found.names.count("script") == 2 and "i" not in found.names
    assert json.loads(found.scripts[0]) == trace().to_dict()


def test_an_empty_trace_has_no_page():
    with pytest.raises(InputError, match="trace must hold at least one text to be shown, got none"):
        Trace([], []).to_html()


def test_traces_are_lists_that_can_be_joined_copied_and_sent():
    both = trace(label="a") + trace(label="b").labelled("c")
    assert isinstance(both, Trace) and len(both) == 2 and len(both[0]) == 4
    assert [told.label for told in both.told] == ["a", "c"]
    assert [*both[:1], both[1]] == both
    for again in (copy.deepcopy(both), pickle.loads(pickle.dumps(both))):
        assert isinstance(again, Trace) and again.to_json() == both.to_json()


def test_a_notebook_shows_steps_texts_and_the_page():
    shown = step(0, "<b>", 3)._repr_html_()
    assert "→ <code>&#x27;&lt;b&gt;&#x27;</code></td><td>0.250</td><td>0.88</td><td>0.750</td>" in shown
    assert "<i>0.50</i>" in shown  # not judged
    made = trace()
    texts = [told.prompt + told.continuation for told in made.told]
    output = Output(
        texts, [told.continuation for told in made.told], [[8] * 4], torch.tensor([0.75]), ["length"], made, {}, Cost()
    )
    shown = output._repr_html_()
    assert "&lt;script&gt;" in shown and "<script" not in shown and "<td>0.75</td><td>length</td>" in shown
    frame = made._repr_html_()
    assert frame.startswith('<iframe srcdoc="') and frame.count("<") == 2 and 'sandbox="allow-scripts"' in frame


def test_a_step_without_pieces_shows_its_tokens():
    bare = SimpleNamespace(**{**vars(step(0, "x", 1)), "pieces": (), "judged": None})
    from scone.trace.notebook import table_of

    assert "<code>8</code>" in table_of(bare)
