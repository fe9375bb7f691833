"""Verifiers: what a text is judged by, how they combine, and the bridges from other vocabularies to theirs."""

from scone.verifier.algebra import Expression, Leaf
from scone.verifier.bridge import Bridge, Surfaces, View
from scone.verifier.foreign import as_verifier
from scone.verifier.kinds import EmbeddingVerifier, Linearised, Verifier
from scone.verifier.reading import Reading

__all__ = [
    "Bridge",
    "EmbeddingVerifier",
    "Expression",
    "Leaf",
    "Linearised",
    "Reading",
    "Surfaces",
    "Verifier",
    "View",
    "as_verifier",
]
