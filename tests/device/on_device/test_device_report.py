"""No part can end the report, and the page begins with what failed."""

from __future__ import annotations

import time

from bench import report
from bench.gpu import ops
from bench.gpu.part import Deadline, Found, run


def test_a_part_that_breaks_off_is_a_failure(monkeypatch, tmp_path):
    def broken(deadline):
        raise RuntimeError("no kernel image is available")

    monkeypatch.setattr(report, "PARTS", {"broken": (broken, 1, False), "fine": (lambda deadline: Found(), 1, False)})
    assert report.main(["--out", str(tmp_path / "found")]) == 1
    page = (tmp_path / "found.md").read_text()
    assert page.startswith("# FAILED: broken\n") and "no kernel image is available" in page and "## fine" in page


def test_wrong_results_are_found(monkeypatch):
    monkeypatch.setattr(ops, "assert_accurate", lambda found, inputs: (_ for _ in ()).throw(AssertionError("far off")))
    monkeypatch.setattr(ops, "OPS", ["taylor_estimate"])
    found = run(ops.correctness, 60)
    assert len(found.failures) == 3 and "taylor_estimate" in found.failures[0] and "far off" in found.failures[0]


def test_draws_that_differ_are_found(monkeypatch):
    own = ops.gibbs_sample_from_logits
    monkeypatch.setattr(
        ops, "gibbs_sample_from_logits", lambda x, counter, **given: own(x, counter=counter + x.is_cuda, **given)
    )
    assert any("draws are not the CPU's" in failure for failure in run(ops.draws, 60).failures)


def test_what_there_was_no_time_for_is_said():
    found = Found()
    assert list(Deadline(time.monotonic() - 1).within([1, 2], found)) == [] and "2 of 2" in found.notes[0]
