"""A controller on tiny models, and the plug-in on stand-ins for vLLM."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "decode"))

import standins
import tiny
from standins import SETTINGS

import scone.loading
import scone.vllm.models
from scone.vllm.core import Controller
from scone.vllm.models import Models, UnseenLM
from scone.vllm.settings import Settings

if not standins.REAL:
    standins.install()
    importlib.import_module("scone.vllm.plugin")
    standins.remove()  # nobody else is to think that vLLM is here


@pytest.fixture(scope="module", autouse=True)
def _tiny_models() -> Iterator[None]:
    """Models by the name "tiny", and one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scone.loading, "load_causal_lm", lambda name, **_: tiny.llama(seed=5))
        patch.setattr(scone.vllm.models, "load_masked_lm", lambda name, **_: tiny.masked_lm("bert"))
        patch.setattr(scone.vllm.models, "load_classifier", lambda name, **_: tiny.classifier())
        yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def make_controller() -> Any:
    def made(**changes: Any) -> Controller:
        model, tokenizer = tiny.llama()
        lm = UnseenLM(tokenizer, stop_ids=[tokenizer.eos_token_id], vocabulary=model.config.vocab_size, device="cpu")
        return Controller(Models(Settings(**{**vars(SETTINGS), **changes}), lm))

    return made


@pytest.fixture(scope="module")
def controller(make_controller: partial[Controller]) -> Controller:
    return make_controller()
