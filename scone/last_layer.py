"""The last layer of a BERT-like encoder, computed only at the positions that are read.

A classifier reads [CLS], a Gibbs update reads its block. What the last layer does elsewhere behind its attention goes
nowhere, and of six layers that is an eighth of the work.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from torch import Tensor, nn

__all__ = ["as_published", "reading", "sparing"]

_FAMILIES = {"bert", "roberta", "xlm-roberta", "camembert", "electra"}  # their layers have the same parts

_pick: ContextVar[Callable[[Tensor], Tensor] | None] = ContextVar("pick", default=None)  # each thread has its own


@contextmanager
def reading(pick: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """Within it a model from `sparing` gives the last hidden states (R, T, H) at the positions that `pick` takes."""
    token = _pick.set(pick)
    try:
        yield
    finally:
        _pick.reset(token)


def sparing(model: Any) -> Any:
    """A twin of a model of transformers whose last layer heeds `reading`; the model itself where that is not known.

    Twin and model share all parameters.

    >>> from scone.embedded import load_masked_lm
    >>> model, tokenizer = load_masked_lm()
    >>> twin, ids = sparing(model), tokenizer("a nice day", return_tensors="pt")["input_ids"]
    >>> with reading(lambda hidden: hidden[:, 2:3]):
    ...     twin(input_ids=ids).logits.shape
    torch.Size([1, 1, 30522])
    """
    if not as_published(model):
        return model
    if model.config.model_type not in _FAMILIES or model.config.is_decoder or hasattr(model, "hf_device_map"):
        return model
    path = "encoder.layer" if hasattr(model, "encoder") else f"{model.base_model_prefix}.encoder.layer"
    layers = model.get_submodule(path)
    if not len(layers) or not as_published(layers[-1]):
        return model
    return _replaced(model, [*path.split("."), str(len(layers) - 1)], _LastLayer(layers[-1]))


def as_published(module: Any) -> bool:
    """Whether it is of transformers: one of the user's own, or a wrapped one, may do and read anything."""
    return type(module).__module__.startswith("transformers.models.")


class _LastLayer(nn.Module):
    """A layer whose work after attention is done only at the positions that `reading` asks for."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer: Any = layer

    def forward(self, hidden: Tensor, attention_mask: Tensor | None = None, *rest: Any, **kwargs: Any) -> Tensor:
        """hidden: (R, T, H)"""
        pick = _pick.get()
        if pick is None:
            return self.layer(hidden, attention_mask, *rest, **kwargs)
        context = self.layer.attention.self(hidden, attention_mask)[0]
        return self.layer.feed_forward_chunk(self.layer.attention.output(pick(context), pick(hidden)))


def _replaced(module: nn.Module, path: list[str], part: nn.Module) -> nn.Module:
    """A module that differs in one part; all else is shared."""
    name, *rest = path
    other = copy.copy(module)
    other._modules = {**module._modules, name: _replaced(module.get_submodule(name), rest, part) if rest else part}
    return other
