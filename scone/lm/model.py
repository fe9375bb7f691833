"""The causal LM with its cache: prefill once, then one new token a step; forks for rollouts share what is cached."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from scone.blame import blamed
from scone.errors import InputError, ModelError
from scone.lm.masks import attention_mask
from scone.lm.tables import Embeddings, place_of, rows_of
from scone.lm.tokens import check_known, special_frame
from scone.lm.transfer import check_finite, fetched, sent
from scone_kernels import LikelyRows, likely_rows, likely_rows_from_logits
from scone_kernels.inference import accelerate

__all__ = ["CausalLM", "LMState"]

_OVERLAP = 16  # tokens decoded with those that are added, so that spaces and split characters come out right


@dataclass(frozen=True)
class LMState:
    """What the LM knows of B texts: the cache of all tokens, and the logits of the next one.

    >>> from scone.embedded import load_lm
    >>> lm = CausalLM(*load_lm())
    >>> lm.prefill([lm.encode("One"), lm.encode("One two")]).mask
    tensor([[0, 1],
            [1, 1]])
    """

    cache: Any
    mask: Tensor  # (B, T) 1 where a token is real: texts are padded on the left
    ready: Tensor | None  # (B, V) float32 logits, or None where only `hidden` is known so far
    hidden: Tensor | None = None  # (B, H) what the head makes the logits of
    head: Callable[[Tensor], Tensor] | None = None
    pads: tuple[int, ...] | None = None  # (B,) how many zeros the mask has in each row, where the host knows

    @cached_property
    def logits(self) -> Tensor:
        """(B, V) float32; made when first asked for where the state holds what comes before the head."""
        if self.ready is not None:
            return self.ready
        assert self.hidden is not None and self.head is not None
        return self.head(self.hidden).float()


class CausalLM:
    """A causal LM of transformers and its tokenizer.

    >>> from scone.embedded import load_lm
    >>> lm = CausalLM(*load_lm())
    >>> state = lm.prefill([lm.encode("The movie was")])
    >>> lm.decode([int(state.logits.argmax())])
    ' a'
    """

    def __init__(self, model: Any, tokenizer: Any) -> None:
        if not hasattr(model, "forward") or getattr(model, "get_output_embeddings", lambda: None)() is None:
            raise ModelError(f"lm must be a causal LM of transformers with an output head, got {type(model).__name__}")
        self.model = model
        self._fast = accelerate(model, evaluating=True)
        self._embeddings = Embeddings(model)
        self._going: Tensor | None = None
        self.tokenizer = tokenizer
        self.name = type(model).__name__
        accepts = inspect.signature(model.forward).parameters
        self._accepts_positions = "position_ids" in accepts
        self._extra = {"logits_to_keep": 1} if "logits_to_keep" in accepts else {}
        self.stop_ids = frozenset(_stop_ids(model, tokenizer))

    @classmethod
    def from_pretrained(cls, name: str, *, device: Any = None) -> CausalLM:
        """Load one by name: a Hub id, a folder, or "embedded".

        >>> CausalLM.from_pretrained("embedded").name
        'LlamaForCausalLM'
        """
        from scone.loading import load_causal_lm

        return cls(*load_causal_lm(name, device=device))

    @property
    def device(self) -> torch.device:
        """Where its inputs go: the device of the input embeddings, which `device_map` may put apart from the rest."""
        return place_of(self.model.get_input_embeddings())

    @property
    def max_length(self) -> int | None:
        """Positions that the model has, or None where it names no limit."""
        return getattr(self.model.config.get_text_config(), "max_position_embeddings", None)

    @property
    def vocabulary(self) -> int:
        """Rows of the output head."""
        return rows_of(self.model)

    def encode(self, text: str) -> list[int]:
        """Token ids of a prompt, with the special tokens that the tokenizer puts in front."""
        return list(self.tokenizer(text)["input_ids"])

    def encode_open(self, text: str) -> list[int]:
        """Token ids of a text that goes on: with the special tokens that belong in front, and none behind; never empty."""
        ids = [*self._opening, *self.tokenizer(text, add_special_tokens=False)["input_ids"]]
        return ids or [next(iter(self.stop_ids), 0)]

    @cached_property
    def _opening(self) -> list[int]:
        return special_frame(self.tokenizer)[0]

    def encode_chat(self, messages: Sequence[dict[str, str]]) -> list[int]:
        """Token ids of a conversation by the tokenizer's chat template, up to where the reply begins."""
        if not getattr(self.tokenizer, "chat_template", None):
            raise InputError(
                "prompts holds a list of messages, but the tokenizer of the lm has no chat template: expected strings"
            )
        encoded = self.tokenizer.apply_chat_template(
            list(messages), add_generation_prompt=True, tokenize=True, return_dict=True
        )
        return list(encoded["input_ids"])

    def decode(self, ids: Sequence[int]) -> str:
        """Text of token ids, without special tokens and without a last character of which only some bytes are there."""
        text = self.tokenizer.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return text.rstrip("\N{REPLACEMENT CHARACTER}")

    def added(self, before: Sequence[int], more: Sequence[int]) -> str:
        """What more tokens add to the text of those before them."""
        lead = list(before)[-_OVERLAP:]
        return self.decode([*lead, *more])[len(self.decode(lead)) :]

    def prefill(self, prompts: Sequence[Sequence[int]]) -> LMState:
        """Run the prompts through the LM, padded on the left to the longest."""
        check_known("lm", max(map(max, prompts)), self._embeddings.rows)
        width = max(map(len, prompts))
        filler = next(iter(self.stop_ids), 0)
        ids = sent([[filler] * (width - len(p)) + list(p) for p in prompts], self.device)
        mask = sent([[0] * (width - len(p)) + [1] * len(p) for p in prompts], self.device)
        return self.read(ids, mask, None, pads=tuple(width - len(p) for p in prompts))

    def step(self, state: LMState, tokens: Tensor, *, headless: bool = False) -> LMState:
        """The state after one more token for each text; tokens: (B,), or input embeddings (B, H).

        The given state's cache grows: fork it first. `headless`: make logits only when they are asked for.
        """
        mask = torch.cat([state.mask, state.mask.new_ones(len(tokens), 1)], dim=1)
        return self.read(sent(tokens, self.device)[:, None], mask, state.cache, headless=headless, pads=state.pads)

    def select(self, state: LMState, rows: Tensor) -> LMState:
        """The state of some rows, in that order and perhaps several times; the given state stays as it was.

        rows: on the CPU, so that nobody waits for them
        """
        wanted = rows.tolist()
        if wanted == list(range(len(state.mask))):
            return replace(state, cache=_fork_cache(state.cache))
        rows = sent(rows, self.device)
        cache, mask = _select_cache(state.cache, rows), state.mask[rows]
        pads = None if state.pads is None else tuple(state.pads[row] for row in wanted)
        if state.hidden is not None:
            return LMState(cache, mask, None, _rows_of(state.hidden, rows), state.head, pads)
        return LMState(cache, mask, _rows_of(state.logits, rows), pads=pads)

    def join(self, first: LMState, second: LMState, order: Sequence[int]) -> LMState:
        """The rows of two states, in the order given; the one that has read fewer tokens is padded on the left."""
        rows, width = sent(list(order), self.device), max(first.mask.shape[1], second.mask.shape[1])
        more = [width - state.mask.shape[1] for state in (first, second)]
        mask = torch.cat([pad(state.mask, (own, 0)) for state, own in zip((first, second), more)])[rows]
        pads = None
        if first.pads is not None and second.pads is not None:
            zeros = [own + more[0] for own in first.pads] + [own + more[1] for own in second.pads]
            pads = tuple(zeros[row] for row in order)
        cache = _join_caches(first.cache, second.cache, rows)
        return LMState(cache, mask, _rows_of(torch.cat([first.logits, second.logits]), rows), pads=pads)

    def narrow(self, state: LMState) -> LMState:
        """The state without the columns that are padding in every row: what is left of texts that have gone.

        A cache whose layers do not all keep every token stays as it is.
        """
        lead = int(state.mask.any(0).int().argmax()) if state.pads is None else min(state.pads)
        width = state.mask.shape[1]
        if not lead or any(layer.keys.shape[2] != width for layer in state.cache.layers):
            return state
        cache = _fork_cache(state.cache)
        for layer in cache.layers:
            layer.keys, layer.values = (t[:, :, lead:].contiguous() for t in (layer.keys, layer.values))
            if hasattr(layer, "cumulative_length"):
                layer.cumulative_length -= lead
        pads = None if state.pads is None else tuple(own - lead for own in state.pads)
        return replace(state, cache=cache, mask=state.mask[:, lead:], pads=pads)

    @torch.no_grad()
    def rollout(self, state: LMState, length: int, draw: Callable[[Tensor, int], Tensor]) -> list[list[int]]:
        """Continue each text by up to `length` tokens that `draw(logits, i)` picks; a text stops at EOS.

        The cache grows: fork it first.
        """
        stops = sent(sorted(self.stop_ids), self.device)
        drawn: list[Tensor] = []
        alive = torch.ones(len(state.mask), dtype=torch.bool, device=self.device)
        for i in range(length):
            state = self.step(state, drawn[-1].clamp(min=0)) if drawn else state
            tokens = draw(state.logits, i).to(self.device)
            alive = alive & ~torch.isin(tokens, stops)
            drawn.append(torch.where(alive, tokens, -1))
            if self.device.type == "cpu" and not alive.any():
                break
        if not drawn:
            return [[] for _ in alive]
        return [[t for t in row if t >= 0] for row in fetched(torch.stack(drawn, 1))[0].tolist()]

    @torch.no_grad()
    def anticipate(
        self,
        state: LMState,
        length: int,
        tables: Sequence[Tensor],
        *,
        among: int,
        likeliest: list[Tensor] | None = None,
    ) -> list[Tensor]:
        """The next `length` tokens of each text in expectation: for each table (V, D) the mean rows (B, length, D).

        Each mean is over the `among` likeliest tokens that do not end the text. The LM goes on from the mean of its own
        input embeddings, so that nothing is drawn. `likeliest` takes the likeliest token of each place, (B,).
        The cache grows: fork it first.
        """
        own = self._embeddings.now()
        means: list[list[Tensor]] = [[] for _ in tables]
        for i in range(length):
            wanted = [*tables, own] if i + 1 < length else tables
            likely = self.likely(state, wanted, among=among, goes_on=True)
            rows = likely.rows
            if likeliest is not None:
                likeliest.append(likely.tokens[:, 0])
            for found, mean, table in zip(means, rows, tables):
                found.append(mean.to(table.dtype))
            if i + 1 < length:
                state = self.step(state, rows[-1].to(own.dtype), headless=True)
        return [torch.stack(found, 1) for found in means]

    def likely(
        self,
        state: LMState,
        tables: Sequence[Tensor],
        *,
        among: int,
        goes_on: bool,
        min_p: float = 0.0,
        seed: Tensor | None = None,
        counter: int | None = None,
    ) -> LikelyRows:
        """The `among` likeliest next tokens, the mean rows of tables (V, D) over them and, with a seed, a draw.

        `goes_on`: without the tokens that end the text. Through the head once, without logits, where those are not made.
        """
        options: dict[str, Any] = {"among": among, "min_p": min_p, "seed": seed, "counter": counter}
        device = state.logits.device if state.hidden is None else state.hidden.device
        options["keep"] = self._keep(device) if goes_on else None
        if seed is not None:
            options["seed"] = sent(seed, device)
        near = [self._of_vocabulary(table, device) for table in tables]
        if state.hidden is None or "logits" in vars(state):
            return likely_rows_from_logits(state.logits, near, **options)
        weight, bias = self._fast.packed_head
        return likely_rows(state.hidden, weight, near, bias=bias, width=self.vocabulary, **options)

    def _keep(self, device: torch.device) -> Tensor:
        """(V,) bool: tokens that do not end a text."""
        if self._going is None or self._going.device != device or len(self._going) != self.vocabulary:
            keep = torch.ones(self.vocabulary, dtype=torch.bool)
            keep[[i for i in self.stop_ids if i < len(keep)]] = False
            self._going = sent(keep, device)
        return self._going

    def _of_vocabulary(self, table: Tensor, device: torch.device) -> Tensor:
        """A table with one row for each row of the head, where the head is."""
        rows = self.vocabulary
        if table.shape[0] < rows:  # some heads have more rows than the model has tokens
            table = torch.cat([table, table.new_zeros(rows - table.shape[0], table.shape[1])])
        return table.detach()[:rows].to(device)

    @torch.no_grad()
    def read(
        self,
        ids: Tensor,
        mask: Tensor,
        cache: Any,
        *,
        headless: bool = False,
        pads: tuple[int, ...] | None = None,
    ) -> LMState:
        """Run ids (B, n) that follow what the cache holds; mask: (B, all tokens so far). The cache grows in place.

        Input embeddings (B, n, H) may take the place of ids. `headless`: make logits only when they are asked for.
        `pads`: how many zeros each row of the mask has; without it the mask is looked at.
        """
        ids, mask = sent(ids, self.device), sent(mask, self.device)
        pads = tuple((mask == 0).sum(1).tolist()) if pads is None else pads
        padded = any(pads)
        kwargs: dict[str, Any] = dict(self._extra)
        source = f"the causal LM {self.name}"
        kwargs["inputs_embeds" if ids.is_floating_point() else "input_ids"] = ids
        if padded:
            kwargs["attention_mask"] = mask if ids.shape[1] > 1 else attention_mask(self.model, mask, 1)
        if padded and self._accepts_positions:
            kwargs["position_ids"] = (mask.cumsum(1) - 1).clamp(min=0)[:, -ids.shape[1] :]
        if headless and self._fast.gives_hidden:
            with blamed(source):
                hidden, grown = self._fast.hidden(past_key_values=cache, use_cache=True, **kwargs)
            hidden = hidden.to(self._fast.head[0].device)
            check_finite(hidden, source)
            return LMState(grown, mask, None, hidden, self._fast.logits, pads)
        with blamed(source):
            out = self._fast(past_key_values=cache, use_cache=True, **kwargs)
        logits = out.logits[:, -1].float()
        check_finite(logits, source, allow_infinite=True)
        if getattr(out, "past_key_values", None) is None:
            raise ModelError(f"lm must return past_key_values, got none from {self.name}")
        return LMState(out.past_key_values, mask, logits, pads=pads)


def _stop_ids(model: Any, tokenizer: Any) -> list[int]:
    config = getattr(model, "generation_config", None) or model.config
    eos = getattr(config, "eos_token_id", None)
    ids = list(eos) if isinstance(eos, list | tuple) else [eos]
    return [i for i in [*ids, getattr(tokenizer, "eos_token_id", None)] if i is not None]


def _fork_cache(cache: Any) -> Any:
    """A cache that grows apart from the one given: layers grow by concatenation, so that a shallow copy is enough."""
    fork = copy.copy(cache)
    fork.layers = [copy.copy(layer) for layer in cache.layers]
    return fork


def _join_caches(first: Any, second: Any, rows: Tensor) -> Any:
    joined = _fork_cache(first if first.get_seq_length() >= second.get_seq_length() else second)
    for layer, one, other in zip(joined.layers, first.layers, second.layers):
        layer.keys = _rows_of(_stacked(one.keys, other.keys), rows)
        layer.values = _rows_of(_stacked(one.values, other.values), rows)
    return joined


def _stacked(one: Tensor, other: Tensor) -> Tensor:
    """(B + B', heads, T, D) of two layers' caches, the shorter with zeros on its left."""
    width = max(one.shape[2], other.shape[2])
    return torch.cat([pad(cached, (0, 0, width - cached.shape[2], 0)) for cached in (one, other)])


def _select_cache(cache: Any, rows: Tensor) -> Any:
    fork = _fork_cache(cache)
    fork.reorder_cache(rows)
    return fork


def _rows_of(tensor: Tensor, rows: Tensor) -> Tensor:
    """Some rows, on the tensor's own device, which with a `device_map` need not be that of the rows."""
    return tensor[rows.to(tensor.device)]
