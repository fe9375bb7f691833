"""Wrong arguments raise before any work, and the message names the argument and both values."""

from __future__ import annotations

import pytest
import torch

import scone_kernels as k
from scone_kernels.testing import OPS, make_inputs


def _run(op, **changes):
    inputs = make_inputs(op, rows=4, vocabulary=6, width=3, sequences=2 if "dot" in op or "taylor" in op else None)
    backend = changes.pop("backend", None)
    inputs.arguments.update(changes)
    return inputs.run(backend)


@pytest.mark.parametrize(
    ("op", "changes", "error", "words"),
    [
        ("expected_embedding", {"hidden": torch.zeros(4)}, ValueError, ["hidden", "(any, any)", "(4,)"]),
        ("expected_embedding", {"weight": torch.zeros(6, 2)}, ValueError, ["weight", "(any, 3)", "(6, 2)"]),
        ("expected_embedding", {"table": torch.zeros(5, 3)}, ValueError, ["table", "(6, any)", "(5, 3)"]),
        ("expected_embedding", {"bias": torch.zeros(5)}, ValueError, ["bias", "(6,)", "(5,)"]),
        ("expected_embedding", {"keep": torch.ones(5, dtype=torch.bool)}, ValueError, ["keep", "(6,)", "(5,)"]),
        ("expected_embedding", {"keep": torch.ones(6)}, TypeError, ["keep", "bool", "float32"]),
        ("expected_embedding", {"hidden": torch.zeros(4, 3).double()}, TypeError, ["hidden", "float32", "float64"]),
        ("expected_embedding", {"weight": torch.zeros(6, 3).half()}, TypeError, ["weight", "float32", "float16"]),
        ("expected_embedding", {"table": [1, 2]}, TypeError, ["table", "tensor", "list"]),
        ("expected_embedding", {"table": torch.zeros(6, 3, device="meta")}, ValueError, ["table", "cpu", "meta"]),
        ("expected_embedding", {"temperature": 0.0}, ValueError, ["temperature", "positive", "0.0"]),
        ("expected_embedding", {"temperature": float("nan")}, ValueError, ["temperature", "nan"]),
        ("expected_embedding_from_logits", {"logits": torch.zeros(4, 0)}, ValueError, ["at least one token"]),
        ("expected_dot", {"grad": torch.zeros(2, 4)}, ValueError, ["grad", "(any, 3)", "(2, 4)"]),
        ("expected_dot", {"segment": None}, ValueError, ["grad", "(4, 3)", "(2, 3)"]),
        ("expected_dot", {"segment": torch.zeros(3, dtype=torch.int64)}, ValueError, ["segment", "(4,)", "(3,)"]),
        ("expected_dot", {"segment": torch.zeros(4, dtype=torch.int32)}, TypeError, ["segment", "int64", "int32"]),
        ("expected_dot", {"segment": torch.tensor([0, 1, 2, 0])}, ValueError, ["segment", "[0, 2)", "0 to 2"]),
        ("expected_dot_from_logits", {"segment": torch.tensor([0, 1, -1, 0])}, ValueError, ["segment", "-1 to 1"]),
        ("gibbs_sample", {"seed": 1.5}, TypeError, ["seed", "int", "float"]),
        ("gibbs_sample", {"seed": 2**64}, ValueError, ["seed", "64 bits"]),
        ("gibbs_sample", {"counter": torch.zeros(3, dtype=torch.int64)}, ValueError, ["counter", "(4,)", "(3,)"]),
        ("gibbs_sample_from_logits", {"counter": torch.zeros(4)}, TypeError, ["counter", "int64", "float32"]),
        ("likely_rows", {"weight": torch.zeros(6, 2)}, ValueError, ["weight", "(any, 3)", "(6, 2)"]),
        ("likely_rows", {"bias": torch.zeros(5)}, ValueError, ["bias", "(6,)", "(5,)"]),
        (
            "likely_rows",
            {"tables": [torch.zeros(6, 2), torch.zeros(5, 2)]},
            ValueError,
            ["tables[1]", "(6, any)", "(5, 2)"],
        ),
        ("likely_rows", {"tables": [torch.zeros(6, 2).double()]}, TypeError, ["tables[0]", "float32", "float64"]),
        ("likely_rows", {"among": 0}, ValueError, ["among", "1 to 64", "0"]),
        ("likely_rows", {"among": 65}, ValueError, ["among", "1 to 64", "65"]),
        ("likely_rows", {"among": 2.0}, TypeError, ["among", "int", "float"]),
        ("likely_rows", {"min_p": 1.5}, ValueError, ["min_p", "0 to 1", "1.5"]),
        ("likely_rows", {"min_p": float("nan")}, ValueError, ["min_p", "nan"]),
        ("likely_rows", {"counter": None}, ValueError, ["seed and counter", "no counter"]),
        ("likely_rows", {"seed": 2**64}, ValueError, ["seed", "64 bits"]),
        ("likely_rows", {"width": 7}, ValueError, ["width", "6", "7"]),
        ("likely_rows", {"weight": torch.zeros(2, 3, 48).half()}, ValueError, ["weight", "(1, 3, 48)", "(2, 3, 48)"]),
        ("likely_rows", {"weight": torch.zeros(1, 3, 48)}, TypeError, ["weight", "bfloat16 or float16", "float32"]),
        ("likely_rows", {"weight": torch.zeros(1, 3, 48).half(), "tables": []}, ValueError, ["width", "None"]),
        ("likely_rows_from_logits", {"logits": torch.zeros(4, 0)}, ValueError, ["at least one token"]),
        ("likely_rows_from_logits", {"counter": torch.zeros(4)}, TypeError, ["counter", "int64", "float32"]),
        ("taylor_estimate", {"form": "sum"}, ValueError, ["form", "position", "sum"]),
        ("taylor_estimate", {"anchor": torch.zeros(4, 2)}, ValueError, ["anchor", "(4, 3)", "(4, 2)"]),
        ("taylor_estimate", {"score": torch.zeros(1)}, ValueError, ["segment", "[0, 1)", "0 to 1"]),
        ("taylor_estimate", {"backend": "fast"}, ValueError, ["backend", "reference", "fast"]),
        ("expected_embedding", {"backend": "triton"}, RuntimeError, ["triton", "TRITON_INTERPRET"]),
    ],
)
def test_rejects_bad_input(op, changes, error, words):
    with pytest.raises(error) as caught:
        _run(op, **changes)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize("segment", [[0, 1, 2, 0], [0, -1, 1, 0]], ids=str)
@pytest.mark.parametrize("op", ["expected_dot", "expected_dot_from_logits", "taylor_estimate"])
def test_sequences_must_exist(op, segment, backend):
    """Checked by each backend for itself, in the pass over `segment` that it makes anyway."""
    inputs = make_inputs(op, rows=4, vocabulary=6, width=3, sequences=2)
    inputs.arguments["segment"] = torch.tensor(segment)
    words = f"segment must lie in \\[0, 2\\), got values from {min(segment)} to {max(segment)}"
    with pytest.raises(ValueError, match=words):
        inputs.run(backend)


SAMPLED = [op for op in OPS if op != "taylor_estimate"]


@pytest.mark.parametrize("op", SAMPLED)
def test_row_without_tokens_raises(op, backend):
    inputs = make_inputs(op, rows=40, vocabulary=600, width=3)
    if "logits" in inputs.arguments:
        inputs.arguments["logits"][31] = -torch.inf
        words = "row 31 has no token"
    else:
        inputs.arguments["keep"] = torch.zeros(600, dtype=torch.bool)
        words = "row 0 has no token"
    with pytest.raises(ValueError, match=words):
        inputs.run(backend)


@pytest.mark.parametrize("op", SAMPLED)
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_row_without_a_softmax_raises(op, value, backend):
    inputs = make_inputs(op, rows=40, vocabulary=600, width=3, keep=False)
    name = "logits" if "logits" in inputs.arguments else "hidden"
    inputs.arguments[name][31, 2] = value
    with pytest.raises(ValueError, match="row 31 has"):
        inputs.run(backend)


def test_the_first_bad_row_is_named(backend):
    logits = torch.zeros(40, 600)
    logits[[12, 31]] = -torch.inf
    with pytest.raises(ValueError, match="row 12 has no token"):
        k.gibbs_sample_from_logits(logits, seed=0, counter=0, backend=backend)


def test_masked_nan_does_not_count(backend):
    logits = torch.zeros(2, 5)
    logits[:, 3] = torch.nan
    keep = torch.tensor([True, True, True, False, True])
    assert k.gibbs_sample_from_logits(logits, keep=keep, seed=0, counter=0, backend=backend).tokens.max() < 5


def test_nan_in_the_table_is_named(backend):
    inputs = make_inputs("expected_dot", rows=3, vocabulary=9, width=3, keep=False)
    inputs.arguments["table"][7, 1] = torch.nan
    with pytest.raises(ValueError, match=r"table must be finite, got nan at \(7, 1\)"):
        inputs.run(backend)


def test_unchecked_rows_are_nan(backend):
    logits = torch.zeros(30, 600)
    logits[4] = -torch.inf
    table = torch.ones(600, 2)
    out = k.expected_embedding_from_logits(logits, table, backend=backend, check=False)
    assert out[4].isnan().all() and out[[3, 5]].isfinite().all()
    likely = k.likely_rows_from_logits(logits, [table], seed=0, counter=0, backend=backend, check=False)
    assert all(part[4].isnan().all() for part in (*likely.rows, likely.log_p, likely.log_mass))
    assert (likely.tokens[4] == -1).all() and likely.drawn[4] == -1 and (likely.drawn[[3, 5]] >= 0).all()
    draw = k.gibbs_sample_from_logits(logits, seed=0, counter=0, backend=backend, check=False)
    assert draw.tokens[4] == -1 and draw.logprob[4].isnan() and (draw.tokens[[3, 5]] >= 0).all()
