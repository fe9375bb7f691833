"""An engine whose models fail when they are told to."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import tiny
import torch

from scone.decode import Scone, SconeConfig, Verifier
from scone.lookahead import Lookahead

Fault = Callable[[Callable[[], Any], int], Any]
"""(what the model would return, rows of the call) -> what it returns instead."""

NAMES = {
    "lm": "the causal LM LlamaForCausalLM",
    "masked lm": "the masked LM BertForMaskedLM",
    "verifier": "the verifier BertForSequenceClassification",
}


class Switch:
    """In the place of a module's `forward`: counts calls, and from one of them on does something else."""

    def __init__(self, module: Any) -> None:
        self.calls, self.after, self.fault, self._forward = 0, 0, None, module.forward
        functools.update_wrapper(self, module.forward)  # with its signature
        module.forward = self

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.calls += 1
        forward = functools.partial(self._forward, *args, **kwargs)
        if self.fault is None or self.calls <= self.after:
            return forward()
        given = [*args, *(value for value in kwargs.values() if isinstance(value, torch.Tensor))]
        return self.fault(forward, len(given[0]))


class Faulty:
    """Tiny models of which each has a switch, and engines of them."""

    def __init__(self) -> None:
        self.models = {
            "lm": tiny.llama.__wrapped__(),
            "masked lm": tiny.masked_lm("bert"),
            "verifier": tiny.classifier(),
        }
        inner = {"lm": lambda m: m, "masked lm": lambda m: m.bert, "verifier": lambda m: m}
        self.switches = {name: Switch(inner[name](model)) for name, (model, _) in self.models.items()}

    def engine(self, lookahead: Lookahead, **options: Any) -> Scone:
        """An engine in which every candidate is judged, and a text is one particle."""
        config = SconeConfig(lookahead=lookahead, min_mass=0, top_k=5, particles=1).replace(**options)
        verifier = Verifier(*self.models["verifier"], target="positive")
        return Scone(self.models["lm"], self.models["masked lm"], verifier, config)

    def calls(self, name: str, work: Callable[[], object]) -> int:
        """How often a model is called by some work."""
        self.switches[name].calls = 0
        work()
        return self.switches[name].calls

    @contextmanager
    def failing(self, name: str, fault: Fault, *, after: int = 0) -> Iterator[None]:
        """A model fails from its call number `after` on."""
        switch = self.switches[name]
        switch.calls, switch.after, switch.fault = 0, after, fault
        try:
            yield
        finally:
            switch.fault = None


def raises(problem: Exception) -> Fault:
    """The model raises."""

    def fault(forward: Callable[[], Any], rows: int) -> Any:
        raise problem

    return fault


def spoils(value: float) -> Fault:
    """What the model returns is this all over."""

    def fault(forward: Callable[[], Any], rows: int) -> Any:
        out = forward()
        out[0].fill_(value)  # logits, or hidden states
        return out

    return fault


def has_room_for(most: int, tried: list[int]) -> Fault:
    """Memory runs out where a call has more rows."""

    def fault(forward: Callable[[], Any], rows: int) -> Any:
        tried.append(rows)
        if rows > most:
            raise torch.OutOfMemoryError(f"no room for {rows} rows")
        return forward()

    return fault
