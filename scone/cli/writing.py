"""Writing and judging texts, plain and controlled, for the commands that show them."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, reduce
from operator import and_
from typing import TYPE_CHECKING, Any

from scone.cli.attributes import Attribute
from scone.config import SconeConfig
from scone.errors import InputError, SconeError

if TYPE_CHECKING:
    from torch import Tensor

    from scone.decode import Scone
    from scone.verifier import Expression

__all__ = ["CONTROLLED", "PLAIN", "Models", "Writer", "Written"]

PLAIN, CONTROLLED = "plain", "controlled"


@dataclass(frozen=True)
class Written:
    """A text that was written, and what is known about it. Scores are by the attribute's name, 1 is best."""

    prompt: str
    continuation: str
    method: str  # PLAIN or CONTROLLED
    sample: int  # 0, 1, ... of the same prompt
    tokens: int
    seconds: float  # its share of its batch's time
    scores: dict[str, float] = field(default_factory=dict)  # by the verifier that steers
    independent: dict[str, float] = field(default_factory=dict)  # by a judge that decoding never sees
    nll: float = float("nan")  # summed over `nll_tokens`, under the language model itself
    nll_tokens: int = 0

    @property
    def text(self) -> str:
        """Prompt and continuation."""
        return self.prompt + self.continuation


class Writer:
    """An engine for some attributes, with a verifier for each of them."""

    def __init__(self, engine: Scone, attributes: Sequence[Attribute], verifiers: Sequence[Expression]) -> None:
        self.engine, self.attributes, self.verifiers = engine, attributes, verifiers

    @cached_property
    def judges(self) -> dict[Attribute, Any]:
        """The independent judges of the attributes that have one; raises where a package or file is missing."""
        from scone.evaluate.judges import load_judge

        return {attribute: load_judge(attribute.kind) for attribute in self.attributes if attribute.kind}

    def write(
        self,
        method: str,
        prompts: Sequence[str],
        *,
        samples: int = 1,
        max_new_tokens: int = 25,
        seed: int = 0,
        batch: int = 16,
        tick: Callable[[], None] | None = None,
    ) -> Iterator[Written]:
        """Texts in the order of the prompts, a batch at a time, with the verifiers' scores.

        Plain is the same sampler with strength 0 and one particle: both draw with the same random numbers from the same candidates.
        `tick` is called once for each token.
        """
        from scone.processors import OneByOne

        engine = self.engine if method == CONTROLLED else self.engine.with_config(strength=0.0, particles=1)
        watch = [OneByOne(_every(engine.config.particles, tick))] if tick else []
        for chunk in _chunks(prompts, max(1, batch // samples)):
            began = time.perf_counter()
            out = engine.generate(
                chunk, max_new_tokens=max_new_tokens, num_return_sequences=samples, seed=seed, logits_processor=watch
            )
            seconds = time.perf_counter() - began
            total = sum(map(len, out.token_ids)) or 1
            scores = self._scores([prompt for prompt in chunk for _ in range(samples)], out.continuations)
            for i, (continuation, ids) in enumerate(zip(out.continuations, out.token_ids)):
                share = seconds * len(ids) / total
                text = Written(chunk[i // samples], continuation, method, i % samples, len(ids), share)
                yield replace(text, scores={name: values[i] for name, values in scores.items()})

    def judge(self, texts: Sequence[Written]) -> list[Written]:
        """The texts with independent scores, where there is a judge, and their likelihood under the language model."""
        from scone.evaluate.fluency import negative_log_likelihood

        independent: dict[str, list[float]] = {}
        for attribute, judge in self.judges.items():
            values = judge.score([self.engine.finished(t.prompt, t.continuation).text for t in texts], attribute.label)
            independent[attribute.name] = [float(1 - value if attribute.avoid else value) for value in values]
        judged = []
        for i, text in enumerate(texts):
            nll, count = negative_log_likelihood(self.engine.parts.lm, text.prompt, [text.continuation])
            own = {name: values[i] for name, values in independent.items()}
            judged.append(replace(text, independent=own, nll=float(nll[0]), nll_tokens=int(count[0])))
        return judged

    def _scores(self, prompts: Sequence[str], continuations: Sequence[str]) -> dict[str, list[float]]:
        from scone.text import scored

        scores = {}
        for attribute, verifier in zip(self.attributes, self.verifiers):
            texts = [self.engine.finished(*pair, verifier) for pair in zip(prompts, continuations)]
            scores[attribute.name] = scored(texts, verifier).tolist()
        return scores


class Models:
    """Models by name; each is loaded once, however many writers share it, and the masked LM when one is needed."""

    def __init__(self, lm: str, masked_lm: str, **options: Any) -> None:
        from scone.loading import load_causal_lm, load_masked_lm

        self._options = options
        self._lm = self._load(load_causal_lm, lm)
        self._masked_lm = cache(lambda: self._load(load_masked_lm, masked_lm))
        self._classifiers: dict[str, Any] = {}

    def writer(self, attributes: Sequence[Attribute], config: SconeConfig) -> Writer:
        """A writer for these attributes; one without a strength of its own takes the configuration's."""
        from scone.decode import Scone

        verifiers = [self._verifier(attribute, config.strength) for attribute in attributes]
        together = reduce(and_, verifiers)
        engine = Scone(self._lm, self._masked_lm, together, config.replace(strength=1.0))
        return Writer(engine, attributes, verifiers)

    def _verifier(self, attribute: Attribute, strength: float) -> Expression:
        from scone.loading import load_classifier
        from scone.verifier import Verifier

        if attribute.model not in self._classifiers:
            self._classifiers[attribute.model] = self._load(load_classifier, attribute.model)
        own = strength if attribute.strength is None else attribute.strength
        verifier = Verifier(*self._classifiers[attribute.model], target=attribute.label, strength=own)
        return ~verifier if attribute.avoid else verifier

    def _load(self, load: Callable[..., Any], name: str) -> Any:
        try:
            return load(name, **self._options)
        except SconeError:
            raise
        except (OSError, ValueError) as problem:  # transformers: no such model, not this kind of model, no network
            first_line = str(problem).strip().partition("\n")[0]
            raise InputError(f"cannot load {name!r}: {first_line}") from problem


def _every(count: int, tick: Callable[[], None]) -> Callable[[Tensor, Tensor], Tensor]:
    """A processor that ticks at every so many calls, and changes nothing."""
    calls = itertools.count(1)

    def watch(ids: Tensor, logits: Tensor) -> Tensor:
        if next(calls) % count == 0:
            tick()
        return logits

    return watch


def _chunks(items: Sequence[str], size: int) -> Iterable[list[str]]:
    return (list(items[start : start + size]) for start in range(0, len(items), size))
