"""BERT-like encoders with no more work than is read: no padding, and the last layer only where somebody looks.

A classifier reads [CLS], a Gibbs update reads its block. What the last layer does elsewhere behind its attention goes
nowhere, and of six layers that is an eighth of the work. Where no gradient is asked for, all layers are one call: a pass
over a few short texts spends much of its time on starting operations.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from .. import _extension, _ops
from .ops.encoder import EncoderLayer, check_layers
from .packed import Packed, Values
from .structure import Structure, Unfit, is_from

__all__ = ["Encoder"]

_FAMILIES = {  # their layers have the same parts
    "bert": ("Bert", "bert"),
    "roberta": ("Roberta", "roberta"),
    "xlm_roberta": ("XLMRoberta", "roberta"),
    "camembert": ("Camembert", "roberta"),
    "electra": ("Electra", "electra"),
}
_PARTS = (  # in the order of EncoderLayer
    *("attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense"),
    *("attention.output.LayerNorm", "intermediate.dense", "output.dense", "output.LayerNorm"),
)
_EMBEDDED = ("input_ids", "inputs_embeds", "token_type_ids", "position_ids")
_TAKEN = {*_EMBEDDED, "attention_mask"}

Pick = Callable[[Tensor], Tensor]


class Encoder:
    """A bare encoder, or one with the head of a sequence classifier, whose structure is known."""

    @staticmethod
    def family(model: Any) -> str | None:
        """Which it is of those that are known."""
        for family, (prefix, _) in _FAMILIES.items():
            module = f"transformers.models.{family}.modeling_{family}"
            if any(is_from(model, module, prefix + kind) for kind in ("Model", "ForSequenceClassification")):
                return family
        return None

    def __init__(self, model: Any, structure: Structure, former: Packed | None) -> None:
        family = self.family(model)
        assert family is not None
        structure.check(family)
        config, published = model.config, type(model).__module__
        prefix, attribute = _FAMILIES[family]
        self.judges = is_from(model, published, f"{prefix}ForSequenceClassification")
        self.model = model
        self.base: Any = getattr(model, attribute) if self.judges else model
        if not is_from(self.base, published, f"{prefix}Model") or config.is_decoder or config.add_cross_attention:
            raise Unfit("it is a decoder")
        self.layers = list(self.base.encoder.layer)
        if not self.layers or any(not is_from(layer, published, f"{prefix}Layer") for layer in self.layers):
            raise Unfit("its layers are of another kind")
        if self.judges and family == "bert" and self.base.pooler is None:
            raise Unfit("its classifier has no pooler")
        self.heads: int = config.num_attention_heads
        self.eager = config._attn_implementation == "eager"
        norms = [module for layer in self.layers for module in layer.modules() if type(module) is nn.LayerNorm]
        self.eps: float = norms[0].eps if norms else 0.0
        self.packed = self._pack(former, norms)
        if self.judges:
            self._answer: Any = getattr(sys.modules[published], "SequenceClassifierOutput")  # noqa: B009

    def _pack(self, former: Packed | None, norms: list[nn.LayerNorm]) -> Packed | None:
        """The weights as the kernel takes them, or None where it does something else than these layers."""
        parts = [layer.get_submodule(path) for layer in self.layers for path in _PARTS]
        acts = [layer.intermediate.intermediate_act_fn for layer in self.layers]
        scaling = [
            layer.attention.self.scaling * layer.attention.self.attention_head_size**0.5 for layer in self.layers
        ]
        known = (
            all(type(part) in (nn.Linear, nn.LayerNorm) for part in parts)
            and all(is_from(act, "transformers.activations", "GELUActivation") for act in acts)
            and all(act.act is nn.functional.gelu for act in acts)
            and all(norm.eps == self.eps for norm in norms)
            and all(layer.attention.self.num_attention_heads == self.heads for layer in self.layers)
            and all(abs(each - 1) < 1e-6 for each in scaling)
            and _extension.why_missing is None
        )
        slots = [(part, name) for part in parts for name in ("weight", "bias")]
        return Packed(slots, (), self._check_weights, former) if known else None

    def _check_weights(self, values: Values) -> None:
        size = len(EncoderLayer._fields)
        layers = [EncoderLayer(*values[i : i + size]) for i in range(0, len(values), size)]  # type: ignore[arg-type]
        check_layers(layers, self.base.config.hidden_size, self.heads, torch.device("cpu"))

    def refuses(self, call: dict[str, Any]) -> str | None:
        """Why the model itself has to answer this call, or None."""
        unknown = [name for name, value in call.items() if name not in _TAKEN and value is not None]
        if unknown:
            return f"it is called with {', '.join(sorted(unknown))}"
        ids, embeds, mask = call.get("input_ids"), call.get("inputs_embeds"), call.get("attention_mask")
        x = embeds if ids is None else ids
        if (ids is None) == (embeds is None) or type(x) is not Tensor or x.dim() != (2 if embeds is None else 3):
            return "it is not called with tokens, or with embeddings"
        if not x.numel():
            return "there are no tokens"
        if mask is not None and (type(mask) is not Tensor or mask.shape != x.shape[:2]):
            return "the mask does not say of each token whether it is padding"
        return None

    def read(self, pick: Pick, call: dict[str, Any]) -> Tensor:
        """pick(last hidden states (R, T, H)), for a call that is not refused."""
        hidden = self.base.embeddings(**{name: call[name] for name in _EMBEDDED if call.get(name) is not None})
        if hasattr(self.base, "embeddings_project"):
            hidden = self.base.embeddings_project(hidden)
        mask = call.get("attention_mask")
        real = None if mask is None else mask.to(hidden.device).bool()
        if real is not None and bool(real.all()):
            real = None
        found = None if torch.is_grad_enabled() else self._in_one_call(hidden, real, pick)
        return self._layer_by_layer(hidden, real, pick) if found is None else found

    def _in_one_call(self, hidden: Tensor, real: Tensor | None, pick: Pick) -> Tensor | None:
        """None where the kernel cannot: weights of several types, another device, padding that is asked for."""
        if (
            self.packed is None
            or hidden.dtype is not self.layers[0].output.dense.weight.dtype
            or hidden.device.type != "cpu"
        ):
            return None
        try:
            weights = self.packed.values()
        except Unfit:
            return None
        rows, length, width = hidden.shape
        wanted = pick(torch.arange(rows * length).view(rows, length, 1))  # (..., 1)
        asked = wanted.flatten()
        if real is None:
            x, starts = hidden.float().reshape(-1, width), torch.arange(0, rows * length + 1, length)
        else:
            if not bool(real.flatten()[asked].all()):
                return None
            x, starts = hidden[real].float(), nn.functional.pad(real.sum(1).cumsum(0), (1, 0))
            asked = (real.flatten().cumsum(0) - 1)[asked]
        asked, order = asked.sort(stable=True)
        found = _ops.ops.encoder(x, starts, asked, weights, self.heads, self.eps).to(hidden.dtype)
        return torch.empty_like(found).index_copy_(0, order, found).view(*wanted.shape[:-1], width)

    def _layer_by_layer(self, hidden: Tensor, real: Tensor | None, pick: Pick) -> Tensor:
        """The model's own layers, of which the last one works behind its attention only where it is read."""
        mask = None if real is None else real[:, None, None]  # (R, 1, 1, T)
        if mask is not None and self.eager:
            mask = torch.zeros(mask.shape).to(hidden).masked_fill(~mask, torch.finfo(hidden.dtype).min)
        *first, last = self.layers
        for layer in first:
            hidden = layer(hidden, mask)
        context = last.attention.self(hidden, mask)[0]
        return last.feed_forward_chunk(last.attention.output(pick(context), pick(hidden)))

    def judge(self, call: dict[str, Any]) -> Any:
        """What a classifier would return: all that it reads is the first token."""
        states = self.read(lambda hidden: hidden[:, :1], call)
        if self.base is not self.model and getattr(self.base, "pooler", None) is not None:
            states = self.model.dropout(self.base.pooler(states))
        return self._answer(logits=self.model.classifier(states))
