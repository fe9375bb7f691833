"""The models of an experiment, loaded once in each process, and fingerprints that tell when they have changed."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import numpy as np
import torch

from scone.config import SconeConfig
from scone.lm import CausalLM
from scone.loading import EMBEDDED, load_causal_lm, load_classifier, load_masked_lm
from scone.verifier import Expression, Verifier

__all__ = ["Fingerprints", "ModelNames", "Models", "fingerprint"]

PROBES = [
    "What a wonderful film, I loved every minute of it.",
    "You are a stupid idiot and I hate you.",
    "The senate voted on the new law.",
    "The bank raised its interest rates, and shares fell.",
    "The cells repair their DNA; the factory welds steel pipes.",
    "Fry the onions in butter, as the Romans did two thousand years ago.",
]


@dataclass(frozen=True)
class ModelNames:
    """Hub ids or folders; "embedded" is the small model that comes with the package."""

    lm: str = EMBEDDED
    masked_lm: str = EMBEDDED
    verifier: str = EMBEDDED  # the one for the task's attribute
    perplexity: str | None = None  # None: the LM itself
    labels: tuple[tuple[str, str], ...] = ()  # targets and what the verifier calls them, where that differs
    device: str | None = None
    dtype: str | None = None

    @property
    def placement(self) -> dict[str, str | None]:
        """Where all of them are loaded, and as what."""
        return {"device": self.device, "dtype": self.dtype}


class Models:
    """The parts of the experiments on one attribute; each is loaded when it is first used."""

    def __init__(self, names: ModelNames, attribute: str) -> None:
        self.names, self.attribute = names, attribute
        self._verifiers: dict[tuple[str, bool], Expression] = {}
        self._engines: dict[tuple[str, bool], Any] = {}

    @cached_property
    def lm(self) -> CausalLM:
        """The LM that writes."""
        return _causal_lm(self.names.lm, **self.names.placement)

    @cached_property
    def perplexity_lm(self) -> CausalLM:
        """The LM that judges fluency."""
        name = self.names.perplexity
        return self.lm if name in (None, self.names.lm) else _causal_lm(str(name), **self.names.placement)

    @cached_property
    def masked_lm(self) -> tuple[Any, Any]:
        """The masked LM and its tokenizer."""
        return _masked_lm(self.names.masked_lm, **self.names.placement)

    @cached_property
    def classifier(self) -> tuple[Any, Any]:
        """The classifier behind the verifier, and its tokenizer."""
        name = self.names.verifier
        name = f"{EMBEDDED}:{self.attribute}" if name == EMBEDDED else name
        return load_classifier(name, **self.names.placement)

    @cached_property
    def judge(self) -> Any:
        """The independent judge of the attribute."""
        from scone.evaluate.judges import load_judge

        return load_judge(self.attribute)

    @cached_property
    def judge_name(self) -> str:
        """Tells one judge from another by its name and by what it says of a few sentences."""
        values = [np.round(self.judge.score(PROBES, label), 4).tolist() for label in self.judge.labels]
        return f"{self.judge.name} {hashlib.blake2b(repr(values).encode(), digest_size=4).hexdigest()}"

    def judge_score(self, target: str, avoid: bool = False) -> Callable[[list[str]], np.ndarray]:
        """The independent judge's probability of the target, or of its absence."""

        def score(texts: list[str]) -> np.ndarray:
            values = np.asarray(self.judge.score(texts, target), dtype=np.float64)
            return 1 - values if avoid else values

        return score

    def verifier(self, target: str, avoid: bool = False) -> Expression:
        """φ for a target; `avoid` turns it round."""
        key = (target, avoid)
        if key not in self._verifiers:
            leaf = Verifier(*self.classifier, target=self.label(target))
            self._verifiers[key] = ~leaf if avoid else leaf
        return self._verifiers[key]

    def label(self, target: str) -> str:
        """What the verifier calls a target."""
        return dict(self.names.labels).get(target, target)

    def score(self, target: str, avoid: bool = False) -> Callable[[list[str]], np.ndarray]:
        """φ of texts as a plain function: (n,) float64; equal texts are evaluated once."""
        verifier = self.verifier(target, avoid)

        def score(texts: list[str]) -> np.ndarray:
            place = {text: i for i, text in enumerate(dict.fromkeys(texts))}
            values = verifier.score(list(place)).double().cpu().numpy()
            return values[[place[text] for text in texts]]

        return score

    def engine(self, target: str, avoid: bool, config: SconeConfig) -> Any:
        """The decoder for a target and a configuration."""
        from scone.decode import Scone

        key = (target, avoid)
        if key not in self._engines:
            lm = (self.lm.model, self.lm.tokenizer)
            self._engines[key] = Scone(lm, lambda: self.masked_lm, self.verifier(target, avoid))
        return self._engines[key].with_config(config)

    @cached_property
    def fingerprints(self) -> Fingerprints:
        """One for each part; those that are not asked for are not loaded."""
        return Fingerprints(self)


class Fingerprints:
    """Fingerprints of the parts of `models`, each computed once."""

    def __init__(self, models: Models) -> None:
        self._models = models

    @cached_property
    def lm(self) -> str:
        """Of the LM."""
        return fingerprint(self._models.lm.model)

    @cached_property
    def masked_lm(self) -> str:
        """Of the masked LM."""
        return fingerprint(self._models.masked_lm[0])

    @cached_property
    def verifier(self) -> str:
        """Of the classifier."""
        return fingerprint(self._models.classifier[0])

    @cached_property
    def perplexity_lm(self) -> str:
        """Of the LM that measures perplexity."""
        return fingerprint(self._models.perplexity_lm.model)


def fingerprint(model: torch.nn.Module) -> str:
    """Twelve hex digits that change when the weights do: a hash of names, shapes, types and some values of all tensors.

    >>> one, other = torch.nn.Linear(3, 2), torch.nn.Linear(3, 2)
    >>> fingerprint(one) == fingerprint(one) != fingerprint(other)
    True
    """
    digest = hashlib.blake2b(digest_size=6)
    for name, tensor in sorted(model.state_dict().items()):
        flat = tensor.detach().cpu().reshape(-1)
        stride = max(1, flat.numel() // 4096)
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        digest.update(flat[::stride].double().numpy().tobytes())
    return digest.hexdigest()


@cache
def _causal_lm(name: str, **placement: str | None) -> CausalLM:
    """Tasks of one process share the LM."""
    return CausalLM(*load_causal_lm(name, **placement))


@cache
def _masked_lm(name: str, **placement: str | None) -> tuple[Any, Any]:
    return load_masked_lm(name, **placement)
