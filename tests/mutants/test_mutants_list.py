"""The committed list of mutants fits the sources; `make mutants` tries them."""

from __future__ import annotations

import sys
from collections import Counter

import pytest

if sys.version_info < (3, 11):
    pytest.skip("the list is read with tomllib, of Python 3.11", allow_module_level=True)

from catalogue import Mutant, load_all

AT_LEAST = 80
"""Entries in all."""

MUTANTS = load_all()


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: f"{mutant.area}: {mutant.name}")
def test_the_entry_fits_the_sources(mutant):
    assert mutant.fault() is None


def test_names_are_unique():
    twice = [name for name, count in Counter(mutant.name for mutant in MUTANTS).items() if count > 1]
    assert not twice


def test_there_are_enough():
    assert len(MUTANTS) >= AT_LEAST


def test_a_bad_entry_is_noticed(tmp_path):
    (tmp_path / "test_it.py").write_text("def test_one():\n    pass\n")
    (tmp_path / "it.py").write_text("x = 1\ny = 1\n")
    good = {
        "area": "a",
        "name": "b",
        "file": "it.py",
        "old": "x = 1",
        "new": "x = 2",
        "tests": ("test_it.py::test_one",),
    }
    assert Mutant(**good).fault(tmp_path) is None
    for change, words in [
        ({"file": "no.py"}, "no.py does not exist"),
        ({"old": "= 1"}, "found 2 times"),
        ({"old": "z"}, "found 0 times"),
        ({"new": "x = 1"}, "must differ"),
        ({"tests": ()}, "no tests"),
        ({"tests": ("test_no.py",)}, "test_no.py does not exist"),
        ({"tests": ("test_it.py::test_two",)}, "has no test_two"),
    ]:
        assert words in str(Mutant(**good | change).fault(tmp_path))
