"""Engines on tiny models, shared by the tests of the decoder."""

from __future__ import annotations

import pytest
import tiny
import torch

from scone.decode import Scone, SconeConfig, Verifier
from scone.lookahead import Carried, Gibbs, Taylor


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
    """A tiny engine with every stage at work: chains that are carried on, Taylor term, no candidate left out."""
    chains = Gibbs(tokens=6, start=Carried(), block=3, iterations=2, estimate=Taylor())
    config = SconeConfig(particles=1, min_mass=0, top_k=6, lookahead=chains)
    return Scone(tiny.llama(), tiny.masked_lm("bert"), positive, config)


@pytest.fixture(autouse=True)
def _no_grad_left_behind():
    """Nothing in the decoder may switch gradients or threads for the caller."""
    threads = torch.get_num_threads()
    yield
    assert torch.is_grad_enabled()
    assert torch.get_num_threads() == threads
