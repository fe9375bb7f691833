"""Independent judges: a second opinion on finished texts, of another kind than the verifiers, that decoding never sees.

A text that pleases the verifier and not the judge has gamed the verifier. The judges are bags of words: they count
words and pairs of words and know nothing of MiniLM; they learned from documents that no verifier was trained on. The
sentiment judge also asks the VADER lexicon.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Protocol

import numpy as np
from safetensors.numpy import load_file

from scone.embedded.names import LABELS, WEIGHTS
from scone.errors import InputError, LabelError, SconeError

__all__ = ["BagOfWords", "Judge", "Mean", "Vader", "load_judge"]

BUCKETS = 1 << 16
_WORD = re.compile(r"[a-z0-9]+(?:'[a-z]+)?|[!?]")


class Judge(Protocol):
    """Says how well texts fit a label."""

    name: str
    labels: tuple[str, ...]

    def score(self, texts: Sequence[str], target: str) -> np.ndarray:
        """(n,) in [0, 1]: the probability that each text has the label `target`."""
        ...


class BagOfWords:
    """Logistic regression on the words and word pairs of a text, hashed into buckets.

    weight: (BUCKETS, labels)   bias: (labels,)
    """

    name = "bag of words"

    def __init__(self, labels: Sequence[str], weight: np.ndarray, bias: np.ndarray) -> None:
        self.labels = tuple(labels)
        self.weight, self.bias = weight, bias

    @classmethod
    def load(cls, path: Path, labels: Sequence[str]) -> BagOfWords:
        """Read a judge that `python -m recipes judges` wrote."""
        tensors = load_file(path)
        return cls(labels, tensors["weight"].astype(np.float32), tensors["bias"].astype(np.float32))

    def probabilities(self, texts: Sequence[str]) -> np.ndarray:
        """(n, labels)"""
        logits = np.array([self._logits(text) for text in texts]).reshape(len(texts), len(self.labels))
        odds = np.exp(logits - logits.max(axis=1, keepdims=True))
        return odds / odds.sum(axis=1, keepdims=True)

    def score(self, texts: Sequence[str], target: str) -> np.ndarray:
        """(n,) in [0, 1]: the probability that each text has the label `target`."""
        return self.probabilities(texts)[:, _index(self.labels, target)]

    def _logits(self, text: str) -> np.ndarray:
        found = buckets(text)
        return self.weight[found].sum(axis=0) / max(1.0, len(found)) ** 0.5 + self.bias


class Vader:
    """The VADER lexicon's compound score, from [-1, 1] to [0, 1].

    >>> Vader().score(["A wonderful, happy day."], "positive")[0] > 0.9
    np.True_
    """

    name = "VADER"
    labels = LABELS["sentiment"]

    def __init__(self) -> None:
        try:
            from vaderSentiment.vaderSentiment import SentimentIntensityAnalyzer
        except ImportError as error:
            raise SconeError(
                "the sentiment judge needs the package vaderSentiment: pip install vaderSentiment"
            ) from error
        self._analyser = SentimentIntensityAnalyzer()

    def score(self, texts: Sequence[str], target: str) -> np.ndarray:
        """(n,) in [0, 1]"""
        positive = np.array([(self._analyser.polarity_scores(text)["compound"] + 1) / 2 for text in texts])
        return positive if _index(self.labels, target) else 1.0 - positive


class Mean:
    """The mean opinion of several judges."""

    def __init__(self, *judges: Judge) -> None:
        self.judges, self.labels = judges, judges[0].labels
        self.name = " and ".join(judge.name for judge in judges)

    def score(self, texts: Sequence[str], target: str) -> np.ndarray:
        """(n,) in [0, 1]"""
        return np.mean([judge.score(texts, target) for judge in self.judges], axis=0)


def load_judge(attribute: str) -> Judge:
    """The independent judge of an attribute: `"sentiment"`, `"toxicity"` or `"topic"`.

    >>> judge = load_judge("topic")
    >>> judge.score(["Bake the bread with butter and cheese, and serve it with soup."], "food")[0] > 0.5
    np.True_
    """
    if attribute not in LABELS:
        raise InputError(f"attribute must be one of {', '.join(LABELS)}, got {attribute!r}")
    words = BagOfWords.load(WEIGHTS / f"judge-{attribute}.safetensors", LABELS[attribute])
    return Mean(words, Vader()) if attribute == "sentiment" else words


def buckets(text: str) -> np.ndarray:
    """The hash buckets of a text's distinct words and word pairs, sorted."""
    words = _WORD.findall(text.lower())
    grams = set(words) | {f"{first} {second}" for first, second in pairwise(words)}
    return np.array(sorted({zlib.crc32(gram.encode()) % BUCKETS for gram in grams}), dtype=np.int64)


def _index(labels: tuple[str, ...], target: str) -> int:
    if target not in labels:
        raise LabelError(f"target must be one of {', '.join(labels)}, got {target!r}")
    return labels.index(target)
