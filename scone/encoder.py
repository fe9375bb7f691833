"""BERT-like encoders with no more work than is read: no padding, and the last layer only where somebody looks.

A classifier reads [CLS], a Gibbs update reads its block. What the last layer does elsewhere behind its attention goes
nowhere, and of six layers that is an eighth of the work. Where no gradient is asked for, all layers are one call of
`scone_kernels`: a pass over a few short texts spends much of its time on starting operations.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutputWithPastAndCrossAttentions

import scone_kernels as kernels

__all__ = ["as_published", "reading", "sparing"]

_FAMILIES = {"bert", "roberta", "xlm-roberta", "camembert", "electra"}  # their layers have the same parts
_PARTS = (  # in the order of kernels.EncoderLayer
    *("attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense"),
    *("attention.output.LayerNorm", "intermediate.dense", "output.dense", "output.LayerNorm"),
)

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
    path = "encoder" if hasattr(model, "encoder") else f"{model.base_model_prefix}.encoder"
    encoder = model.get_submodule(path)
    if not len(encoder.layer) or not all(map(as_published, encoder.layer)):
        return model
    last = str(len(encoder.layer) - 1)
    spared = _replaced(encoder, ["layer", last], _LastLayer(encoder.layer[-1]))
    return _replaced(model, path.split("."), _Encoder(encoder, spared))


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


class _Encoder(nn.Module):
    """All layers in one call where that is possible, else the layers of transformers, of which the last one is spared."""

    def __init__(self, encoder: Any, spared: nn.Module) -> None:
        super().__init__()
        self.spared = spared
        self.heads: int = encoder.config.num_attention_heads
        self.eps: float = encoder.config.layer_norm_eps
        self.inside = list(encoder.modules())
        parts = [layer.get_submodule(name) for layer in encoder.layer for name in _PARTS]
        self.parts: list[dict[str, Any]] = [part._parameters for part in parts]
        self.known = (
            encoder.config.hidden_act == "gelu"
            and all(type(part) in (nn.Linear, nn.LayerNorm) and part.bias is not None for part in parts)
            and kernels.status().cpu.live
        )

    def forward(self, hidden: Tensor, attention_mask: Tensor | None = None, *rest: Any, **kwargs: Any) -> Any:
        """hidden: (R, T, H); attention_mask as transformers prepares it, (R, 1, ., T) bool or added to the scores"""
        pick = _pick.get()
        if pick is None or not self._takes(hidden, attention_mask):
            return self.spared(hidden, attention_mask, *rest, **kwargs)
        rows, length, width = hidden.shape
        places = torch.arange(rows * length)
        wanted = pick(places.view(rows, length, 1))  # (..., 1)
        asked = wanted.flatten()
        if attention_mask is None:
            x, starts = hidden.reshape(-1, width), torch.arange(0, rows * length + 1, length)
        else:
            mask = attention_mask[:, 0, 0].expand(rows, length)
            real = mask if mask.dtype is torch.bool else mask == 0
            if not bool(real.flatten()[asked].all()):  # padding is asked for
                return self.spared(hidden, attention_mask, *rest, **kwargs)
            x, starts = hidden[real], torch.nn.functional.pad(real.sum(1).cumsum(0), (1, 0))
            asked = (real.flatten().cumsum(0) - 1)[asked]
        asked, order = asked.sort(stable=True)
        weights = [part[name] for part in self.parts for name in ("weight", "bias")]
        found = torch.ops.scone_kernels.encoder(x, starts, asked, weights, self.heads, self.eps)
        states = torch.empty_like(found).index_copy_(0, order, found).view(*wanted.shape[:-1], width)
        return BaseModelOutputWithPastAndCrossAttentions(last_hidden_state=states)  # type: ignore[arg-type]

    def _takes(self, hidden: Tensor, attention_mask: Any) -> bool:
        """Float32 on the CPU with a mask that is known, no gradient, and nobody who listens."""
        return (
            self.known
            and hidden.device.type == "cpu"
            and hidden.dtype is torch.float32
            and not torch.is_grad_enabled()
            and not torch.is_autocast_enabled("cpu")
            and (attention_mask is None or (isinstance(attention_mask, Tensor) and attention_mask.ndim == 4))
            and all(part["weight"].dtype is torch.float32 for part in self.parts)
            and not any(module._forward_hooks or module._forward_pre_hooks for module in self.inside)
        )


def _replaced(module: nn.Module, path: list[str], part: nn.Module) -> nn.Module:
    """A module that differs in one part; all else is shared."""
    name, *rest = path
    other = copy.copy(module)
    other._modules = {**module._modules, name: _replaced(module.get_submodule(name), rest, part) if rest else part}
    return other
