"""The algebra of verifiers: φ(text) in [0, 1], and what `&`, `|`, `~`, `mean` and `with_strength` make of several.

    positive & (~toxic).with_strength(2)

A verifier is a leaf, which is evaluated, or an expression of leaves, which is computed from them.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor

from scone.blame import blamed
from scone.errors import ConfigError, InputError
from scone.lm import check_unicode, fetched

__all__ = ["Expression", "Leaf"]


class Expression:
    """What all verifiers can do: score texts, and be combined by `&`, `|`, `~` and `with_strength`.

    >>> import torch
    >>> from scone.embedded import load_classifier
    >>> from scone.verifier import Verifier
    >>> positive = Verifier(*load_classifier("sentiment"), target="positive")
    >>> texts = ["What a wonderful film.", "What a terrible film."]
    >>> bool(torch.allclose((~positive).score(texts), 1 - positive.score(texts)))
    True
    >>> ~~positive is positive
    True
    >>> [term.strength for term in (positive & (~positive).with_strength(2)).terms]
    [1.0, 2.0]
    """

    strength: float = 1.0

    def score(self, texts: str | Sequence[str]) -> Tensor:
        """φ of finished texts: (n,) float32; strengths play no part in it."""
        texts = [texts] if isinstance(texts, str) else list(texts)
        wrong = [type(text).__name__ for text in texts if not isinstance(text, str)]
        if wrong:
            raise InputError(f"texts must be strings, got {wrong[0]}")
        check_unicode("texts", *texts)
        values = fetched(*(leaf.judged(texts) for leaf in self.leaves))
        return self.combine({leaf.key: value for leaf, value in zip(self.leaves, values)})

    def with_strength(self, strength: float) -> Any:
        """The same verifier, raised to that power when the distribution is reweighed."""
        changed = copy.copy(self)
        changed.strength = _checked_strength(strength)
        return changed

    def reading(self, view: Callable[[str], str]) -> Expression:
        """The same verifier shown view(text) in the place of a text, such as one field of a JSON.

        >>> from scone.verifier import Verifier
        >>> ends_well = Verifier.from_callable(lambda texts: [float("happy" in text) for text in texts])
        >>> ends_well.reading(lambda text: text[-20:]).score("Sad at first. At last they were happy.")
        tensor([1.])
        """
        from scone.verifier.reading import reading

        return self.of_leaves(lambda leaf: reading(leaf, view))

    def about(self, prompt: Any) -> Expression:
        """The same verifier for texts that answer a prompt: what reads conversations is told the prompt.

        >>> from scone.verifier import Verifier
        >>> repeats = Verifier.of_conversation(lambda prompt, replies: [float(prompt in reply) for reply in replies])
        >>> repeats.about("sea").score(["By the sea", "At home"])
        tensor([1., 0.])
        """
        return self.of_leaves(lambda leaf: leaf.told(prompt)) if self.reads_conversations else self

    def at_least(self, threshold: float) -> Expression:
        """The same verifier, satisfied from a threshold on: φ / threshold, and 1 above it, so that steering stops there.

        >>> from scone.verifier import Verifier
        >>> half = Verifier.from_callable(lambda texts: [0.5 for _ in texts])
        >>> half.at_least(0.8).score("any"), half.at_least(0.4).score("any")
        (tensor([0.6250]), tensor([1.]))
        """
        return _AtLeast(self, threshold)

    def __and__(self, other: Expression) -> Expression:
        if not isinstance(other, Expression):
            return NotImplemented
        return _And((*self.terms, *other.terms))

    def __or__(self, other: Expression) -> Expression:
        if not isinstance(other, Expression):
            return NotImplemented
        strength = _shared_strength((self, other))
        return (~(~self.with_strength(1) & ~other.with_strength(1))).with_strength(strength)

    def __invert__(self) -> Expression:
        return _Not(self)

    @property
    def reads_conversations(self) -> bool:
        """Whether any of its verifiers has to be told the prompt: see `about`."""
        return any(leaf.reads_conversations for leaf in self.leaves)

    def of_leaves(self, change: Callable[[Leaf], Expression]) -> Expression:
        """The same expression of other verifiers."""
        raise NotImplementedError

    @property
    def terms(self) -> tuple[Expression, ...]:
        """The factors of the product; each is estimated by itself and has its own strength."""
        return (self,)

    @property
    def leaves(self) -> tuple[Leaf, ...]:
        """The verifiers that must be evaluated, each once."""
        raise NotImplementedError

    def combine(self, values: Mapping[object, Tensor]) -> Tensor:
        """The expression's value from the values of its leaves, which are named by `leaf.key`."""
        raise NotImplementedError


class _Not(Expression):
    def __init__(self, inner: Expression) -> None:
        self.inner = inner
        self.strength = inner.strength

    def __invert__(self) -> Expression:
        return self.inner if self.strength == self.inner.strength else self.inner.with_strength(self.strength)

    def of_leaves(self, change: Callable[[Leaf], Expression]) -> Expression:
        return _Not(self.inner.of_leaves(change)).with_strength(self.strength)

    @property
    def leaves(self) -> tuple[Leaf, ...]:
        return self.inner.leaves

    def combine(self, values: Mapping[object, Tensor]) -> Tensor:
        return 1 - self.inner.combine(values)


class _AtLeast(Expression):
    def __init__(self, inner: Expression, threshold: float) -> None:
        if not isinstance(threshold, int | float) or isinstance(threshold, bool) or not 0 < threshold <= 1:
            raise ConfigError(f"threshold must be a number in (0, 1], got {threshold!r}")
        self.inner, self.threshold = inner, float(threshold)
        self.strength = inner.strength

    def of_leaves(self, change: Callable[[Leaf], Expression]) -> Expression:
        return _AtLeast(self.inner.of_leaves(change), self.threshold).with_strength(self.strength)

    @property
    def leaves(self) -> tuple[Leaf, ...]:
        return self.inner.leaves

    def combine(self, values: Mapping[object, Tensor]) -> Tensor:
        return (self.inner.combine(values) / self.threshold).clamp(max=1)


class _Several(Expression):
    def __init__(self, parts: tuple[Expression, ...]) -> None:
        self.parts = parts

    def of_leaves(self, change: Callable[[Leaf], Expression]) -> Expression:
        changed = copy.copy(self)
        changed.parts = tuple(part.of_leaves(change) for part in self.parts)
        return changed

    @property
    def leaves(self) -> tuple[Leaf, ...]:
        return tuple({leaf.key: leaf for part in self.parts for leaf in part.leaves}.values())


class _And(_Several):
    @property
    def terms(self) -> tuple[Expression, ...]:
        return tuple(part.with_strength(part.strength * self.strength) for part in self.parts)

    def combine(self, values: Mapping[object, Tensor]) -> Tensor:
        product = self.parts[0].combine(values)
        for part in self.parts[1:]:
            product = product * part.combine(values)
        return product


class _Mean(_Several):
    def __init__(self, parts: tuple[Expression, ...], weights: Sequence[float]) -> None:
        super().__init__(parts)
        self.shares = [weight / sum(weights) for weight in weights]
        self.strength = _shared_strength(parts)

    def combine(self, values: Mapping[object, Tensor]) -> Tensor:
        total = self.shares[0] * self.parts[0].combine(values)
        for share, part in zip(self.shares[1:], self.parts[1:]):
            total = total + share * part.combine(values)
        return total


def mean(*verifiers: Expression, weights: Sequence[float] | None = None) -> Expression:
    """The weighted mean of verifiers; without weights all count the same.

    >>> from scone.verifier import Verifier
    >>> one, none = (Verifier.from_callable(lambda texts, value=value: [value] * len(texts)) for value in (1.0, 0.0))
    >>> mean(one, none, weights=(3, 1)).score("any")
    tensor([0.7500])
    """
    if not verifiers or not all(isinstance(one, Expression) for one in verifiers):
        raise InputError(f"verifiers of a mean must be one Verifier or more, got {verifiers!r}")
    given = (1.0,) * len(verifiers) if weights is None else weights
    if not isinstance(given, Sequence) or len(given) != len(verifiers) or not all(map(_is_weight, given)):
        raise ConfigError(
            f"weights must be a number above 0 for each of the {len(verifiers)} verifiers of a mean, got {weights!r}"
        )
    return _Mean(verifiers, given)


class Leaf(Expression):
    """A verifier that is evaluated rather than computed from others.

    >>> import torch
    >>> class Loud(Leaf):
    ...     name = "Loud"
    ...     def evaluate(self, texts):
    ...         return torch.tensor([float(text.isupper()) for text in texts])
    >>> (~Loud()).score(["HEY", "hey"])
    tensor([0., 1.])
    """

    name: str
    reads_embeddings = False  # whether it can judge texts of which the end is known by its mean embeddings
    reads_conversations = False  # whether it has to be told the prompt

    def __init__(self, strength: float = 1.0) -> None:
        self.strength = _checked_strength(strength)
        self.key = object()  # shared by the copies that `with_strength` makes

    def of_leaves(self, change: Callable[[Leaf], Expression]) -> Expression:
        return change(self)

    def told(self, prompt: Any) -> Leaf:
        """The verifier of texts that answer a prompt."""
        return self

    @property
    def leaves(self) -> tuple[Leaf, ...]:
        return (self,)

    def combine(self, values: Mapping[object, Tensor]) -> Tensor:
        return values[self.key]

    def judged(self, texts: Sequence[str]) -> Tensor:
        """`measure`, blamed on this verifier."""
        with blamed(f"the verifier {self.name}"):
            return self.measure(texts)

    def evaluate(self, texts: Sequence[str]) -> Tensor:
        """φ of texts: (n,) float32 on the CPU."""
        raise NotImplementedError

    def measure(self, texts: Sequence[str]) -> Tensor:
        """The same, on whichever device it is found, without waiting for it."""
        return self.evaluate(texts)


def _is_weight(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < float("inf")


def _shared_strength(parts: Sequence[Expression]) -> float:
    """Of what is one term, and has one strength."""
    strengths = {part.strength for part in parts}
    if len(strengths) > 1:
        found = ", ".join(f"{part.strength:g}" for part in parts)
        raise ConfigError(
            f"strength must be one for all of | and of a mean, as in (a | b).with_strength(2), got {found}"
        )
    return strengths.pop()


def _checked_strength(strength: float) -> float:
    if not isinstance(strength, int | float) or isinstance(strength, bool) or not 0 <= strength < float("inf"):
        raise ConfigError(f"strength must be a number of at least 0, got {strength!r}")
    return float(strength)
