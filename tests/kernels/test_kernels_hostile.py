"""Random calls of every kernel: lawful ones against the reference, hostile ones into errors that name an argument."""

from __future__ import annotations

import random

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as some

from tests.torture.calls import agree, answer, hostile, lawful

MANY = settings(max_examples=200, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
SEEDS = some.integers(0, 2**60)


@MANY
@given(seed=SEEDS)
def test_a_lawful_call_gives_what_the_reference_gives(seed: int) -> None:
    function, given_here = lawful(random.Random(seed))
    found = answer(function, given_here)
    assert not isinstance(found, Exception), found
    if function.__name__ != "to_panels":
        expected = answer(function, {**given_here, "backend": "reference"})
        assert not isinstance(expected, Exception), expected
        agree(found, expected)


@settings(MANY, max_examples=600)
@given(seed=SEEDS)
def test_a_hostile_call_works_or_names_an_argument(seed: int) -> None:
    function, given_here, _ = hostile(random.Random(seed))
    answer(function, given_here)
