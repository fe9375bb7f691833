"""Random calls of the kernels, for as long as there is time."""

from __future__ import annotations

import random
import tempfile
from pathlib import Path

from tests.torture import sanitized
from tests.torture.calls import agree, answer, hostile, lawful
from tests.torture.tally import Tally, stage

AT_ONCE = 500  # calls of one trial
SANITIZED = 50_000  # calls of one process, which takes seconds to begin


@stage(minutes=10)
def kernels_fuzzed(tally: Tally) -> None:
    """Lawful calls against the reference, hostile ones into errors that name an argument."""
    while tally.going():
        seed = tally.random.getrandbits(60)
        with tally.trial("inputs tried", f"calls from seed {seed}"):
            chance = random.Random(seed)
            for i in range(AT_ONCE):
                if i % 5:
                    answer(*hostile(chance)[:2])
                else:
                    _against_the_reference(chance)
            tally.add("calls fuzzed", AT_ONCE)


@stage(minutes=16)
def kernels_under_sanitizers(tally: Tally) -> None:
    """The same calls of an extension that is built with the address and undefined-behaviour sanitizers."""
    with tempfile.TemporaryDirectory(prefix="sanitized-") as name:
        folder = Path(name)
        tally.doing("building")
        sanitized.build(folder)
        while True:  # once at least, however long the compiler took
            seed = tally.random.getrandbits(60)
            with tally.trial("inputs tried", f"sanitized calls from seed {seed}"):
                complaint = sanitized.run(folder, seed, SANITIZED)
                assert complaint is None, complaint
                tally.add("calls fuzzed", SANITIZED)
            if not tally.going():
                return


def _against_the_reference(chance: random.Random) -> None:
    function, given = lawful(chance)
    found = answer(function, given)
    assert not isinstance(found, Exception), found
    if function.__name__ != "to_panels":
        expected = answer(function, {**given, "backend": "reference"})
        assert not isinstance(expected, Exception), expected
        agree(found, expected)
