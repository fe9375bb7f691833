"""All examples run in this process, and the embedded models are loaded once for all of them."""

from __future__ import annotations

from functools import cache

import pytest

from scone import embedded


@pytest.fixture(scope="session", autouse=True)
def _loaded_once():
    with pytest.MonkeyPatch.context() as patch:
        for name in ("load_lm", "load_masked_lm", "load_classifier"):
            patch.setattr(embedded, name, cache(getattr(embedded, name)), raising=False)
        yield
