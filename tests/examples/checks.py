"""What each example must have shown: a function of the example's name, given its variables and what it printed.

The texts themselves change with the default settings, so the checks are about what holds for any good setting.
"""

from __future__ import annotations

import json
from pathlib import Path


def batch_job(example, printed):
    lines = printed.splitlines()
    assert [line.split()[0] for line in lines[:-1]] == ["lamp", "lamp", "2", "2", "3", "chair", "chair"]
    assert "must be a text that is not empty" in lines[4]
    assert lines[-1] == "the same file after a stop: True"


def chat(example, printed):
    assert example["steered"].scores[0] > example["plain"].scores[0]
    assert [message["role"] for message in example["conversation"]] == ["user", "assistant", "user"]
    assert printed.count("\n") >= 3


def kernels_alone(example, printed):
    assert "row 3 by itself draws the same: True" in printed
    assert (example["expected"] - example["plain"]).abs().max() < 1e-5


def json_with_a_grammar(example, printed):
    import jsonschema

    for out in (example["plain"], example["steered"]):
        assert out.finish_reasons == ["stop", "stop"]
        for text in out.continuations:
            jsonschema.validate(json.loads(text), example["SCHEMA"])
    assert example["steered"].scores.mean() > example["plain"].scores.mean() + 0.1
    assert printed.count("\n") == 4


def own_verifier(example, printed):
    assert example["steered"].scores.sum() > example["plain"].scores.sum() + 0.5
    assert printed.count("\n") >= 6


def quickstart(example, printed):
    assert example["steered"].scores.mean() > example["plain"].scores.mean() + 0.2
    assert "'" in printed and "p*" in printed


def streaming_guard(example, printed):
    assert "plain: " in printed and "steered: " in printed
    steered = printed.partition("steered: ")[2]
    assert len(steered) > len(example["prompt"]) + example["WINDOW"]
    shown = "".join(example["guarded"](iter(["You are ", "so kind. ", "x" * 40, "You stupid ", "idiot!"]), Wary()))
    assert shown.endswith("[withheld]") and "kind" in shown and "stupid" not in shown


class Wary:
    """Finds one word unclean."""

    def score(self, text):
        return 0.0 if "idiot" in text else 1.0


def server(example, printed):
    assert example["last"].finish_reason in ("stop", "length") and example["last"].scone["phi"] > 0.5
    assert example["withheld"].finish_reason == "content_filter" and example["withheld"].scone["verdict"] == "fail"
    assert printed.startswith(example["asked"]["prompt"])


def trace_page(example, printed):
    page = Path("trace.html").read_text(encoding="utf-8")
    assert page.startswith("<!doctype html>") and "steered" in page
    assert printed.count(" futures\n") == len(example["steered"].token_ids[0])
    assert " 0 futures" not in printed.partition("\n")[2].partition("\n")[0]


def two_attributes(example, printed):
    assert example["steered"].scores.mean() > example["plain"].scores.mean()
    assert "food" in printed and "not toxic" in printed
