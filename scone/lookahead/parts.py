"""The models that a lookahead works with, and the tables between their vocabularies, each made when first used."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from scone.errors import DeviceError, ModelError
from scone.lm import CausalLM, MaskedLM, same_vocabulary, sent
from scone.verifier import Bridge, EmbeddingVerifier, Expression, Leaf, Surfaces

__all__ = ["ANYWHERE", "EMBEDDINGS", "GRADIENTS", "LM_STATES", "MASKED_LM", "Parts", "score_each"]

LM_STATES = "lm states"
MASKED_LM = "masked lm"
EMBEDDINGS = "embeddings"  # of what follows a text
ANYWHERE = "embeddings anywhere"  # of any token of a text: not where a verifier is shown a part of it
GRADIENTS = "gradients"

_SENTENCE = "It was a bright cold day in spring, and everyone who could walk had gone outside to look at the river."


class Parts:
    """LM, masked LM (or none) and verifier; an engine's are `engine.parts`.

    >>> from scone.decode import Scone
    >>> sorted(Scone.from_pretrained(masked_lm=None).parts.offers)
    ['embeddings', 'embeddings anywhere', 'gradients', 'lm states']
    """

    def __init__(self, lm: CausalLM, masked_lm: Callable[[], MaskedLM] | None, verifier: Expression) -> None:
        self.lm = lm
        self.verifier = verifier
        self.readers: list[Any] = [leaf for leaf in verifier.leaves if leaf.reads_embeddings]
        self._masked_lm = masked_lm
        self._lm_bridges: dict[object, Bridge] = {}
        self._lm_surfaces: tuple[int, Surfaces] | None = None
        self._bridges: dict[object, Bridge] = {}
        self._beside: dict[object, tuple[Any, Parts, bool]] = {}

    @property
    def has_masked_lm(self) -> bool:
        """Whether there is one; it may not be loaded yet."""
        return self._masked_lm is not None

    @property
    def offers(self) -> frozenset[str]:
        """What a lookahead can count on here."""
        found = {LM_STATES}
        if self.has_masked_lm:
            found.add(MASKED_LM)
        if len(self.readers) == len(self.verifier.leaves):
            found.add(EMBEDDINGS)
        if all(isinstance(leaf, EmbeddingVerifier) for leaf in self.verifier.leaves):
            found |= {ANYWHERE, GRADIENTS}
        return frozenset(found)

    @cached_property
    def masked_lm(self) -> MaskedLM:
        """The masked LM, loaded when it is first needed."""
        if self._masked_lm is None:
            raise ModelError("masked_lm must be a masked LM where one is needed, got None")
        return self._masked_lm()

    def prepare(self, needs: Iterable[str]) -> None:
        """Load what a lookahead needs, so that a mistake shows before anything is written."""
        if MASKED_LM in needs:
            for leaf in self.readers:
                self.bridge(leaf)
            _ = self.surfaces
        if {LM_STATES, EMBEDDINGS} <= set(needs):
            for leaf in self.readers:
                self._lm_bridge(leaf)

    def with_lm(self, lm: CausalLM) -> Parts:
        """The same parts around another LM."""
        other = copy.copy(self)
        other.lm, other._lm_bridges, other._lm_surfaces, other._beside = lm, {}, None, {}
        other.__dict__.pop("density", None)
        return other

    def with_verifier(self, verifier: Expression) -> Parts:
        """The same models with another verifier; tables that were made are shared."""
        other = copy.copy(self)
        other.verifier = verifier
        other.readers = [leaf for leaf in verifier.leaves if leaf.reads_embeddings]
        other._beside = {
            key: (lm, parts.with_verifier(verifier), same) for key, (lm, parts, same) in self._beside.items()
        }
        return other

    def beside(self, lm: Any) -> Parts:
        """The same parts around an LM that looks ahead for this one: by name, or (model, tokenizer); made once."""
        key = lm if isinstance(lm, str) else id(lm)
        if key not in self._beside:
            other = CausalLM.from_pretrained(lm, device=self.lm.device) if isinstance(lm, str) else lm
            other = other if isinstance(other, CausalLM) else CausalLM(*other)
            # What was given is kept: while it lives nothing else has its id.
            self._beside[key] = lm, self.with_lm(other), same_vocabulary(self.lm.tokenizer, other.tokenizer)
        return self._beside[key][1]

    def shares_tokens(self, other: Parts) -> bool:
        """Whether an LM that stands beside this one reads its tokens."""
        return next(same for _, parts, same in self._beside.values() if parts is other)

    def _surfaces_of_lm(self) -> Surfaces:
        """How the LM's tokens look, as many as its tokenizer has now."""
        size = len(self.lm.tokenizer)
        if self._lm_surfaces is None or self._lm_surfaces[0] != size:
            self._lm_surfaces = size, Surfaces(self.lm.tokenizer)
        return self._lm_surfaces[1]

    @cached_property
    def surfaces(self) -> Surfaces:
        """How the masked LM's tokens look."""
        return Surfaces(self.masked_lm.tokenizer)

    @cached_property
    def density(self) -> float:
        """Masked-LM tokens for each token of the LM."""
        return len(self.masked_lm.encode(_SENTENCE)) / max(1, len(self.lm.tokenizer(_SENTENCE)["input_ids"]))

    def bridge(self, leaf: EmbeddingVerifier) -> Bridge:
        """From the masked LM's vocabulary to a verifier's."""
        found, size = self._bridges.get(_vocabulary(leaf)), self.masked_lm.keep.shape[0]
        if found is None or found.size != size:  # the model may have been resized
            if leaf.device != self.masked_lm.device:
                raise DeviceError(
                    f"verifier {leaf.name} must be on the masked LM's device {self.masked_lm.device}, got {leaf.device}"
                )
            found = self._bridges[_vocabulary(leaf)] = Bridge(self.masked_lm.tokenizer, size, self.surfaces, leaf)
        return found

    @property
    def lm_tables(self) -> list[Tensor]:
        """For each reader, (V of the LM, D): the verifier's embedding of each token of the LM."""
        return [self._lm_bridge(leaf).table for leaf in self.readers]

    def _lm_bridge(self, leaf: EmbeddingVerifier) -> Bridge:
        found, size = self._lm_bridges.get(_vocabulary(leaf)), self.lm.vocabulary
        if found is None or found.size != size:
            found = Bridge(self.lm.tokenizer, size, self._surfaces_of_lm(), leaf)
            self._lm_bridges[_vocabulary(leaf)] = found
        return found

    def combine(self, values: Mapping[object, Tensor]) -> Tensor:
        """(terms, n) from the values (n,) of the verifier's leaves."""
        return torch.stack([term.combine(values) for term in self.verifier.terms])

    def score(self, texts: Sequence[str]) -> Tensor:
        """(terms, n): φ of texts, where the LM is."""
        return self.combine({leaf.key: self.near(leaf.judged(texts)) for leaf in self.verifier.leaves})

    def score_expected(self, texts: Sequence[str], means: Sequence[Tensor]) -> Tensor:
        """(terms, n): φ of texts that go on with tokens known by their mean embeddings, (n, tokens, D) a reader."""
        return self.combine(
            {leaf.key: self.near(leaf.value_of_expected(texts, mean)) for leaf, mean in zip(self.readers, means)}
        )

    def near(self, values: Tensor) -> Tensor:
        """Values where the LM is, for what is combined to be in one place."""
        return sent(values, self.lm.device)


def _vocabulary(leaf: EmbeddingVerifier) -> object:
    """The same for verifiers of one classifier, whatever their targets: its bridge is good for all of them."""
    return leaf.table.data_ptr(), id(leaf.tokenizer)


def score_each(verifiers: Sequence[Expression], evaluate: Callable[[Leaf, list[int]], Tensor]) -> Tensor:
    """(terms, n): the value of each of n rows under its own verifier, 1 for terms that it lacks.

    `evaluate(leaf, rows)` gives a leaf's values at some of the rows: each leaf is asked once, about those that need it.

    >>> from scone.verifier import Verifier
    >>> long = Verifier.from_callable(lambda texts: [len(text) / 8 for text in texts])
    >>> texts = ["good", "bad"]
    >>> score_each([long, ~long], lambda leaf, rows: leaf.evaluate([texts[i] for i in rows]))
    tensor([[0.5000, 0.6250]])
    """
    needed: dict[object, tuple[Leaf, list[int]]] = {}
    members: dict[int, tuple[Expression, list[int]]] = {}
    for row, verifier in enumerate(verifiers):
        members.setdefault(id(verifier), (verifier, []))[1].append(row)
        for leaf in verifier.leaves:
            needed.setdefault(leaf.key, (leaf, []))[1].append(row)
    values: dict[object, Tensor] = {}
    for key, (leaf, rows) in needed.items():
        values[key] = torch.zeros(len(verifiers))
        values[key][rows] = evaluate(leaf, rows).cpu()
    q = torch.ones(max(len(verifier.terms) for verifier, _ in members.values()), len(verifiers))
    for verifier, rows in members.values():
        own = {leaf.key: values[leaf.key][rows] for leaf in verifier.leaves}
        q[: len(verifier.terms), rows] = torch.stack([term.combine(own) for term in verifier.terms])
    return q
