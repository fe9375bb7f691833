"""The engine: what a user imports.

    engine = Scone.from_pretrained(target="positive")
    engine.generate(["The movie was"], max_new_tokens=25, seed=0).texts

How a text comes about is in `scone.loop`, who looks ahead in `scone.lookahead`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial, reduce
from operator import and_
from typing import Any

import torch
from torch import Tensor

from scone.config import SconeConfig
from scone.errors import InputError
from scone.failure import limited, told
from scone.forking import check_fork
from scone.hf import SconeLogitsProcessor, generate_with
from scone.lm import CausalLM, MaskedLM
from scone.loading import EMBEDDED, load_causal_lm, load_masked_lm
from scone.lookahead import Parts
from scone.loop import Loop, Taken, prefill
from scone.output import Cost, Output, Step
from scone.particles import CHECKPOINT, Population
from scone.processors import Processor, Processors, may_change_places
from scone.prompts import (
    Prompt,
    as_list,
    check_counts,
    check_sampling,
    check_stops,
    check_timeout,
    check_verifiers,
    open_prompts,
)
from scone.text import Text, Writer, scored
from scone.trace import Told, Trace
from scone.values import Prefix, values
from scone.verifier import Expression, Verifier, as_verifier

__all__ = ["Output", "Scone", "SconeConfig", "Step", "Verifier"]


class Scone:
    """Steers a causal LM so that its texts satisfy a verifier.

    `lm` and `masked_lm` are models with their tokenizers beside them, or (model, tokenizer) pairs; `verifier` is a
    Verifier, an expression of verifiers, or what `Verifier.of` makes one of: a function of texts, a pipeline of
    scikit-learn or transformers, a CrossEncoder. `masked_lm` may be None where the lookahead does without one, and a function
    that loads it is called when it is first needed.

    >>> engine = Scone.from_pretrained(target="positive")
    >>> out = engine.generate(["The movie was"], max_new_tokens=5, seed=0)
    >>> out.texts[0].startswith("The movie was")
    True
    >>> out.texts == engine.generate(["The movie was"], max_new_tokens=5, seed=0).texts
    True
    """

    def __init__(
        self,
        lm: Any,
        masked_lm: Any = None,
        verifier: Any = None,
        config: SconeConfig | None = None,
        *,
        lm_tokenizer: Any = None,
        masked_lm_tokenizer: Any = None,
    ) -> None:
        judge = as_verifier(verifier)
        causal_lm = CausalLM(*_pair("lm", lm, lm_tokenizer))
        self.parts = Parts(causal_lm, _masked_lm(masked_lm, masked_lm_tokenizer), judge)
        self._configure(SconeConfig() if config is None else config)

    def _configure(self, config: SconeConfig) -> None:
        if not isinstance(config, SconeConfig):
            raise InputError(f"config must be a SconeConfig, got {type(config).__name__}")
        self.config = config
        self.lookahead = config.lookahead.serving(self.parts.offers)
        self.lookahead.prepare(self.parts)

    @classmethod
    def from_pretrained(
        cls,
        lm: Any = EMBEDDED,
        masked_lm: Any = EMBEDDED,
        verifier: Any = f"{EMBEDDED}:sentiment",
        *,
        target: str | int | None = None,
        config: SconeConfig | None = None,
        device: str | torch.device | None = None,
        dtype: torch.dtype | str | None = None,
        device_map: Any = None,
        trust_remote_code: bool = False,
    ) -> Scone:
        """Load the three models by name: a Hub id, a folder, or "embedded".

        Ready objects are taken as they are: (model, tokenizer) pairs, and for the verifier all that `Verifier.of` knows. Without
        arguments: the models that come with scone, steered towards positive sentiment. The masked LM is loaded when a
        lookahead first needs it. `device_map` is for the LM; the masked LM and the verifier go to `device`. Weights are
        read from safetensors only.

        >>> Scone.from_pretrained().verifier.labels
        ['negative', 'positive']
        """
        common: dict[str, Any] = {"device": device, "dtype": dtype, "trust_remote_code": trust_remote_code}
        if isinstance(verifier, str):
            if target is None and verifier in (EMBEDDED, f"{EMBEDDED}:sentiment"):
                target = "positive"
            if target is None:
                raise InputError(f"target must be a label of the verifier {verifier!r}, got None")
            verifier = Verifier.from_pretrained(verifier, target=target, **common)
        else:
            verifier = as_verifier(verifier, target)
        lm = load_causal_lm(lm, device_map=device_map, **common) if isinstance(lm, str) else lm
        if isinstance(masked_lm, str):
            masked_lm = partial(load_masked_lm, masked_lm, **common)
        return cls(lm, masked_lm, verifier, config)

    @property
    def lm(self) -> Any:
        """The causal LM, as given."""
        return self.parts.lm.model

    @property
    def lm_tokenizer(self) -> Any:
        """The causal LM's tokenizer."""
        return self.parts.lm.tokenizer

    @property
    def masked_lm(self) -> Any:
        """The masked LM, as given, or None; asking for it loads it."""
        return self.parts.masked_lm.model if self.parts.has_masked_lm else None

    @property
    def masked_lm_tokenizer(self) -> Any:
        """The masked LM's tokenizer, or None."""
        return self.parts.masked_lm.tokenizer if self.parts.has_masked_lm else None

    @property
    def verifier(self) -> Any:
        """The verifier; `engine.verifier.score(texts)` is φ of finished texts."""
        return self.parts.verifier

    def with_config(self, config: SconeConfig | None = None, **changes: Any) -> Scone:
        """The same models with other options.

        >>> Scone.from_pretrained().with_config(strength=0).config.strength
        0
        """
        if config is not None and not isinstance(config, SconeConfig):
            raise InputError(f"config must be a SconeConfig, got {type(config).__name__}")
        other = object.__new__(type(self))
        other.__dict__ = dict(self.__dict__)
        other._configure((self.config if config is None else config).replace(**changes))
        return other

    def with_verifier(self, verifier: Any) -> Scone:
        """The same models and options with another verifier; nothing is loaded again.

        >>> engine = Scone.from_pretrained()
        >>> calm = engine.with_verifier(~Verifier.from_pretrained("embedded:toxicity", target="toxic"))
        >>> calm.lm is engine.lm
        True
        """
        other = object.__new__(type(self))
        other.__dict__ = dict(self.__dict__)
        other.parts = self.parts.with_verifier(as_verifier(verifier))
        other._configure(self.config)
        return other

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        *,
        max_new_tokens: int = 25,
        num_return_sequences: int = 1,
        seed: int = 0,
        do_sample: bool = True,
        stop: str | Sequence[str] = (),
        stop_token_ids: Sequence[int] = (),
        logits_processor: Sequence[Processor] = (),
        verifiers: Sequence[Any] | None = None,
        explain: bool = False,
        timeout: float | None = None,
    ) -> Output:
        """Continue prompts under control.

        prompts: texts, or conversations (lists of {"role", "content"}) for the LM's chat template
        verifiers: one for each prompt, in the place of the engine's
        seed: with the same seed a prompt gets the same continuations, whatever else is in the batch
        do_sample: False takes the most probable candidate after reweighing
        stop: strings that end a text and are cut from it; the LM's own end-of-text tokens always end it
        logits_processor: as in transformers; they see the LM's logits before the candidates are picked. Each is called
            on the whole batch; `scone.processors` has wrappers for one that is to see each text by itself
        explain: keep also what the lookaheads read and φ after each token, for `out.trace.to_html()`
        timeout: seconds after which a token that is not written is given up, with a StallError

        Where a model fails the error has what was written in `.partial`. Where memory runs out, fewer texts and candidates
        go through the models at once, with a warning.

        >>> engine = Scone.from_pretrained()
        >>> out = engine.generate(["The food was", "My day"], max_new_tokens=4, num_return_sequences=2, seed=1)
        >>> len(out.texts), len(out.trace[0]) <= 4, out.scores.shape
        (4, True, torch.Size([4]))
        """
        check_counts(max_new_tokens=max_new_tokens, num_return_sequences=num_return_sequences)
        check_sampling(logits_processor, do_sample)
        check_timeout(timeout)
        engine, own = self, None
        if verifiers is not None:
            prompts = as_list(prompts)
            own = check_verifiers(verifiers, prompts)
            engine = self.with_verifier(reduce(and_, dict.fromkeys(own)))
        texts = engine.open(
            prompts, max_new_tokens=max_new_tokens, copies=num_return_sequences, seed=seed, verifiers=own
        )
        loop = replace(engine.loop(stop, stop_token_ids, logits_processor, do_sample, texts), explain=explain)
        seconds: dict[str, float] = {}
        cost = Cost()
        with told(partial(_best_so_far, loop, texts)):
            for taken in limited(engine._write(loop, texts, max_new_tokens), timeout):
                cost += taken.decision.judged.cost
                for phase, value in taken.seconds.items():
                    seconds[phase] = seconds.get(phase, 0.0) + value
        with told(partial(_best_so_far, loop, texts), after_all=True):
            ((kept, scores, log_evidence, trace),) = limited(engine._finish(loop, texts), timeout)
        return Output(
            texts=[text.text for text in kept],
            continuations=[text.continuation for text in kept],
            token_ids=[text.new_ids for text in kept],
            scores=scores,
            finish_reasons=[text.finish_reason or "length" for text in kept],
            trace=trace,
            seconds=seconds,
            cost=cost,
            log_evidence=log_evidence,
        )

    def stream(
        self,
        prompt: Prompt,
        *,
        max_new_tokens: int = 25,
        seed: int = 0,
        do_sample: bool = True,
        stop: str | Sequence[str] = (),
        stop_token_ids: Sequence[int] = (),
        logits_processor: Sequence[Processor] = (),
        timeout: float | None = None,
    ) -> Iterator[str]:
        """The continuation of one prompt, piece by piece as it is written; without particles it is `generate`'s.

        Particles are chosen among every eight tokens, so that what is shown has been chosen and stays.

        >>> engine = Scone.from_pretrained()
        >>> pieces = list(engine.stream("The movie was", max_new_tokens=5, seed=0))
        >>> "".join(pieces) == engine.generate(["The movie was"], max_new_tokens=5, seed=0).continuations[0]
        True
        """
        check_counts(max_new_tokens=max_new_tokens)
        check_sampling(logits_processor, do_sample)
        check_timeout(timeout)
        (text,) = self.open([prompt], max_new_tokens=max_new_tokens, seed=seed)
        moving = may_change_places(logits_processor)  # else it is written as one particle: choosing moves them
        loop = self.loop(stop, stop_token_ids, logits_processor, do_sample, [text] if moving else ())
        return self._stream(loop, text, max_new_tokens, timeout)

    def next_token(
        self, prompt: Prompt, *, max_new_tokens: int = 25, seed: int = 0, logits_processor: Sequence[Processor] = ()
    ) -> Step:
        """Algorithm 1 for one prompt: the candidates with log p, q and log p*, each (k,); nothing is drawn.

        >>> step = Scone.from_pretrained().next_token("The movie was", max_new_tokens=8, seed=0)
        >>> step.tokens.shape == step.log_p.shape == step.q.shape == step.log_p_star.shape
        True
        """
        check_counts(max_new_tokens=max_new_tokens)
        check_sampling(logits_processor)
        loop = self.loop(processors=logits_processor)
        texts = self.open([prompt], max_new_tokens=max_new_tokens, seed=seed)
        decision = loop.decide(texts, prefill(self.parts.lm, texts), max_new_tokens - 1).on_host()
        return decision.step(0, None, loop.timer.take(), loop.writer)

    def value(self, prefixes: Prefix | Iterable[Prefix], *, max_new_tokens: int = 25, seed: int = 0) -> Tensor:
        """Log-odds that unfinished texts will satisfy the verifier once they are finished: (n,), in one batch.

        prefixes: texts, or lists of the LM's tokens   max_new_tokens: how many may follow; 0: the texts are finished

        All of a prefix is judged: nobody says where its prompt ends, so that `verdict` and `after` play no part.

        >>> engine = Scone.from_pretrained()
        >>> drafts = ["The food was cold and", "The food was lovely and", "The food was"]
        >>> drafts[int(engine.value(drafts).argmax())]
        'The food was lovely and'
        """
        return values(self.parts, self.config, self.lookahead, prefixes, max_new_tokens=max_new_tokens, seed=seed)

    def custom_generate(
        self,
        model: Any,
        input_ids: Tensor,
        logits_processor: Any,
        stopping_criteria: Any,
        generation_config: Any,
        streamer: Any = None,
        seed: int = 0,
        **model_kwargs: Any,
    ) -> Any:
        """A decoding loop for `lm.generate(**inputs, custom_generate=engine.custom_generate)`.

        `generate` takes `seed` beside its own arguments, of which processors, stopping criteria and `streamer` are
        honoured. Greedy unless `do_sample=True`, as everywhere in transformers.

        >>> engine = Scone.from_pretrained()
        >>> inputs = engine.lm_tokenizer("The movie was", return_tensors="pt")
        >>> ids = engine.lm.generate(**inputs, custom_generate=engine.custom_generate, max_new_tokens=3, do_sample=True)
        >>> ids.shape[1] - inputs["input_ids"].shape[1]
        3
        """
        return generate_with(
            self,
            model,
            input_ids,
            logits_processor=logits_processor,
            stopping_criteria=stopping_criteria,
            generation_config=generation_config,
            streamer=streamer,
            seed=seed,
            **model_kwargs,
        )

    def logits_processor(self, *, max_new_tokens: int | None = None, seed: int = 0) -> SconeLogitsProcessor:
        """A LogitsProcessor for `lm.generate(**inputs, logits_processor=[engine.logits_processor()])`.

        max_new_tokens: how long the texts will be, so that lookaheads end where they do; None looks always as far
        seed: of the lookaheads; the tokens themselves are drawn by `generate`

        >>> engine = Scone.from_pretrained()
        >>> inputs = engine.lm_tokenizer("The movie was", return_tensors="pt")
        >>> processor = engine.logits_processor(max_new_tokens=3)
        >>> engine.lm.generate(**inputs, logits_processor=[processor], max_new_tokens=3).shape[0]
        1
        """
        return SconeLogitsProcessor(self, max_new_tokens=max_new_tokens, seed=seed)

    def open(
        self,
        prompts: Prompt | Sequence[Prompt],
        *,
        max_new_tokens: int,
        copies: int = 1,
        seed: int,
        verifiers: Sequence[Expression] | None = None,
    ) -> list[Text]:
        """The texts that a call begins with, each prompt `copies` times."""
        return open_prompts(
            self.parts.lm, prompts, max_new_tokens, copies=copies, seed=seed, judging=self.judging, verifiers=verifiers
        )

    def judging(self, prompt: Prompt, verifier: Expression | None = None) -> dict[str, Any]:
        """How a text that continues a prompt is judged, as fields of a Text.

        Of a conversation the reply alone is; a verifier that reads conversations is told the prompt beside it.
        """
        own = self.verifier if verifier is None else verifier
        apart = not isinstance(prompt, str) or self.config.verdict == "continuation" or own.reads_conversations
        about = own.about(prompt) if verifier is not None or own.reads_conversations else None
        return {"context": "" if apart else prompt, "after": self.config.after, "verifier": about}

    def finished(self, prompt: Prompt, continuation: str, verifier: Expression | None = None) -> Text:
        """A text that is written, to be judged once more: `finished(...).text` is what a verifier is shown."""
        return Text(prompt_ids=[], seed=0, continuation=continuation, **self.judging(prompt, verifier))

    def loop(
        self,
        stop: str | Sequence[str] = (),
        stop_token_ids: Sequence[int] = (),
        processors: Sequence[Processor] = (),
        do_sample: bool = True,
        texts: Sequence[Text] = (),
    ) -> Loop:
        """The decode loop of one call; with `texts`, each is written as the particles that the options ask for.

        Particles keep their places, and are not resampled, where a processor may count on places.
        """
        check_fork()
        strings = check_stops(stop, stop_token_ids, vocabulary=self.parts.lm.vocabulary)
        writer = Writer(self.parts.lm, stop=strings, stop_token_ids=stop_token_ids)
        config, population = self.config, None
        pad = self.lm_tokenizer.pad_token_id
        pad = next(iter(self.parts.lm.stop_ids), 0) if pad is None else pad
        process = Processors(processors, pad=pad) if processors else None
        if texts and config.particles > 1:
            share = config.resample if may_change_places(processors) else 0.0
            population = Population.of(texts, count=config.particles, keep=config.keep, share=share)
        return Loop(self.parts, config, self.lookahead, writer, do_sample, process, population)

    def _write(self, loop: Loop, texts: Sequence[Text], max_new_tokens: int) -> Iterator[Taken]:
        """Write the texts, or their particles; where memory runs out, go on with half of them and then the other half."""
        try:
            yield from self._write_together(loop, texts, max_new_tokens)
            return
        except Exception as problem:
            # processors count on the rows that they know
            if loop.process is not None or not loop.room.shrinks(problem, "texts", len(texts)):
                raise
        middle = (len(texts) + 1) // 2
        for part in (slice(middle), slice(middle, None)):
            if loop.population is None:
                yield from self._write(loop, texts[part], max_new_tokens)
            else:
                with loop.population.part(part) as population:
                    yield from self._write(replace(loop, population=population), texts[part], max_new_tokens)

    def _write_together(self, loop: Loop, texts: Sequence[Text], max_new_tokens: int) -> Iterator[Taken]:
        """Run the loop from where the texts are, and keep the record of each."""
        texts = texts if loop.population is None else loop.population.particles
        texts = [text for text in texts if text.finish_reason is None]
        remaining = max_new_tokens - len(texts[0].new_ids) if texts else 0
        if not remaining:
            return
        with loop.timer("prefill"):
            state = prefill(self.parts.lm, texts)
        for taken in loop.run(texts, state, remaining):
            for b, (text, k) in enumerate(zip(taken.texts, taken.chosen)):
                text.trace.append(taken.decision.step(b, k, taken.seconds, loop.writer, len(text.continuation)))
            yield taken

    def _trace(self, texts: Sequence[Text], scores: Tensor, explain: bool) -> Trace:
        """The record of finished texts; explained, with φ of each as it was after each token."""
        if explain:
            ends = [replace(text, continuation=text.continuation[: s.end]) for text in texts for s in text.trace]
            after = iter(scored(ends, self.verifier).tolist())
            for text in texts:
                text.trace = [replace(step, score=next(after)) for step in text.trace]
        told = [
            Told(text.context, text.continuation, score, text.finish_reason or "length", self._settings(text))
            for text, score in zip(texts, scores.tolist())
        ]
        return Trace([text.trace for text in texts], told)

    def _settings(self, text: Text) -> dict[str, Any]:
        """What decided a text, for its record."""
        terms = (text.verifier or self.verifier).terms
        return {**self.config.as_dict(), "verifier_strengths": [term.strength for term in terms]}

    def _finish(
        self, loop: Loop, texts: Sequence[Text]
    ) -> Iterator[tuple[Sequence[Text], Tensor, list[float] | None, Trace]]:
        """The one step after the last token: the texts that the caller gets, with all that is said of them."""
        kept, scores, log_evidence = self._kept(loop, texts)
        yield kept, scores, log_evidence, self._trace(kept, scores, loop.explain)

    def _kept(self, loop: Loop, texts: Sequence[Text]) -> tuple[Sequence[Text], Tensor, list[float] | None]:
        """The texts that the caller gets, their φ, and with particles the evidence for each."""
        population = loop.population
        if population is None:
            return texts, self._score(loop, texts), None
        particles = population.particles
        phi = self._score(loop, particles)
        population.finish(phi)
        kept = population.kept()
        return [particles[i] for i in kept], phi[kept], population.evidence()

    def _score(self, loop: Loop, texts: Sequence[Text]) -> Tensor:
        """φ of finished texts: (n,)."""
        parts = loop.room.spread("texts", len(texts), lambda rows: scored(texts[rows.start : rows.stop], self.verifier))
        return torch.cat(parts)

    def _stream(self, loop: Loop, text: Text, max_new_tokens: int, timeout: float | None) -> Iterator[str]:
        with told(partial(_best_so_far, loop, [text])):
            steps = limited(self._write(loop, [text], max_new_tokens), timeout)
            if loop.population is None:
                yield from self._stream_whole(loop, text, steps)
            else:
                yield from self._stream_chosen(loop, text, steps, max_new_tokens)

    def _stream_whole(self, loop: Loop, text: Text, steps: Iterator[Taken]) -> Iterator[str]:
        shown = 0
        for _ in steps:
            safe = len(text.continuation) - loop.writer.held_back(text)
            if safe > shown:
                yield text.continuation[shown:safe]
                shown = safe
        if len(text.continuation) > shown:
            yield text.continuation[shown:]

    def _stream_chosen(self, loop: Loop, text: Text, steps: Iterator[Taken], max_new_tokens: int) -> Iterator[str]:
        """With particles: every few tokens one is chosen, all go on from it, and what it says is shown."""
        population, shown = loop.population, 0
        assert population is not None
        for i, _ in enumerate(steps, 1):
            if i % CHECKPOINT or i == max_new_tokens:
                continue
            chosen = population.settle()
            safe = len(chosen.continuation) - loop.writer.held_back(chosen)
            if safe > shown:
                yield chosen.continuation[shown:safe]
                shown = safe
        (last,), _, _ = self._kept(loop, [text])
        yield last.continuation[shown:]


def _best_so_far(loop: Loop, texts: Sequence[Text]) -> Sequence[Text]:
    """The texts that are being written, and of particles those that would be kept."""
    population = loop.population
    return texts if population is None else [population.particles[i] for i in population.kept()]


def _masked_lm(given: Any, tokenizer: Any) -> Callable[[], MaskedLM] | None:
    """What makes the masked LM when it is first asked for, or None."""
    if given is None:
        return None
    if callable(given) and not isinstance(given, torch.nn.Module) and tokenizer is None:
        return partial(_loaded, given)
    return partial(_same, MaskedLM(*_pair("masked_lm", given, tokenizer)))


def _loaded(load: Callable[[], tuple[Any, Any]]) -> MaskedLM:
    return MaskedLM(*load())


def _same(made: MaskedLM) -> MaskedLM:  # a function with a name, so that engines can be pickled
    return made


def _pair(name: str, model: Any, tokenizer: Any) -> tuple[Any, Any]:
    if isinstance(model, tuple) and len(model) == 2 and tokenizer is None:
        return model
    if isinstance(model, tuple) or tokenizer is None:
        raise InputError(
            f"{name} must be a model with {name}_tokenizer, or (model, tokenizer), got {type(model).__name__}"
        )
    return model, tokenizer
