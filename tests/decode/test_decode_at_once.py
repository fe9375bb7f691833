"""Many calls at once, and processes that were forked."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from scone import forking
from scone.decode import Scone
from scone.errors import ForkError

AT_ONCE = 32


def test_calls_at_once_give_what_each_gives_alone(engine: Scone) -> None:
    def write(seed: int) -> list[list[int]]:
        return engine.generate(["the movie was", "a"], max_new_tokens=3, seed=seed).token_ids

    with ThreadPoolExecutor(AT_ONCE) as pool:
        together = list(pool.map(write, range(AT_ONCE)))
    assert len({str(ids) for ids in together}) > 1
    for seed in range(0, AT_ONCE, 8):
        assert together[seed] == write(seed)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize(("before", "after", "lost"), [(2, 2, True), (2, 1, False), (1, 2, False)])
def test_a_fork_that_would_hang_is_told(
    engine: Scone, monkeypatch: pytest.MonkeyPatch, before: int, after: int, lost: bool
) -> None:
    monkeypatch.setattr(forking, "_threads_began", False)
    monkeypatch.setattr(torch, "get_num_threads", lambda: before)
    engine.loop()
    child = os.fork()
    if not child:  # nothing may leave this branch
        code = 3
        try:
            monkeypatch.setattr(torch, "get_num_threads", lambda: after)
            engine.loop()
            code = 0
        except ForkError as error:
            code = 1 if "spawn" in str(error) else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == int(lost)
    engine.loop()  # the parent is as it was
