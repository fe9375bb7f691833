"""Conditionals of a masked LM: encoder first, then only the positions that are asked for go through the head."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import scone_kernels as kernels
from scone.blame import blamed
from scone.errors import ModelError
from scone.lm.masks import attention_mask
from scone.lm.tables import Embeddings, place_of, rows_of
from scone.lm.tokens import check_known, drawable, position_limit, special_frame
from scone.lm.transfer import check_finite, sent
from scone_kernels.inference import Accelerated, accelerate, untouched

__all__ = ["Head", "MaskedLM", "split_head"]

# model_type -> (encoder, modules that are applied one after the other before the vocabulary)
_PATHS: dict[str, tuple[str, tuple[str, ...]]] = {
    "bert": ("bert", ("cls.predictions.transform",)),
    "distilbert": ("distilbert", ("vocab_transform", "activation", "vocab_layer_norm")),
    "roberta": ("roberta", ("lm_head.dense", "<gelu>", "lm_head.layer_norm")),
    "xlm-roberta": ("roberta", ("lm_head.dense", "<gelu>", "lm_head.layer_norm")),
    "camembert": ("roberta", ("lm_head.dense", "<gelu>", "lm_head.layer_norm")),
    "electra": ("electra", ("generator_predictions",)),
    "modernbert": ("model", ("head",)),
}


@dataclass(frozen=True)
class Head:
    """A masked LM cut where the vocabulary begins: logits are `transform(encoder(ids)) @ weight.T + bias`.

    Where weight is None the cut is unknown: `encoder` is the whole model and its hidden states are the logits.

    >>> from scone.embedded import load_masked_lm
    >>> model, tokenizer = load_masked_lm()
    >>> head, ids = split_head(model), tokenizer("a [MASK] day", return_tensors="pt")["input_ids"]
    >>> logits = head.transform(head.encoder(input_ids=ids)[0]) @ head.weight.T + head.bias
    >>> bool(torch.allclose(logits, model(input_ids=ids).logits, atol=1e-3))
    True
    """

    encoder: Any
    transform: Callable[[Tensor], Tensor]
    weight: Tensor | None  # (V, H)
    bias: Tensor | None  # (V,)


def split_head(model: Any, accelerated: Callable[[Any], Accelerated] | None = None) -> Head:
    """Cut a masked LM of a known family before its vocabulary matrix; any other gives its ready logits.

    accelerated: makes of a module what is called in its place; a cut that is made often should not forget what it packed

    >>> from scone.embedded import load_masked_lm
    >>> split_head(load_masked_lm()[0]).weight.shape
    torch.Size([30522, 384])
    """
    output = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
    if output is None:
        raise ModelError(f"masked_lm must be a masked LM with an output head, got {type(model).__name__}")
    run = accelerated or _accelerated
    found = _cut(model) if type(output) is torch.nn.Linear and untouched(output) else None
    if found is None:
        whole = run(model)
        return Head(lambda **kw: (whole(**kw).logits,), lambda x: x, None, None)
    encoder, modules = found

    def transform(hidden: Tensor) -> Tensor:
        for module in modules:
            hidden = module(hidden)
        return hidden

    return Head(run(encoder), transform, output.weight.detach(), None if output.bias is None else output.bias.detach())


def _cut(model: Any) -> tuple[Any, list[Callable[[Tensor], Tensor]]] | None:
    """The encoder of a known family and what follows it, where nobody would notice that the rest is gone round."""
    encoder, stages = _PATHS.get(model.config.model_type, ("", ()))
    gone_round = [model]
    for stage in stages:
        *above, _ = stage.split(".")
        gone_round += [_follow(model, ".".join(above[: n + 1])) for n in range(len(above))]
    published = all(type(module).__module__.startswith("transformers.models.") for module in gone_round)
    if not encoder or not published or not untouched(*gone_round):
        return None
    modules = [torch.nn.functional.gelu if name == "<gelu>" else _follow(model, name) for name in stages]
    return _follow(model, encoder), modules


def _accelerated(module: Any) -> Accelerated:
    return accelerate(module, evaluating=True)


class MaskedLM:
    """p(token at a position | the rest) of a masked LM, and the two things that are done with it: draw and expect.

    >>> from scone.embedded import load_masked_lm
    >>> mlm = MaskedLM(*load_masked_lm())
    >>> ids = torch.tensor([[*mlm.opening, *mlm.encode("the capital of france is"), mlm.mask_id, *mlm.closing]])
    >>> hidden = mlm.hidden(ids, torch.ones_like(ids), torch.tensor([0]), torch.tensor([6]))
    >>> mlm.draw(hidden, seed=0, counter=0).shape
    torch.Size([1])
    """

    def __init__(self, model: Any, tokenizer: Any) -> None:
        if getattr(tokenizer, "mask_token_id", None) is None:
            raise ModelError(
                f"masked_lm must have a tokenizer with a mask token, got {type(tokenizer).__name__} without mask_token"
            )
        self.model = model
        self._embeddings = Embeddings(model)
        self.tokenizer = tokenizer
        self.name = type(model).__name__
        self._running: Accelerated | None = None
        self._drawable: Tensor | None = None
        split_head(model, self._run)  # raises where there is no head
        self.mask_id: int = tokenizer.mask_token_id
        self.pad_id: int = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else self.mask_id
        self.opening, self.closing = special_frame(tokenizer)
        self.max_length = position_limit(model, tokenizer)

    @property
    def head(self) -> Head:
        """The model cut before its vocabulary, as it is now."""
        return split_head(self.model, self._run)

    def _run(self, module: Any) -> Accelerated:
        if self._running is None or self._running.model is not module:
            self._running = _accelerated(module)
        return self._running

    @property
    def keep(self) -> Tensor:
        """(V,) bool: the tokens that may be drawn."""
        rows, device = rows_of(self.model), self.device
        if self._drawable is None or len(self._drawable) != rows or self._drawable.device != device:
            self._drawable = sent(drawable(self.tokenizer, rows), device)
        return self._drawable

    @property
    def device(self) -> torch.device:
        """The device of the masked LM, where the lookahead's state lives."""
        return place_of(self.model.get_input_embeddings())

    def encode(self, text: str) -> list[int]:
        """Token ids of a text without special tokens."""
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def encode_batch(self, texts: list[str]) -> list[list[int]]:
        """The same for several texts at once."""
        return [list(ids) for ids in self.tokenizer(texts, add_special_tokens=False)["input_ids"]]

    def tail(self, text: str, tokens: int) -> str:
        """The end of a text that its last `tokens` tokens cover."""
        if not tokens:
            return ""
        if not self.tokenizer.is_fast:
            return text
        places = self.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
        return text[places[-tokens][0] :]

    @torch.no_grad()
    def hidden(self, ids: Tensor, mask: Tensor, row: Tensor, col: Tensor) -> Tensor:
        """Head inputs at the positions (row, col) of ids (R, T): (N, H), or (N, V) logits for an unknown family."""
        batch: dict[str, Any] = {"input_ids": ids, "attention_mask": attention_mask(self.model, mask, ids.shape[1])}
        if ids.device.type == "cpu" and ids.numel():  # elsewhere looking would wait for the device
            check_known("masked_lm", int(ids.max()), self._embeddings.rows)
        head = self.head
        with blamed(f"the masked LM {self.name}"):
            if head.weight is None:
                states = head.encoder(**batch)[0][row, col]
            else:
                states = head.encoder.read(lambda states: states[row, col], **batch)
            picked = head.transform(states)
        check_finite(picked, f"the masked LM {self.name}")
        return picked

    def draw(self, hidden: Tensor, *, seed: Tensor | int, counter: Tensor | int, temperature: float = 1.0) -> Tensor:
        """One token for each row of `hidden`, never a special one: (N,) int64."""
        options: dict[str, Any] = {"keep": self.keep, "temperature": temperature, "seed": seed, "counter": counter}
        head = self.head
        if head.weight is None:
            return kernels.gibbs_sample_from_logits(hidden, **options).tokens
        return kernels.gibbs_sample(hidden, head.weight, bias=head.bias, **options).tokens

    def expect(self, hidden: Tensor, table: Tensor, *, temperature: float = 1.0) -> Tensor:
        """Mean of the table's rows under each conditional: (N, D); table: (V, D)."""
        options: dict[str, Any] = {"keep": self.keep, "temperature": temperature}
        head = self.head
        if head.weight is None:
            return kernels.expected_embedding_from_logits(hidden, table, **options)
        return kernels.expected_embedding(hidden, head.weight, table, bias=head.bias, **options)

    def expect_dot(
        self, hidden: Tensor, table: Tensor, grad: Tensor, *, segment: Tensor, temperature: float = 1.0
    ) -> Tensor:
        """Mean of `grad[segment] · table row` under each conditional: (N,); grad: (S, D), segment: (N,)."""
        options: dict[str, Any] = {"keep": self.keep, "temperature": temperature, "segment": segment}
        head = self.head
        if head.weight is None:
            return kernels.expected_dot_from_logits(hidden, table, grad, **options)
        return kernels.expected_dot(hidden, head.weight, table, grad, bias=head.bias, **options)


def _follow(model: Any, path: str) -> Any:
    for name in path.split("."):
        model = getattr(model, name)
    return model
