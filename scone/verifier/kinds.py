"""The kinds of verifiers: a classifier of transformers, a module on embeddings, a function of texts.

positive = Verifier(model, tokenizer, target="positive")
short = Verifier.from_callable(lambda texts: [len(text) < 80 for text in texts])
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from scone.blame import blamed
from scone.errors import ConfigError, InputError, LabelError, ModelError
from scone.lm import (
    Embeddings,
    attention_mask,
    check_finite,
    check_known,
    fetched,
    position_limit,
    sent,
    special_frame,
)  # fmt: skip
from scone.verifier.algebra import Expression, Leaf, mean
from scone_kernels.inference import accelerate

__all__ = ["EmbeddingVerifier", "Linearised", "Verifier"]

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


class _CallableVerifier(Leaf):
    def __init__(self, function: Callable[[list[str]], Any], strength: float = 1.0) -> None:
        super().__init__(strength)
        self.function = function
        self.name = getattr(function, "__name__", type(function).__name__)

    def evaluate(self, texts: Sequence[str]) -> Tensor:
        found = self.function(list(texts))
        try:
            scores = torch.as_tensor(found, dtype=torch.float32).detach().cpu()
        except (TypeError, ValueError, RuntimeError) as error:
            raise InputError(f"verifier {self.name} must return numbers, got {found!r}") from error
        if scores.shape != (len(texts),):
            raise InputError(
                f"verifier {self.name} must return one score for each text, expected shape ({len(texts)},), got {tuple(scores.shape)}"
            )
        check_finite(scores, f"the verifier {self.name}")
        return _probabilities(scores, self.name)


class _ConversationVerifier(Leaf):
    reads_conversations = True

    def __init__(self, function: Callable[[Any, list[str]], Any], strength: float = 1.0) -> None:
        super().__init__(strength)
        self.function = function
        self.name = getattr(function, "__name__", type(function).__name__)

    def told(self, prompt: Any) -> Leaf:
        leaf = _CallableVerifier(partial(self.function, prompt), self.strength)
        leaf.name, leaf.key = self.name, (self.key, str(prompt))
        return leaf

    def evaluate(self, texts: Sequence[str]) -> Tensor:
        raise InputError(
            f"verifier {self.name} reads conversations and must be told the prompt, as in verifier.about(prompt), got none"
        )


class EmbeddingVerifier(Leaf):
    """A verifier that is differentiable in the embeddings of its tokens; `Verifier.from_module` makes one.

    >>> positive = Verifier.from_pretrained("embedded:sentiment", target="positive")
    >>> isinstance(positive, EmbeddingVerifier), positive.table.shape
    (True, torch.Size([30522, 384]))
    """

    pads_left = False
    reads_embeddings = True

    def __init__(
        self,
        tokenizer: Any,
        table: Callable[[], Tensor],
        function: Callable[[Tensor, Tensor], Tensor],
        output: str,
        strength: float = 1.0,
    ) -> None:
        super().__init__(strength)
        if output not in ("prob", "logit"):
            raise ConfigError(f"output must be 'prob' or 'logit', got {output!r}")
        self.tokenizer = tokenizer
        self._table = table
        self.name = type(function).__name__
        self.opening, self.closing = special_frame(tokenizer)
        self.pad_id: int = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else 0
        self.max_length = position_limit(None, tokenizer)
        self._function = function
        self._output = output

    @property
    def table(self) -> Tensor:
        """(V, D): the embedding of each token, as it is now."""
        return self._table()

    @property
    def rows(self) -> int:
        """How many tokens have an embedding."""
        return len(self.table)

    @property
    def device(self) -> torch.device:
        """The device of the embeddings."""
        return self.table.device

    def value(self, embeds: Tensor, mask: Tensor, kind: str) -> Tensor:
        """φ (kind "prob") or its log-odds (kind "logit") of embedded texts: (R,); embeds: (R, T, D), mask: (R, T)."""
        with blamed(f"the verifier {self.name}"):
            raw = self._function(embeds, mask)
        if not isinstance(raw, Tensor) or raw.shape != embeds.shape[:1]:
            given = tuple(raw.shape) if isinstance(raw, Tensor) else type(raw).__name__
            raise ModelError(
                f"verifier {self.name} must return one number for each text, expected shape ({len(embeds)},), got {given}"
            )
        raw = raw.float()
        check_finite(raw, f"the verifier {self.name}")
        if self._output == "prob":
            raw = _probabilities(raw, self.name)
        if self._output == kind:
            return raw
        return raw.sigmoid() if kind == "prob" else raw.clamp(1e-6, 1 - 1e-6).logit()

    def linearise(self, ids: Tensor, mask: Tensor, *, kind: str = "prob") -> Linearised:
        """φ or its log-odds at the texts and the gradient in their embeddings; no parameter gets a gradient."""
        with torch.enable_grad():
            embeds = self.table[ids].requires_grad_()
            value = self.value(embeds, mask, kind)
            grad = torch.autograd.grad(value.sum(), embeds, allow_unused=True)[0] if value.requires_grad else None
        if grad is None:
            raise ModelError(f"verifier {self.name} must be differentiable for a lookahead with gradients, got none")
        return Linearised(value.detach(), grad, embeds.detach())

    @torch.no_grad()
    def value_of_ids(self, ids: Tensor, mask: Tensor, *, kind: str = "prob") -> Tensor:
        """φ or its log-odds of tokenised texts, without a gradient: (R,)."""
        return self.value(self.table[ids], mask, kind)

    @torch.no_grad()
    def value_of_expected(self, texts: Sequence[str], means: Tensor) -> Tensor:
        """φ of texts that go on with tokens of which only the mean embedding is known: (R,); means: (R, n, D).

        To first order this is φ's expectation over those tokens: expanded about the mean, the linear term is zero.
        """
        encoded = self.tokenizer(list(texts), add_special_tokens=False)["input_ids"]
        count = means.shape[1]
        ids, mask = self.frame([[*row, *[self.pad_id] * count] for row in encoded])
        framed = len(self.opening) + len(self.closing)
        ends = [  # where each row's padding begins
            ids.shape[1] if self.pads_left else min(len(row) + count + framed, self.max_length) for row in encoded
        ]
        first = [end - len(self.closing) - count for end in ends]
        known = [(row, at + i, i) for row, at in enumerate(first) for i in range(count) if at + i >= 0]
        embeds = self.table[ids]
        if known:
            row, column, i = sent(known, self.device).unbind(1)
            embeds = embeds.index_put((row, column), means.to(self.table)[row, i])
        return self.value(embeds, mask, "prob")

    def evaluate(self, texts: Sequence[str]) -> Tensor:
        return fetched(self.measure(texts))[0]

    def measure(self, texts: Sequence[str]) -> Tensor:
        scores = [torch.zeros(0, device=self.device)]
        for start in range(0, len(texts), _BATCH):
            encoded = self.tokenizer(list(texts[start : start + _BATCH]), add_special_tokens=False)["input_ids"]
            scores.append(self.value_of_ids(*self.frame(encoded)))
        return torch.cat(scores)

    def frame(self, encoded: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
        """Tokens as the verifier takes them: ids and mask (R, T), the last ones where there are too many."""
        room = self.max_length - len(self.opening) - len(self.closing)
        rows = [[*self.opening, *list(ids)[max(0, len(ids) - room) :], *self.closing] for ids in encoded]
        check_known(f"verifier {self.name}", max((i for row in rows for i in row), default=0), self.rows)
        width = max(map(len, rows))
        fill = [width - len(row) for row in rows]
        if self.pads_left:
            ids = [[self.pad_id] * n + row for row, n in zip(rows, fill)]
            mask = [[False] * n + [True] * len(row) for row, n in zip(rows, fill)]
        else:
            ids = [row + [self.pad_id] * n for row, n in zip(rows, fill)]
            mask = [[True] * len(row) + [False] * n for row, n in zip(rows, fill)]
        return sent(ids, self.device), sent(mask, self.device)


class Verifier(EmbeddingVerifier):
    """A sequence classifier of transformers: φ is the probability of one of its labels.

    Softmax over labels, sigmoid where the model is multi-label or has a single logit. `target` is the label's name or
    index. Only gradients in the inputs are ever taken.

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
        self.model = model
        self.target = _label_index(model.config, target)
        self._embeddings = Embeddings(model)
        super().__init__(tokenizer, self._embeddings.now, self._log_odds, "logit", strength)
        self.name = type(model).__name__
        self.max_length = position_limit(model, tokenizer)
        self.pads_left = hasattr(model, "score")  # decoders pool at the last position
        if self.pads_left and model.config.pad_token_id is None:
            raise ModelError(f"verifier {self.name} must have config.pad_token_id to judge batches, got None")
        self._accepts_positions = "position_ids" in inspect.signature(model.forward).parameters
        self._fast = accelerate(model, evaluating=True)

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
        function = accelerate(module, evaluating=True) if isinstance(module, torch.nn.Module) else module
        verifier = EmbeddingVerifier(tokenizer, partial(_rows, embeddings), function, output, strength)
        verifier.name = type(module).__name__
        return verifier

    @staticmethod
    def from_callable(function: Callable[[list[str]], Any], *, strength: float = 1.0) -> Leaf:
        """A verifier from `function(texts) -> scores`; without a gradient, so that the Taylor term is left out.

        >>> Verifier.from_callable(lambda texts: [len(t) / 10 for t in texts]).score(["hello"])
        tensor([0.5000])
        """
        return _CallableVerifier(function, strength)

    @staticmethod
    def of_conversation(function: Callable[[Any, list[str]], Any], *, strength: float = 1.0) -> Leaf:
        """A verifier from `function(prompt, replies) -> scores`: the prompt as it was given, and some replies to it.

        >>> polite = Verifier.of_conversation(lambda prompt, replies: [float("please" in reply) for reply in replies])
        >>> polite.about("May I?").score(["Yes, please."])
        tensor([1.])
        """
        return _ConversationVerifier(function, strength)

    @staticmethod
    def mean(*verifiers: Expression, weights: Sequence[float] | None = None) -> Expression:
        """The weighted mean of verifiers: to please several at once is harder than to game one.

        >>> positive = Verifier.from_pretrained("embedded:sentiment", target="positive")
        >>> Verifier.mean(positive, ~positive).score("What a film.")
        tensor([0.5000])
        """
        return mean(*verifiers, weights=weights)

    @staticmethod
    def of(thing: Any, *, target: str | int | None = None) -> Expression:
        """A verifier from what judges texts already: a function, a pipeline of scikit-learn or transformers, a CrossEncoder.

        >>> Verifier.of(lambda texts: [float("sea" in text) for text in texts]).score(["By the sea", "At home"])
        tensor([1., 0.])
        """
        from scone.verifier.foreign import as_verifier

        return as_verifier(thing, target)

    @property
    def labels(self) -> list[str]:
        """Names of the model's labels."""
        return _labels(self.model.config)

    def _log_odds(self, embeds: Tensor, mask: Tensor) -> Tensor:
        extra = {}
        if self.pads_left and self._accepts_positions:
            extra["position_ids"] = (mask.long().cumsum(1) - 1).clamp(min=0)
        shown = mask.long() if self.pads_left else attention_mask(self.model, mask, mask.shape[1])
        out = self._fast(inputs_embeds=embeds, attention_mask=shown, **extra)
        logits = out.logits.float()  # (R, labels)
        chosen = logits[:, self.target]
        if logits.shape[1] == 1 or self.model.config.problem_type == "multi_label_classification":
            return chosen
        others = torch.cat([logits[:, : self.target], logits[:, self.target + 1 :]], 1)
        return chosen - others.logsumexp(-1)


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


def _probabilities(scores: Tensor, name: str) -> Tensor:
    """The scores, or an InputError where one is no probability: what is beyond [0, 1] by rounding alone is cut."""
    wrong = (scores < -1e-6) | (scores > 1 + 1e-6)
    if scores.device.type == "cpu" and bool(wrong.any()):  # elsewhere looking would wait for the device
        raise InputError(f"verifier {name} must return scores from 0 to 1, got {float(scores[wrong][0]):g}")
    return scores.clamp(0, 1)


def _rows(embeddings: Any) -> Tensor:
    return (embeddings.weight if isinstance(embeddings, torch.nn.Embedding) else embeddings).detach()
