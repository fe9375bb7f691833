"""The models beside a server's LM, loaded once in its worker: verifiers, draft, masked LM; of the LM only its tokenizer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from scone.lm import CausalLM, MaskedLM
from scone.loading import load_classifier, load_masked_lm
from scone.lookahead import Parts
from scone.verifier import Expression, Verifier
from scone.vllm.asked import Asked
from scone.vllm.settings import Settings

__all__ = ["Models", "UnseenLM"]


class UnseenLM(CausalLM):
    """An LM that runs elsewhere: its tokenizer is here, and its logits come when they are due."""

    def __init__(self, tokenizer: Any, *, stop_ids: Sequence[int], vocabulary: int, device: Any) -> None:
        self.tokenizer, self.name = tokenizer, "the server's LM"
        self.stop_ids = frozenset(stop_ids)
        self._vocabulary, self._device = vocabulary, torch.device(device)

    @property
    def device(self) -> torch.device:
        """Where the models beside it go."""
        return self._device

    @property
    def vocabulary(self) -> int:
        """Columns of its logits."""
        return self._vocabulary

    @property
    def max_length(self) -> int | None:
        """Nothing that is read here."""
        return None


class Models:
    """What a `Controller` works with. Classifiers are loaded once each, however many labels are used."""

    def __init__(self, settings: Settings, lm: UnseenLM) -> None:
        self.settings, self.lm = settings, lm
        placed: dict[str, Any] = {"device": settings.device or lm.device}
        typed = {**placed, **({"dtype": settings.dtype} if settings.dtype else {})}
        classifiers: dict[str, tuple[Any, Any]] = {}
        self._leaves: dict[str, Verifier] = {}
        for name, attribute in settings.attributes.items():
            if attribute.verifier not in classifiers:
                classifiers[attribute.verifier] = load_classifier(attribute.verifier, **placed)
            self._leaves[name] = Verifier(*classifiers[attribute.verifier], target=attribute.target)
        everything: Expression | None = None
        for leaf in self._leaves.values():
            everything = leaf if everything is None else everything & leaf
        assert everything is not None
        load = (lambda: MaskedLM(*load_masked_lm(settings.masked_lm, **typed))) if settings.masked_lm else None
        self.parts = Parts(lm, load, everything)

    def verifier(self, asked: Asked) -> Expression:
        """What a request is judged by; its strength is in each term."""
        wanted = [self._leaves[name] for name in asked.attribute] + [~self._leaves[name] for name in asked.avoid]
        terms = [term.at_least(asked.threshold) if asked.threshold < 1 else term for term in wanted]
        first, *others = [term.with_strength(asked.strength) for term in terms]
        for other in others:
            first = first & other
        return first
