"""Control inside transformers' own `generate`: as a decoding loop, or as a logits processor.

lm.generate(**inputs, custom_generate=engine.custom_generate, do_sample=True, seed=0)
lm.generate(**inputs, logits_processor=[engine.logits_processor()])
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from transformers import LogitsProcessor
from transformers.generation import GenerateDecoderOnlyOutput, GenerationMixin

from scone.errors import InputError
from scone.failure import watched
from scone.forking import check_fork
from scone.lm import CausalLM, LMState, sent
from scone.lookahead.parts import LM_STATES
from scone.loop import Decision, Loop, commit, prefill
from scone.particles import CHECKPOINT, Population
from scone.processors import may_change_places, of_all, with_new
from scone.prompts import check_counts, check_seed
from scone.seeds import text_seed
from scone.text import Text, Writer, scored

if TYPE_CHECKING:
    from scone.decode import Scone

__all__ = ["SconeLogitsProcessor", "generate_with", "open_texts"]

_FAR = 1 << 20  # tokens that remain where nothing says how many


def generate_with(
    engine: Scone,
    model: Any,
    input_ids: Tensor,
    *,
    logits_processor: Any,  # transformers' list of them
    stopping_criteria: Any,
    generation_config: Any,
    streamer: Any = None,
    seed: int = 0,
    **model_kwargs: Any,
) -> Any:
    """The decoding loop that `generate(custom_generate=...)` runs; returns what `generate` returns.

    The prompts are those of `input_ids` (B, T), padded on the left; processors run before the candidates are picked.
    Where texts have ended before others the result holds no cache. With particles the streamer gets what has been chosen,
    every few tokens; at the end where a processor may keep state by rows.

    >>> from functools import partial
    >>> from scone.decode import Scone
    >>> engine = Scone.from_pretrained()
    >>> inputs = engine.lm_tokenizer("The movie was", return_tensors="pt")
    >>> engine.lm.generate(**inputs, custom_generate=partial(generate_with, engine), max_new_tokens=2).shape
    torch.Size([1, 5])
    """
    check_fork()
    check_seed(seed)
    _check_prompt(input_ids)
    _check_mode(generation_config, engine.config.particles)
    parts = engine.parts if model is engine.lm else engine.parts.with_lm(CausalLM(model, engine.lm_tokenizer))
    lm = parts.lm
    mask = model_kwargs.get("attention_mask")
    mask = torch.ones_like(input_ids) if mask is None else mask
    texts: Sequence[Text] = open_texts(engine, lm, input_ids, mask, seed)
    cache = model_kwargs.get("past_key_values")
    cached = cache.get_seq_length() if cache is not None else 0
    state = lm.read(input_ids[:, cached:], mask, cache)
    shown = _given_to_generate("streamer")  # has the prompt already
    streamer = shown if streamer is None else streamer
    if streamer is not None and streamer is not shown:
        streamer.put(input_ids.cpu())
    population, prompt, moving = None, input_ids, may_change_places(logits_processor)
    if engine.config.particles > 1:
        config = engine.config
        share = config.resample if moving else 0.0
        population = Population.of(texts, count=config.particles, keep=config.keep, share=share)
        each = torch.arange(len(texts)).repeat_interleave(config.particles)
        texts, state, prompt = population.particles, lm.select(state, each), input_ids[each.to(input_ids.device)]
    place = {id(text): b for b, text in enumerate(texts)}  # rows of the batch: the loop drops texts that have ended
    pad = next(iter(_ids(generation_config.pad_token_id)), next(iter(lm.stop_ids), 0))

    def process(living: Sequence[Text], logits: Tensor) -> Tensor:
        rows = [place[id(text)] for text in living]
        whole = of_all(logits.to(prompt.device), rows, len(texts)).clone()
        return logits_processor(with_new(prompt, texts, pad), whole)[rows]

    writer = Writer(lm, stop_token_ids=_ids(generation_config.eos_token_id))
    loop = Loop(parts, engine.config, engine.lookahead, writer, generation_config.do_sample, process, population)
    collected = _Collected(generation_config, lm.vocabulary, pad)
    told = 0  # tokens that the streamer got, where particles are chosen among
    steps = loop.run(texts, state, generation_config.max_length - prompt.shape[1])
    for i, taken in enumerate(watched(steps, lambda: texts), 1):
        rows = [place[id(text)] for text in taken.texts]
        collected.add(taken.decision, taken.state.logits, rows, like=prompt)
        written = with_new(prompt, texts, pad)
        if streamer is not None and population is None:
            streamer.put(written[:, -1].cpu())
        ended = stopping_criteria(written, collected.scores).tolist()
        for b, text in zip(rows, taken.texts):
            text.finish_reason = "stop" if ended[b] else None  # `generate` has the say, not the writer
        state = taken.state
        if streamer is not None and population is not None and moving and i % CHECKPOINT == 0:
            chosen = population.settle().new_ids
            for token in chosen[told:]:
                streamer.put(torch.tensor([token]))
            told = len(chosen)
    if population is not None:
        population.finish(scored(texts, parts.verifier))
        written = written[population.kept()]
        for column in written[:, prompt.shape[1] + told :].cpu().T if streamer is not None else ():
            streamer.put(column)
    if streamer is not None:
        streamer.end()
    if not generation_config.return_dict_in_generate:
        return written
    whole = state.cache if len(state.mask) == len(texts) and population is None else None
    found: dict[str, Any] = {"scores": collected.scores, "logits": collected.logits, "past_key_values": whole}
    return GenerateDecoderOnlyOutput(sequences=written, **found)  # type: ignore[arg-type]


class _Collected:
    """What `output_scores` and `output_logits` ask for; a row that has ended is sure of its padding."""

    def __init__(self, config: Any, vocabulary: int, pad: int) -> None:
        self.scores: tuple[Tensor, ...] | None = () if config.output_scores else None
        self.logits: tuple[Tensor, ...] | None = () if config.output_logits else None
        self._vocabulary, self._pad = vocabulary, pad

    def add(self, decision: Decision, logits: Tensor, rows: list[int], *, like: Tensor) -> None:
        """Enter a step of the rows that live; `like` has all rows."""
        if self.scores is not None:
            scores = torch.full((len(like), self._vocabulary), -torch.inf, device=like.device)
            scores[:, self._pad] = 0
            scores[rows] = _spread(decision.candidates.on_device.tokens, decision.log_p_star, scores[rows])
            self.scores = (*self.scores, scores)
        if self.logits is not None:
            self.logits = (*self.logits, of_all(logits.to(like.device), rows, len(like)))


def _given_to_generate(name: str) -> Any:
    """An argument of the call to `generate` that runs this loop, or None.

    transformers (5.22) hands some to its own loops only. It shows its streamer the prompt, so that a custom loop which asks
    nobody would leave whoever reads the streamer waiting for ever. The caller's frame is the one place that has them.
    """
    generate = inspect.unwrap(GenerationMixin.generate).__code__
    frame = inspect.currentframe()
    while frame is not None and frame.f_code is not generate:
        frame = frame.f_back
    return None if frame is None else frame.f_locals.get(name)


class SconeLogitsProcessor(LogitsProcessor):
    """Replaces the LM's scores by log p* over the candidates and -inf elsewhere; `engine.logits_processor()` makes one.

    It sees nothing of the LM but logits, and each text by itself: `particles` play no part in it. A lookahead that runs the LM does so on a cache of the processor's own, which
    grows with the texts; whatever does not continue what it saw last is read anew, so that one object serves any number
    of `generate` calls. Samplers of `generate` come after it: leave its `temperature`, `top_k` and `top_p` alone and set
    those of SconeConfig.

    >>> from scone.decode import Scone
    >>> engine = Scone.from_pretrained()
    >>> ids = engine.lm_tokenizer("The movie was", return_tensors="pt")["input_ids"]
    >>> scores = SconeLogitsProcessor(engine, max_new_tokens=1)(ids, engine.lm(ids).logits[:, -1])
    >>> int(scores.isfinite().sum())
    10
    """

    def __init__(self, engine: Scone, *, max_new_tokens: int | None = None, seed: int = 0) -> None:
        if max_new_tokens is not None:
            check_counts(max_new_tokens=max_new_tokens)
        check_seed(seed)
        self.engine = engine
        self.max_new_tokens = max_new_tokens
        self.seed = seed
        self._loop = engine.loop()
        self._last: _Seen | None = None

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor) -> torch.FloatTensor:
        """New scores (B, V); neither argument is changed."""
        _check_prompt(input_ids)
        texts, alive, state = self._continued(input_ids) or self._opened(input_ids)
        result = scores.clone()
        self._last = _Seen(input_ids, texts, [], None, None, 0)
        if alive:
            living = [texts[b] for b in alive]
            remaining = _FAR if self.max_new_tokens is None else self.max_new_tokens - len(living[0].new_ids) - 1
            remaining = max(0, remaining)
            decision = self._loop.weigh(living, scores[alive].float(), state, remaining)
            result[alive] = _spread(decision.candidates.on_device.tokens, decision.log_p_star, scores[alive])
            self._last = _Seen(input_ids, texts, alive, decision, state, remaining)
        return result  # type: ignore[return-value]

    def _opened(self, input_ids: Tensor) -> tuple[list[Text], list[int], LMState | None]:
        """Texts that are seen for the first time."""
        lm = self.engine.parts.lm
        padding = {lm.tokenizer.pad_token_id, *lm.stop_ids}
        lead = torch.tensor([_leading(row, padding) for row in input_ids.tolist()], device=input_ids.device)
        mask = torch.arange(input_ids.shape[1], device=input_ids.device)[None] >= lead[:, None]
        texts = open_texts(self.engine, lm, input_ids, mask, self.seed)
        return texts, list(range(len(texts))), prefill(lm, texts) if self._runs_lm else None

    def _continued(self, input_ids: Tensor) -> tuple[list[Text], list[int], LMState | None] | None:
        """The texts of the last call, each with one token more; None where the rows are not that."""
        last = self._last
        if last is None or last.ids.shape[1] + 1 != input_ids.shape[1]:
            return None
        parents = [(last.ids == row[:-1]).all(1).nonzero() for row in input_ids]
        if not all(len(parent) for parent in parents):
            return None
        rows = [int(parent[min(_nth(input_ids, b), len(parent) - 1)]) for b, parent in enumerate(parents)]
        texts = [self._grown(last, r, int(input_ids[b, -1])) for b, r in enumerate(rows)]
        alive = [b for b, text in enumerate(texts) if text.finish_reason is None]
        state = None
        if last.state is not None and last.decision is not None and alive:
            before = [last.alive.index(rows[b]) for b in alive]
            tokens = [texts[b].new_ids[-1] for b in alive]
            state = commit(self.engine.parts.lm, last.state, before, tokens, last.decision)
        return texts, alive, state

    def _grown(self, last: _Seen, row: int, token: int) -> Text:
        old = last.texts[row]
        if old.finish_reason is not None:
            return old
        text = replace(old, new_ids=list(old.new_ids))
        assert last.decision is not None
        self._loop.take(text, last.decision, last.alive.index(row), token, last.remaining)
        return text

    @property
    def _runs_lm(self) -> bool:
        return LM_STATES in self.engine.lookahead.needs and self.engine.config.strength > 0


@dataclass(frozen=True)
class _Seen:
    """What the processor remembers of its last call."""

    ids: Tensor  # (B, T)
    texts: list[Text]
    alive: list[int]  # rows that are decided on
    decision: Decision | None
    state: LMState | None  # of the rows that are alive
    remaining: int


def open_texts(engine: Scone, lm: CausalLM, input_ids: Tensor, mask: Tensor, seed: int) -> list[Text]:
    """A Text for each row of left-padded ids; equal rows are numbered, so that each draws its own tokens."""
    copies: Counter[tuple[int, ...]] = Counter()
    texts = []
    for row, real in zip(input_ids.cpu(), mask.bool().cpu()):
        ids = row[real].tolist()
        own = text_seed(seed, copies[tuple(ids)], ids)
        texts.append(Text(prompt_ids=ids, seed=own, **engine.judging(lm.decode(ids))))
        copies[tuple(ids)] += 1
    return texts


def _spread(tokens: Tensor, log_p_star: Tensor, like: Tensor) -> Tensor:
    """(B, V) scores: log p* at the candidates and -inf elsewhere."""
    spread = torch.full_like(like, -torch.inf)
    return spread.scatter(1, sent(tokens, like.device), sent(log_p_star, like.device).to(like.dtype))


def _nth(input_ids: Tensor, b: int) -> int:
    """How many earlier rows have the same past as row b."""
    return int((input_ids[:b, :-1] == input_ids[b, :-1]).all(1).sum())


def _leading(row: list[int], padding: set[int | None]) -> int:
    count = 0
    while count < len(row) - 1 and row[count] in padding:
        count += 1
    return count


def _ids(value: Any) -> list[int]:
    if value is None:
        return []
    return [int(v) for v in value] if isinstance(value, list | tuple) else [int(value)]


def _check_prompt(input_ids: Tensor) -> None:
    if not input_ids.shape[1]:
        raise InputError("input_ids must hold the prompt's tokens, got none (inputs_embeds alone?)")


def _check_mode(config: Any, particles: int) -> None:
    for name in ("output_scores", "output_logits"):
        if particles > 1 and config.return_dict_in_generate and getattr(config, name):
            raise InputError(f"{name} must be False where texts are written as particles, got particles={particles}")
    if config.num_beams != 1:
        raise InputError(f"num_beams must be 1 with custom_generate, got {config.num_beams}")
    for name in ("prompt_lookup_num_tokens", "assistant_early_exit"):
        if getattr(config, name, None) is not None:
            raise InputError(f"{name} must be None with custom_generate, got {getattr(config, name)}")
    assistant = _given_to_generate("assistant_model")
    if assistant is not None:
        raise InputError(f"assistant_model must be None with custom_generate, got {type(assistant).__name__}")
    for name in ("output_attentions", "output_hidden_states"):
        if config.return_dict_in_generate and getattr(config, name):
            raise InputError(f"{name} must be False with custom_generate, got True")
