"""Verifiers: φ(text) in [0, 1], their algebra, and their first-order expansion in the embeddings of the text.

    positive = Verifier(model, tokenizer, target="positive")
    polite & ~toxic.with_strength(2)

A verifier is a leaf (a classifier, a module on embeddings, or a callable) or an expression of leaves.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from scone.conditionals import position_limit, special_frame
from scone.errors import ConfigError, InputError, LabelError, ModelError
from scone.lm import check_finite
from scone_kernels.inference import accelerate

__all__ = ["Expression", "Leaf", "Linearised", "Verifier"]

_BATCH = 64  # texts in one forward of `score`


@dataclass(frozen=True)
class Linearised:
    """φ (or its log-odds) at R texts and its gradient there: value + grad · (embedding - embeds) to first order.

    >>> positive = Verifier.from_pretrained("embedded:sentiment", target="positive")
    >>> ids, mask = positive.frame([positive.tokenizer("so good", add_special_tokens=False)["input_ids"]])
    >>> positive.linearise(ids, mask).grad.shape  # [CLS] so good [SEP]
    torch.Size([1, 4, 384])
    """

    value: Tensor  # (R,)
    grad: Tensor  # (R, T, D)
    embeds: Tensor  # (R, T, D)


class Expression:
    """What all verifiers can do: score texts, and be combined by `&`, `~` and `with_strength`.

    >>> from scone.embedded import load_classifier
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
        return self.combine({leaf.key: leaf.evaluate(texts) for leaf in self.leaves})

    def with_strength(self, strength: float) -> Any:
        """The same verifier, raised to that power when the distribution is reweighed."""
        changed = copy.copy(self)
        changed.strength = _checked_strength(strength)
        return changed

    def __and__(self, other: Expression) -> Expression:
        if not isinstance(other, Expression):
            return NotImplemented
        return _And((*self.terms, *other.terms))

    def __invert__(self) -> Expression:
        return _Not(self)

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

    @property
    def leaves(self) -> tuple[Leaf, ...]:
        return self.inner.leaves

    def combine(self, values: Mapping[object, Tensor]) -> Tensor:
        return 1 - self.inner.combine(values)


class _And(Expression):
    def __init__(self, parts: tuple[Expression, ...]) -> None:
        self.parts = parts

    @property
    def terms(self) -> tuple[Expression, ...]:
        return tuple(part.with_strength(part.strength * self.strength) for part in self.parts)

    @property
    def leaves(self) -> tuple[Leaf, ...]:
        return tuple({leaf.key: leaf for part in self.parts for leaf in part.leaves}.values())

    def combine(self, values: Mapping[object, Tensor]) -> Tensor:
        product = self.parts[0].combine(values)
        for part in self.parts[1:]:
            product = product * part.combine(values)
        return product


class Leaf(Expression):
    """A verifier that is evaluated rather than computed from others.

    >>> class Loud(Leaf):
    ...     name = "Loud"
    ...     def evaluate(self, texts):
    ...         return torch.tensor([float(text.isupper()) for text in texts])
    >>> (~Loud()).score(["HEY", "hey"])
    tensor([0., 1.])
    """

    name: str
    first_order = False  # whether `linearise` can be called

    def __init__(self, strength: float = 1.0) -> None:
        self.strength = _checked_strength(strength)
        self.key = object()  # shared by the copies that `with_strength` makes

    @property
    def leaves(self) -> tuple[Leaf, ...]:
        return (self,)

    def combine(self, values: Mapping[object, Tensor]) -> Tensor:
        return values[self.key]

    def evaluate(self, texts: Sequence[str]) -> Tensor:
        """φ of texts: (n,) float32 on the CPU."""
        raise NotImplementedError


class _CallableVerifier(Leaf):
    def __init__(self, function: Callable[[list[str]], Any], strength: float = 1.0) -> None:
        super().__init__(strength)
        self.function = function
        self.name = getattr(function, "__name__", type(function).__name__)

    def evaluate(self, texts: Sequence[str]) -> Tensor:
        scores = torch.as_tensor(self.function(list(texts)), dtype=torch.float32).cpu()
        if scores.shape != (len(texts),):
            raise InputError(
                f"verifier {self.name} must return one score for each text, expected shape ({len(texts)},), got {tuple(scores.shape)}"
            )
        check_finite(scores, f"the verifier {self.name}")
        return scores


class EmbeddingVerifier(Leaf):
    """A verifier that is differentiable in the embeddings of its tokens; `Verifier.from_module` makes one."""

    first_order = True
    pads_left = False

    def __init__(
        self,
        tokenizer: Any,
        table: Tensor,
        function: Callable[[Tensor, Tensor], Tensor],
        output: str,
        strength: float = 1.0,
    ) -> None:
        super().__init__(strength)
        if output not in ("prob", "logit"):
            raise ConfigError(f"output must be 'prob' or 'logit', got {output!r}")
        self.tokenizer = tokenizer
        self.table = table.detach()  # (V, D)
        self.name = type(function).__name__
        self.opening, self.closing = special_frame(tokenizer)
        self.pad_id: int = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else 0
        self.max_length = position_limit(None, tokenizer)
        self._function = function
        self._output = output

    @property
    def device(self) -> torch.device:
        """The device of the embeddings."""
        return self.table.device

    def value(self, embeds: Tensor, mask: Tensor, kind: str) -> Tensor:
        """φ (kind "prob") or its log-odds (kind "logit") of embedded texts: (R,); embeds: (R, T, D), mask: (R, T)."""
        raw = self._function(embeds, mask).float()
        check_finite(raw, f"the verifier {self.name}")
        if self._output == kind:
            return raw
        return raw.sigmoid() if kind == "prob" else raw.clamp(1e-6, 1 - 1e-6).logit()

    def linearise(self, ids: Tensor, mask: Tensor, *, kind: str = "prob") -> Linearised:
        """φ or its log-odds at the texts and the gradient in their embeddings; no parameter gets a gradient."""
        with torch.enable_grad():
            embeds = self.table[ids].requires_grad_()
            value = self.value(embeds, mask, kind)
            (grad,) = torch.autograd.grad(value.sum(), embeds)
        return Linearised(value.detach(), grad, embeds.detach())

    @torch.no_grad()
    def value_of_ids(self, ids: Tensor, mask: Tensor, *, kind: str = "prob") -> Tensor:
        """φ or its log-odds of tokenised texts, without a gradient: (R,)."""
        return self.value(self.table[ids], mask, kind)

    @torch.no_grad()
    def value_of_expected(self, texts: Sequence[str], means: Tensor, *, window: int | None = None) -> Tensor:
        """φ of texts that go on with tokens of which only the mean embedding is known: (R,); means: (R, n, D).

        Of each text the last `window` tokens are read, or all that fit.
        To first order this is φ's expectation over those tokens: expanded about the mean, the linear term is zero.
        """
        encoded = self.tokenizer(list(texts), add_special_tokens=False)["input_ids"]
        begins = [0 if window is None else max(0, len(row) - window) for row in encoded]
        unknown = [self.pad_id] * means.shape[1]
        ids, mask = self.frame([[*row[begin:], *unknown] for row, begin in zip(encoded, begins)])
        end = mask.shape[1] if self.pads_left else mask.sum(1)  # where each row's padding begins
        first = end - len(self.closing) - means.shape[1]
        place = (
            torch.arange(mask.shape[1], device=self.device)[None]
            - torch.as_tensor(first, device=self.device)[..., None]
        )
        place = place.expand(len(ids), -1)
        row, column = ((place >= 0) & (place < means.shape[1])).nonzero(as_tuple=True)
        embeds = self.table[ids].index_put((row, column), means.to(self.table)[row, place[row, column]])
        return self.value(embeds, mask, "prob")

    def evaluate(self, texts: Sequence[str]) -> Tensor:
        scores = [torch.zeros(0)]
        for start in range(0, len(texts), _BATCH):
            encoded = self.tokenizer(list(texts[start : start + _BATCH]), add_special_tokens=False)["input_ids"]
            scores.append(self.value_of_ids(*self.frame(encoded)).cpu())
        return torch.cat(scores)

    def frame(self, encoded: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
        """Tokens as the verifier takes them: ids and mask (R, T), the last ones where there are too many."""
        room = self.max_length - len(self.opening) - len(self.closing)
        rows = [[*self.opening, *list(ids)[max(0, len(ids) - room) :], *self.closing] for ids in encoded]
        width = max(map(len, rows))
        fill = [width - len(row) for row in rows]
        if self.pads_left:
            ids = [[self.pad_id] * n + row for row, n in zip(rows, fill)]
            mask = [[False] * n + [True] * len(row) for row, n in zip(rows, fill)]
        else:
            ids = [row + [self.pad_id] * n for row, n in zip(rows, fill)]
            mask = [[True] * len(row) + [False] * n for row, n in zip(rows, fill)]
        return torch.tensor(ids, device=self.device), torch.tensor(mask, device=self.device)


class Verifier(EmbeddingVerifier):
    """A sequence classifier of transformers: φ is the probability of one of its labels.

    Softmax over labels, sigmoid where the model is multi-label or has a single logit. `target` is the label's name or
    index. Parameters are frozen: only gradients in the inputs are ever taken.

    >>> from scone.embedded import load_classifier
    >>> verifier = Verifier(*load_classifier("sentiment"), target="positive")
    >>> good, bad = verifier.score(["A joy from start to end.", "A dull, lifeless mess."])
    >>> bool(good > bad)
    True
    >>> Verifier(*load_classifier("sentiment"), target="angry")
    Traceback (most recent call last):
    scone.errors.LabelError: target must be one of 'negative' (0), 'positive' (1), got 'angry'
    """

    def __init__(self, model: Any, tokenizer: Any, *, target: str | int, strength: float = 1.0) -> None:
        layer = model.get_input_embeddings() if hasattr(model, "get_input_embeddings") else None
        if layer is None:
            raise ModelError(f"verifier must have input embeddings, got {type(model).__name__} without")
        self.model = model.eval().requires_grad_(False)
        self.target = _label_index(model.config, target)
        super().__init__(tokenizer, _embedding_table(layer), self._log_odds, "logit", strength)
        self.name = type(model).__name__
        self.max_length = position_limit(model, tokenizer)
        self.pads_left = hasattr(model, "score")  # decoders pool at the last position
        if self.pads_left and model.config.pad_token_id is None:
            raise ModelError(f"verifier {self.name} must have config.pad_token_id to judge batches, got None")
        self._accepts_positions = "position_ids" in inspect.signature(model.forward).parameters
        self._fast = accelerate(model)

    @classmethod
    def from_pretrained(
        cls,
        name: str,
        *,
        target: str | int,
        strength: float = 1.0,
        device: str | torch.device | None = None,
        dtype: torch.dtype | str | None = None,
        trust_remote_code: bool = False,
    ) -> Verifier:
        """Load a classifier from the Hub, from a folder, or one that comes with scone ("embedded:sentiment").

        >>> Verifier.from_pretrained("embedded:sentiment", target="positive").model.config.num_labels
        2
        """
        from scone.loading import load_classifier

        model, tokenizer = load_classifier(name, device=device, dtype=dtype, trust_remote_code=trust_remote_code)
        return cls(model, tokenizer, target=target, strength=strength)

    @staticmethod
    def from_module(
        module: Callable[[Tensor, Tensor], Tensor],
        tokenizer: Any,
        embeddings: Tensor | torch.nn.Embedding,
        *,
        output: str = "prob",
        strength: float = 1.0,
    ) -> EmbeddingVerifier:
        """A verifier from `module(embeds (R, T, D), mask (R, T)) -> (R,)`, probabilities or log-odds by `output`.

        >>> from scone.embedded import load_masked_lm
        >>> model, tokenizer = load_masked_lm()
        >>> table = model.get_input_embeddings()
        >>> flat = Verifier.from_module(lambda embeds, mask: embeds.mean((1, 2)) * 0 + 0.5, tokenizer, table)
        >>> flat.score(["any text"])
        tensor([0.5000])
        """
        if isinstance(module, torch.nn.Module):
            module.eval().requires_grad_(False)
        table = embeddings.weight if isinstance(embeddings, torch.nn.Embedding) else embeddings
        return EmbeddingVerifier(tokenizer, table, module, output, strength)

    @staticmethod
    def from_callable(function: Callable[[list[str]], Any], *, strength: float = 1.0) -> Leaf:
        """A verifier from `function(texts) -> scores`; without a gradient, so that the Taylor term is left out.

        >>> Verifier.from_callable(lambda texts: [len(t) / 10 for t in texts]).score(["hello"])
        tensor([0.5000])
        """
        return _CallableVerifier(function, strength)

    @property
    def labels(self) -> list[str]:
        """Names of the model's labels."""
        return _labels(self.model.config)

    def _log_odds(self, embeds: Tensor, mask: Tensor) -> Tensor:
        extra = {}
        if self.pads_left and self._accepts_positions:
            extra["position_ids"] = (mask.long().cumsum(1) - 1).clamp(min=0)
        out = self._fast(inputs_embeds=embeds, attention_mask=mask.long(), **extra)
        logits = out.logits.float()  # (R, labels)
        chosen = logits[:, self.target]
        if logits.shape[1] == 1 or self.model.config.problem_type == "multi_label_classification":
            return chosen
        others = torch.arange(logits.shape[1], device=logits.device) != self.target
        return chosen - logits[:, others].logsumexp(-1)


def _labels(config: Any) -> list[str]:
    return [config.id2label[i] for i in sorted(config.id2label)]


def _label_index(config: Any, target: str | int) -> int:
    names = _labels(config)
    if isinstance(target, int) and not isinstance(target, bool) and 0 <= target < len(names):
        return target
    matches = [i for i, name in enumerate(names) if isinstance(target, str) and name.lower() == target.lower()]
    if len(matches) != 1:
        known = ", ".join(f"{name!r} ({i})" for i, name in enumerate(names))
        raise LabelError(f"target must be one of {known}, got {target!r}")
    return matches[0]


def _embedding_table(layer: Any) -> Tensor:
    """(V, D): what the layer gives for each token, which for some models is not its weight."""
    weight = layer.weight
    if type(layer) is torch.nn.Embedding:
        return weight.detach()
    with torch.no_grad():
        return layer(torch.arange(weight.shape[0], device=weight.device))


def _checked_strength(strength: float) -> float:
    if not isinstance(strength, int | float) or isinstance(strength, bool) or not 0 <= strength < float("inf"):
        raise ConfigError(f"strength must be a number of at least 0, got {strength!r}")
    return float(strength)
