"""Verifiers from what people have: a function of texts, a pipeline of scikit-learn or transformers, a CrossEncoder."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from scone.errors import InputError, LabelError, ModelError
from scone.verifier.algebra import Expression, Leaf
from scone.verifier.kinds import Verifier

__all__ = ["as_verifier"]


def as_verifier(thing: Any, target: str | int | None = None) -> Expression:
    """What `verifier=` accepts: a verifier, (model, tokenizer), or an object that judges texts.

    target: the label that is wanted; may be left out where there is only one that makes sense (a single output, or the
        second class of two in scikit-learn)

    >>> as_verifier(lambda texts: [len(text) / 10 for text in texts]).score("hello")
    tensor([0.5000])
    """
    if isinstance(thing, Expression):
        if target is not None:
            raise InputError(f"target must be None where verifier is a ready object, got {target!r}")
        return thing
    if isinstance(thing, tuple) and len(thing) == 2:
        return _classifier(*thing, target)
    if hasattr(thing, "predict_proba"):
        return _Probabilities(thing, target)
    model, tokenizer = getattr(thing, "model", None), getattr(thing, "tokenizer", None)
    if isinstance(model, torch.nn.Module) and tokenizer is not None:  # a CrossEncoder, a pipeline of transformers
        return _classifier(model, tokenizer, target)
    name = type(thing).__name__
    if isinstance(thing, torch.nn.Module):
        raise ModelError(f"verifier must come with its tokenizer, as (model, tokenizer), got {name} alone")
    if hasattr(thing, "decision_function") or hasattr(thing, "predict"):
        raise ModelError(
            f"verifier must have predict_proba, got {name} without: scikit-learn's CalibratedClassifierCV adds it"
        )
    if not callable(thing) or isinstance(thing, type):
        raise ModelError(
            "verifier must be a Verifier, (model, tokenizer), a function of texts, a classifier with predict_proba, "
            f"a pipeline or a CrossEncoder, got {thing if isinstance(thing, type) else name}"
        )
    if target is not None:
        raise InputError(f"target must be None where verifier is a function, got {target!r}")
    return Verifier.from_callable(thing)


def _classifier(model: Any, tokenizer: Any, target: str | int | None) -> Verifier:
    labels = getattr(getattr(model, "config", None), "id2label", None) or {}
    if target is None and len(labels) == 1:
        target = 0
    if target is None:
        known = ", ".join(repr(labels[i]) for i in sorted(labels))
        raise InputError(f"target must be a label of the verifier, one of {known or 'its outputs'}, got None")
    return Verifier(model, tokenizer, target=target)


class _Probabilities(Leaf):
    """A classifier in the manner of scikit-learn: `predict_proba(texts)` -> (n, classes)."""

    def __init__(self, model: Any, target: str | int | None) -> None:
        super().__init__()
        self.model, self.name = model, type(model).__name__
        classes = [entry.item() if hasattr(entry, "item") else entry for entry in getattr(model, "classes_", ())]
        if not classes:
            raise ModelError(f"verifier must have been fitted, got {self.name} without classes_")
        if target is None and len(classes) == 2:
            target = classes[1]
        if target not in classes:
            raise LabelError(f"target must be one of {', '.join(map(repr, classes))}, got {target!r}")
        self.target = classes.index(target)

    def evaluate(self, texts: Sequence[str]) -> Tensor:
        if not texts:
            return torch.zeros(0)
        return torch.as_tensor(self.model.predict_proba(list(texts))[:, self.target], dtype=torch.float32)
