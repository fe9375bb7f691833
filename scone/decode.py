"""The engine: prefill, propose, look ahead, linearise, estimate, reweigh, sample, commit.

engine = Scone.from_pretrained(target="positive")
engine.generate(["The movie was"], max_new_tokens=25, seed=0).texts
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from scone.conditionals import Conditionals
from scone.config import SconeConfig
from scone.control import Controller, Judged
from scone.errors import InputError, ModelError
from scone.estimate import all_hold, reweigh
from scone.hf import SconeLogitsProcessor, generate_with
from scone.lm import CausalLM, LMState
from scone.loading import EMBEDDED, load_causal_lm, load_masked_lm
from scone.output import Output, Step, Timer
from scone.prompts import Prompt, check_counts, check_sampling, check_stops, open_prompts
from scone.sampling import Candidates, choose, propose
from scone.seeds import token_seed
from scone.text import Text, Writer
from scone.verifier import Expression, Verifier

__all__ = ["Output", "Scone", "SconeConfig", "Step", "Verifier"]

Processor = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Decision:
    """One step for B texts, before a token is taken."""

    candidates: Candidates
    judged: Judged
    q: Tensor  # (B, K) product over the verifier's terms, each to its strength
    log_p_star: Tensor  # (B, K)

    def step(self, b: int, chosen: int | None, seconds: dict[str, float]) -> Step:
        """The record of one text's step, without the places that hold no candidate."""
        real = ~self.candidates.log_p[b].isneginf()
        tokens, log_p = self.candidates.tokens[b][real], self.candidates.log_p[b][real]
        return Step(tokens, log_p, self.q[b][real], self.log_p_star[b][real], chosen=chosen, seconds=seconds)


class Scone:
    """Steers a causal LM so that its texts satisfy a verifier.

    `lm` and `masked_lm` are models with their tokenizers beside them, or (model, tokenizer) pairs; `verifier` is a
    Verifier or an expression of verifiers.

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
        masked_lm: Any,
        verifier: Expression,
        config: SconeConfig | None = None,
        *,
        lm_tokenizer: Any = None,
        masked_lm_tokenizer: Any = None,
    ) -> None:
        if not isinstance(verifier, Expression):
            raise ModelError(f"verifier must be a Verifier, got {type(verifier).__name__}")
        if config is not None and not isinstance(config, SconeConfig):
            raise InputError(f"config must be a SconeConfig, got {type(config).__name__}")
        self.config = config or SconeConfig()
        self.causal_lm = CausalLM(*_pair("lm", lm, lm_tokenizer))
        mlm = Conditionals(*_pair("masked_lm", masked_lm, masked_lm_tokenizer))
        self.controller = Controller(self.causal_lm, mlm, verifier)

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

        Ready objects are taken as they are: (model, tokenizer) pairs, and for the verifier also a Verifier. Without arguments: the models that come with scone, steered towards positive sentiment. `device_map` is for
        the LM; the masked LM and the verifier go to `device`. Weights are read from safetensors only.

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
        elif isinstance(verifier, tuple):
            if target is None:
                raise InputError("target must be a label of the verifier, got None")
            verifier = Verifier(*verifier, target=target)
        elif target is not None:
            raise InputError(f"target must be None where verifier is a ready object, got {target!r}")
        lm = load_causal_lm(lm, device_map=device_map, **common) if isinstance(lm, str) else lm
        masked_lm = load_masked_lm(masked_lm, **common) if isinstance(masked_lm, str) else masked_lm
        return cls(lm, masked_lm, verifier, config)

    @property
    def lm(self) -> Any:
        """The causal LM, as given."""
        return self.causal_lm.model

    @property
    def lm_tokenizer(self) -> Any:
        """The causal LM's tokenizer."""
        return self.causal_lm.tokenizer

    @property
    def masked_lm(self) -> Any:
        """The masked LM, as given."""
        return self.controller.mlm.model

    @property
    def masked_lm_tokenizer(self) -> Any:
        """The masked LM's tokenizer."""
        return self.controller.mlm.tokenizer

    @property
    def verifier(self) -> Any:
        """The verifier; `engine.verifier.score(texts)` is φ of finished texts."""
        return self.controller.verifier

    def with_config(self, config: SconeConfig | None = None, **changes: Any) -> Scone:
        """The same models with other options.

        >>> Scone.from_pretrained().with_config(strength=0).config.strength
        0
        """
        if config is not None and not isinstance(config, SconeConfig):
            raise InputError(f"config must be a SconeConfig, got {type(config).__name__}")
        other = object.__new__(type(self))
        other.__dict__ = dict(self.__dict__)
        other.config = (config or self.config).replace(**changes)
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
    ) -> Output:
        """Continue prompts under control.

        prompts: texts, or conversations (lists of {"role", "content"}) for the LM's chat template
        seed: with the same seed a prompt gets the same continuations, whatever else is in the batch
        do_sample: False takes the most probable candidate after reweighing
        stop: strings that end a text and are cut from it; the LM's own end-of-text tokens always end it
        logits_processor: as in transformers; they see the LM's logits before the candidates are picked

        >>> engine = Scone.from_pretrained()
        >>> out = engine.generate(["The food was", "My day"], max_new_tokens=4, num_return_sequences=2, seed=1)
        >>> len(out.texts), len(out.trace[0]) <= 4, out.scores.shape
        (4, True, torch.Size([4]))
        """
        check_counts(max_new_tokens=max_new_tokens, num_return_sequences=num_return_sequences)
        check_sampling(logits_processor, do_sample)
        writer = self._writer(stop, stop_token_ids)
        texts = open_prompts(self.causal_lm, prompts, max_new_tokens, copies=num_return_sequences, seed=seed)
        timer = Timer()
        seconds: dict[str, float] = {}
        for spent in self._run(texts, writer, max_new_tokens, timer, do_sample, logits_processor):
            for phase, value in spent.items():
                seconds[phase] = seconds.get(phase, 0.0) + value
        judged = [text.text for text in texts]
        return Output(
            texts=judged,
            continuations=[text.continuation for text in texts],
            token_ids=[text.new_ids for text in texts],
            scores=self.verifier.score(judged),
            finish_reasons=[text.finish_reason or "length" for text in texts],
            trace=[text.trace for text in texts],
            seconds=seconds,
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
    ) -> Iterator[str]:
        """The continuation of one prompt, piece by piece as it is written; together they are `generate`'s.

        >>> engine = Scone.from_pretrained()
        >>> pieces = list(engine.stream("The movie was", max_new_tokens=5, seed=0))
        >>> "".join(pieces) == engine.generate(["The movie was"], max_new_tokens=5, seed=0).continuations[0]
        True
        """
        check_counts(max_new_tokens=max_new_tokens)
        check_sampling(logits_processor, do_sample)
        writer = self._writer(stop, stop_token_ids)
        (text,) = open_prompts(self.causal_lm, [prompt], max_new_tokens, copies=1, seed=seed)
        return self._stream(text, writer, max_new_tokens, do_sample, logits_processor)

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
        texts = open_prompts(self.causal_lm, [prompt], max_new_tokens, copies=1, seed=seed)
        timer = Timer()
        state = self._prefill(texts, timer)
        decision = self._decide(texts, state, self._writer((), ()), max_new_tokens - 1, timer, logits_processor)
        return decision.step(0, None, timer.take())

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

    def _run(
        self,
        texts: list[Text],
        writer: Writer,
        max_new_tokens: int,
        timer: Timer,
        do_sample: bool,
        processors: Sequence[Processor],
    ) -> Iterator[dict[str, float]]:
        """The loop: after each step it yields the seconds by phase; texts that have ended leave the batch."""
        state = self._prefill(texts, timer)
        for i in range(max_new_tokens):
            remaining = max_new_tokens - i - 1
            decision = self._decide(texts, state, writer, remaining, timer, processors)
            with timer("sample"):
                chosen = self._choose(texts, decision, do_sample)
            for b, (text, k) in enumerate(zip(texts, chosen)):
                self.controller.carry(text, decision.judged, b, k, self.config, remaining=remaining)
                writer.append(text, int(decision.candidates.tokens[b, k]))
            alive = [b for b, text in enumerate(texts) if text.finish_reason is None]
            if alive and remaining:
                with timer("commit"):
                    state = self._commit(state, texts, alive, chosen, decision.judged)
            seconds = timer.take()
            for b, (text, k) in enumerate(zip(texts, chosen)):
                text.trace.append(decision.step(b, k, seconds))
            yield seconds
            texts = [texts[b] for b in alive]
            if not texts:
                return

    def _prefill(self, texts: Sequence[Text], timer: Timer) -> LMState:
        """Each different prompt goes through the LM once."""
        with timer("prefill"):
            unique = list(dict.fromkeys(tuple(text.prompt_ids) for text in texts))
            state = self.causal_lm.prefill(unique)
            if len(unique) == len(texts):
                return state
            place = {prompt: i for i, prompt in enumerate(unique)}
            return self.causal_lm.select(state, torch.tensor([place[tuple(text.prompt_ids)] for text in texts]))

    def _decide(
        self,
        texts: Sequence[Text],
        state: LMState,
        writer: Writer,
        remaining: int,
        timer: Timer,
        processors: Sequence[Processor],
    ) -> Decision:
        """Propose candidates, judge them, reweigh."""
        with timer("propose"):
            candidates = propose(processed(texts, state.logits, processors), self.config)
        return self.decide(texts, candidates, writer, remaining=remaining, timer=timer, state=state)

    def decide(
        self,
        texts: Sequence[Text],
        candidates: Candidates,
        writer: Writer,
        *,
        remaining: int,
        timer: Timer,
        state: LMState | None = None,
    ) -> Decision:
        """Judge candidates and reweigh them; without strength nothing is judged and p* is p."""
        terms = self.verifier.terms
        strengths = [term.strength for term in terms]
        if self.config.strength == 0 or not any(strengths):
            judged = Judged(torch.ones(len(terms), *candidates.tokens.shape), {})
        else:
            judged = self.controller.judge(
                texts, candidates, writer, self.config, remaining=remaining, timer=timer, state=state
            )
        with timer("reweigh"):
            log_p_star = reweigh(candidates.log_p, judged.q, self.config, strengths=strengths)
            q = all_hold(judged.q, strengths)
        return Decision(candidates, judged, q if len(terms) > 1 else judged.q[0], log_p_star)

    def _choose(self, texts: Sequence[Text], decision: Decision, do_sample: bool) -> list[int]:
        if not do_sample:
            return decision.log_p_star.argmax(-1).tolist()
        return choose(
            decision.candidates.tokens,
            decision.log_p_star,
            vocabulary=self.causal_lm.vocabulary,
            seeds=[token_seed(text.seed) for text in texts],
            step=len(texts[0].new_ids),
        ).tolist()

    def _commit(
        self, state: LMState, texts: Sequence[Text], alive: list[int], chosen: Sequence[int], judged: Judged
    ) -> LMState:
        """One more token of each living text goes through the LM, unless a lookahead has taken it through already."""
        lm = self.causal_lm
        place = judged.rows if judged.read is not None else {}
        read = [b for b in alive if (b, chosen[b]) in place]
        unread = [b for b in alive if (b, chosen[b]) not in place]
        if unread:
            state = lm.select(state, torch.tensor(unread)) if len(unread) < len(texts) else state
            state = lm.step(state, torch.tensor([texts[b].new_ids[-1] for b in unread]))
        if not read or judged.read is None:
            return state
        known = lm.select(judged.read, torch.tensor([place[b, chosen[b]] for b in read]))
        order = {b: row for row, b in enumerate([*read, *unread])}
        return lm.join(known, state, [order[b] for b in alive]) if unread else known

    def _stream(
        self, text: Text, writer: Writer, max_new_tokens: int, do_sample: bool, processors: Sequence[Processor]
    ) -> Iterator[str]:
        shown = 0
        for _ in self._run([text], writer, max_new_tokens, Timer(), do_sample, processors):
            safe = len(text.continuation) - writer.held_back(text)
            if safe > shown:
                yield text.continuation[shown:safe]
                shown = safe
        if len(text.continuation) > shown:
            yield text.continuation[shown:]

    def _writer(self, stop: str | Sequence[str], stop_token_ids: Sequence[int]) -> Writer:
        strings = check_stops(stop, stop_token_ids, vocabulary=self.causal_lm.vocabulary)
        return Writer(self.causal_lm, stop=strings, stop_token_ids=stop_token_ids)


def _pair(name: str, model: Any, tokenizer: Any) -> tuple[Any, Any]:
    if isinstance(model, tuple) and len(model) == 2 and tokenizer is None:
        return model
    if isinstance(model, tuple) or tokenizer is None:
        raise InputError(
            f"{name} must be a model with {name}_tokenizer, or (model, tokenizer), got {type(model).__name__}"
        )
    return model, tokenizer


def processed(texts: Sequence[Text], logits: Tensor, processors: Sequence[Processor]) -> Tensor:
    """The LM's logits after the processors, each text by itself so that padding plays no part."""
    if not processors:
        return logits
    rows = []
    for text, row in zip(texts, logits):
        ids = torch.tensor([[*text.prompt_ids, *text.new_ids]], device=logits.device)
        scores = row[None]
        for processor in processors:
            scores = processor(ids, scores)
        rows.append(scores)
    return torch.cat(rows)
