"""Control inside transformers' own `generate`: as a decoding loop, or as a logits processor.

lm.generate(**inputs, custom_generate=engine.custom_generate, do_sample=True, seed=0)
lm.generate(**inputs, logits_processor=[engine.logits_processor()])
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from transformers import LogitsProcessor
from transformers.generation import GenerateDecoderOnlyOutput, GenerationMixin

from scone.errors import InputError
from scone.lm import CausalLM, LMState
from scone.output import Timer
from scone.prompts import check_counts, check_seed
from scone.sampling import Candidates, choose, propose
from scone.seeds import text_seed, token_seed
from scone.text import Text, Writer

if TYPE_CHECKING:
    from scone.decode import Decision, Scone

__all__ = ["SconeLogitsProcessor", "generate_with"]

_FAR = 1 << 20  # tokens that remain where nothing says how many


def generate_with(
    engine: Scone,
    model: Any,
    input_ids: Tensor,
    *,
    logits_processor: Callable[[Tensor, Tensor], Tensor],
    stopping_criteria: Any,
    generation_config: Any,
    streamer: Any = None,
    seed: int = 0,
    **model_kwargs: Any,
) -> Any:
    """The decoding loop that `generate(custom_generate=...)` runs; returns what `generate` returns.

    The prompts are those of `input_ids` (B, T), padded on the left; processors run before the candidates are picked.

    >>> from functools import partial
    >>> from scone.decode import Scone
    >>> engine = Scone.from_pretrained()
    >>> inputs = engine.lm_tokenizer("The movie was", return_tensors="pt")
    >>> engine.lm.generate(**inputs, custom_generate=partial(generate_with, engine), max_new_tokens=2).shape
    torch.Size([1, 5])
    """
    check_seed(seed)
    _check_prompt(input_ids)
    _check_mode(generation_config)
    lm = engine.causal_lm if model is engine.lm else CausalLM(model, engine.lm_tokenizer)
    mask = model_kwargs.get("attention_mask")
    mask = torch.ones_like(input_ids) if mask is None else mask
    texts = open_texts(lm, input_ids, mask, seed)
    writer = Writer(lm, stop_token_ids=_ids(generation_config.eos_token_id))
    pad = next(iter(_ids(generation_config.pad_token_id)), next(iter(lm.stop_ids), 0))
    cache = model_kwargs.get("past_key_values")
    cached = cache.get_seq_length() if cache is not None else 0
    state = lm.read(input_ids[:, cached:], mask, cache)
    finished = torch.zeros(len(texts), dtype=torch.bool, device=input_ids.device)
    scores: list[Tensor] = []
    logits: list[Tensor] = []
    shown = _streamer_of_generate()  # has the prompt already
    streamer = shown if streamer is None else streamer
    if streamer is not None and streamer is not shown:
        streamer.put(input_ids.cpu())
    while True:
        processed = logits_processor(input_ids, state.logits.to(input_ids.device))
        candidates = propose(processed, engine.config)
        remaining = generation_config.max_length - input_ids.shape[1] - 1
        tokens, log_p_star = _step(
            engine,
            lm,
            texts,
            candidates,
            writer,
            remaining,
            state,
            (~finished).nonzero()[:, 0],
            generation_config.do_sample,
        )
        if generation_config.output_scores:
            scores.append(_spread(candidates.tokens, log_p_star, processed))
        if generation_config.output_logits:
            logits.append(state.logits.to(input_ids.device))
        tokens = torch.where(finished, pad, tokens.to(input_ids.device))
        input_ids = torch.cat([input_ids, tokens[:, None]], dim=1)
        if streamer is not None:
            streamer.put(tokens.cpu())
        finished = finished | stopping_criteria(input_ids, tuple(scores) or None)
        if bool(finished.all()):
            break
        state = lm.step(state, tokens)
    if streamer is not None:
        streamer.end()
    if not generation_config.return_dict_in_generate:
        return input_ids
    collected: dict[str, Any] = {
        "sequences": input_ids,
        "scores": tuple(scores) if generation_config.output_scores else None,
        "logits": tuple(logits) if generation_config.output_logits else None,
        "past_key_values": state.cache,
    }
    return GenerateDecoderOnlyOutput(**collected)


def _streamer_of_generate() -> Any:
    """The `streamer` of the call to `generate` that runs this loop, or None.

    transformers (5.22) shows its streamer the prompt but hands it to its own loops only, so that a custom loop which
    asks nobody would leave whoever reads the streamer waiting for ever. The caller's frame is the one place that has it.
    """
    generate = inspect.unwrap(GenerationMixin.generate).__code__
    frame = inspect.currentframe()
    while frame is not None and frame.f_code is not generate:
        frame = frame.f_back
    return None if frame is None else frame.f_locals.get("streamer")


def _step(
    engine: Scone,
    lm: CausalLM,
    texts: list[Text],
    candidates: Candidates,
    writer: Writer,
    remaining: int,
    state: LMState,
    alive: Tensor,
    do_sample: bool,
) -> tuple[Tensor, Tensor]:
    """Next tokens (B,) and log p* (B, K); texts that have ended keep their most probable candidate."""
    alive = alive.cpu()
    some = Candidates(candidates.tokens[alive], candidates.log_p[alive])
    living = [texts[b] for b in alive.tolist()]
    decision = engine.decide(
        living, some, writer, remaining=remaining, timer=Timer(),
        state=lm.select(state, alive) if engine.config.init == "lm" else None,
    )  # fmt: skip
    if do_sample:
        seeds, step = [token_seed(text.seed) for text in living], len(living[0].new_ids)
        chosen = choose(some.tokens, decision.log_p_star, vocabulary=lm.vocabulary, seeds=seeds, step=step)
    else:
        chosen = decision.log_p_star.argmax(-1)
    for row, (text, k) in enumerate(zip(living, chosen.tolist())):
        engine.controller.carry(text, decision.judged, row, k, engine.config, remaining=remaining)
        writer.append(text, int(some.tokens[row, k]))
    tokens = candidates.tokens[:, 0].clone()
    tokens[alive] = some.tokens.gather(1, chosen[:, None])[:, 0]
    log_p_star = candidates.log_p.log_softmax(-1)
    log_p_star[alive] = decision.log_p_star
    return tokens, log_p_star


class SconeLogitsProcessor(LogitsProcessor):
    """Replaces the LM's scores by log p* over the candidates and -inf elsewhere; `engine.logits_processor()` makes one.

    It keeps each text's lookahead from step to step and starts anew for whatever does not continue what it saw last,
    so that one object serves any number of `generate` calls. Samplers of `generate` come after it: leave its
    `temperature`, `top_k` and `top_p` alone and set those of SconeConfig.

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
        self._writer = Writer(engine.causal_lm)
        self._last: _Seen | None = None

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor) -> torch.FloatTensor:
        """New scores (B, V); neither argument is changed."""
        _check_prompt(input_ids)
        texts = self._texts(input_ids)
        candidates = propose(scores.float(), self.engine.config)
        alive = [b for b, text in enumerate(texts) if text.finish_reason is None]
        result = scores.clone()
        self._last = _Seen(input_ids, texts)
        if alive:
            some = Candidates(candidates.tokens[alive], candidates.log_p[alive])
            living = [texts[b] for b in alive]
            remaining = _FAR if self.max_new_tokens is None else self.max_new_tokens - len(living[0].new_ids) - 1
            decision = self.engine.decide(living, some, self._writer, remaining=max(0, remaining), timer=Timer())
            result[alive] = _spread(some.tokens, decision.log_p_star, scores[alive])
            self._last = _Seen(input_ids, texts, alive, decision, max(0, remaining))
        return result  # type: ignore[return-value]

    def _texts(self, input_ids: Tensor) -> list[Text]:
        """The texts of the rows: those of the last call with one token more, or new ones."""
        last = self._last
        if last is not None and last.ids.shape[1] + 1 == input_ids.shape[1]:
            parents = [(last.ids == row[:-1]).all(1).nonzero() for row in input_ids]
            if all(len(parent) for parent in parents):
                rows = [int(parent[min(_nth(input_ids, b), len(parent) - 1)]) for b, parent in enumerate(parents)]
                return [self._grown(last, r, int(input_ids[b, -1])) for b, r in enumerate(rows)]
        lm = self.engine.causal_lm
        padding = {lm.tokenizer.pad_token_id, *lm.stop_ids}
        lead = torch.tensor([_leading(row, padding) for row in input_ids.tolist()], device=input_ids.device)
        mask = torch.arange(input_ids.shape[1], device=input_ids.device)[None] >= lead[:, None]
        return open_texts(lm, input_ids, mask, self.seed)

    def _grown(self, last: _Seen, row: int, token: int) -> Text:
        old = last.texts[row]
        text = Text(old.context, old.prompt_ids, old.seed, list(old.new_ids), old.continuation, old.futures)
        text.finish_reason = old.finish_reason
        if text.finish_reason is not None:
            return text
        if last.decision is not None and row in last.alive:
            at = last.alive.index(row)
            found = (last.decision.candidates.tokens[at] == token).nonzero()
            k = int(found[0]) if len(found) else -1
            self.engine.controller.carry(
                text, last.decision.judged, at, k, self.engine.config, remaining=last.remaining
            )
        self._writer.append(text, token)
        return text


class _Seen:
    """What the processor remembers of its last call."""

    def __init__(
        self,
        ids: Tensor,
        texts: list[Text],
        alive: Sequence[int] = (),
        decision: Decision | None = None,
        remaining: int = 0,
    ) -> None:
        self.ids, self.texts, self.alive, self.decision, self.remaining = ids, texts, list(alive), decision, remaining


def open_texts(lm: CausalLM, input_ids: Tensor, mask: Tensor, seed: int) -> list[Text]:
    """A Text for each row of left-padded ids; equal rows are numbered, so that each draws its own tokens."""
    copies: Counter[tuple[int, ...]] = Counter()
    texts = []
    for row, real in zip(input_ids.cpu(), mask.bool().cpu()):
        ids = row[real].tolist()
        texts.append(Text(lm.decode(ids), ids, text_seed(seed, copies[tuple(ids)], ids)))
        copies[tuple(ids)] += 1
    return texts


def _spread(tokens: Tensor, log_p_star: Tensor, like: Tensor) -> Tensor:
    """(B, V) scores: log p* at the candidates and -inf elsewhere."""
    spread = torch.full_like(like, -torch.inf)
    return spread.scatter(1, tokens.to(like.device), log_p_star.to(like.device, like.dtype))


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


def _check_mode(config: Any) -> None:
    if config.num_beams != 1:
        raise InputError(f"num_beams must be 1 with custom_generate, got {config.num_beams}")
    for name in ("output_attentions", "output_hidden_states"):
        if config.return_dict_in_generate and getattr(config, name):
            raise InputError(f"{name} must be False with custom_generate, got True")
