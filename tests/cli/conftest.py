import pytest
from fakes import FakeModels

import scone.cli.writing
from scone.cli import console


@pytest.fixture
def fake_models(monkeypatch):
    """Commands write with fakes; afterwards `fake_models.asked` says what was asked for."""
    monkeypatch.setattr(scone.cli.writing, "Models", FakeModels)
    return FakeModels


@pytest.fixture(autouse=True)
def plain_terminal(monkeypatch):
    """80 columns, no colours, whatever the machine that runs the tests says."""
    monkeypatch.setenv("COLUMNS", "80")
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    assert not console.out().is_terminal
