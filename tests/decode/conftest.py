"""Engines on tiny models, shared by the tests of the decoder."""

from __future__ import annotations

import pytest
import tiny
import torch

from scone.decode import Scone, SconeConfig, Verifier


@pytest.fixture(scope="session", autouse=True)
def _one_thread():
    """On models this small, threads cost more than they bring."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def positive() -> Verifier:
    return Verifier(*tiny.classifier(), target="positive")


@pytest.fixture(scope="session")
def engine(positive: Verifier) -> Scone:
    """A tiny engine with every stage at work: Taylor term on, no candidate left out."""
    config = SconeConfig(
        init="warm", expand="sample", min_mass=0, taylor_scale=1.0, lookahead=6, block=3, iterations=2, top_k=6
    )
    return Scone(tiny.llama(), tiny.masked_lm("bert"), positive, config)


@pytest.fixture(autouse=True)
def _no_grad_left_behind():
    """Nothing in the decoder may switch gradients or threads for the caller."""
    threads = torch.get_num_threads()
    yield
    assert torch.is_grad_enabled()
    assert torch.get_num_threads() == threads
