"""One step of a Llama-like LM without the framework between its products.

A pass over a few texts is some thirty small operations a layer, and starting them takes as long as the products do. Here
all layers are one call, with the weights, cache and rotary angles of the model itself.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import Tensor, nn

from .. import _ops
from .ops import linear_half as _linear_half  # noqa: F401  (its op is called by name)
from .ops.decoder_step import DecoderLayer, check_layers
from .packed import Packed, Values
from .structure import Structure, Unfit, is_from

__all__ = ["Decoder"]

_FAMILIES = {"llama": "Llama", "mistral": "Mistral", "qwen2": "Qwen2"}  # their layers have the same parts
_FEW = 12  # texts up to which no build of the kernels is slower than torch's products
_TAKEN = {
    "input_ids",
    "inputs_embeds",
    "attention_mask",
    "position_ids",
    "past_key_values",
    "use_cache",
    "logits_to_keep",
}
_PARTS = {  # of a layer, in the order of DecoderLayer
    "first_norm": ("input_layernorm", "weight"),
    "query": ("self_attn.q_proj", "weight"),
    "query_bias": ("self_attn.q_proj", "bias"),
    "key": ("self_attn.k_proj", "weight"),
    "key_bias": ("self_attn.k_proj", "bias"),
    "value": ("self_attn.v_proj", "weight"),
    "value_bias": ("self_attn.v_proj", "bias"),
    "mix": ("self_attn.o_proj", "weight"),
    "second_norm": ("post_attention_layernorm", "weight"),
    "gate": ("mlp.gate_proj", "weight"),
    "up": ("mlp.up_proj", "weight"),
    "down": ("mlp.down_proj", "weight"),
}
_PRODUCTS = [name for name in _PARTS if not name.endswith(("norm", "bias"))]


class Decoder:
    """The step of a causal LM whose structure is known."""

    @staticmethod
    def family(model: Any) -> str | None:
        """Which it is of those that are known."""
        named = {f: f"transformers.models.{f}.modeling_{f}" for f in _FAMILIES}
        return next((f for f, module in named.items() if is_from(model, module, f"{_FAMILIES[f]}ForCausalLM")), None)

    def __init__(self, model: Any, structure: Structure, former: Packed | None) -> None:
        family = self.family(model)
        assert family is not None
        structure.check(family)
        config, decoder = model.config, model.model
        self.embeddings, self.rotary, self.norm, self.head = (
            *(decoder.embed_tokens, decoder.rotary_emb, decoder.norm),
            model.lm_head,
        )
        self.heads: int = config.num_attention_heads
        self.groups: int = config.num_key_value_heads
        self.eps: float = self.norm.variance_epsilon
        self.depth: int = decoder.layers[0].self_attn.head_dim if len(decoder.layers) else 0
        self._check_parts(config, decoder)
        places = [(layer.get_submodule(path), name) for layer in decoder.layers for path, name in _PARTS.values()]
        products = [i for i, name in enumerate([*_PARTS] * len(decoder.layers)) if name in _PRODUCTS]
        head = [(self.head, "weight"), (self.head, "bias")]
        self.packed = Packed([*places, *head], [*products, len(places)], self._check_weights, former)
        self._answer: Any = getattr(sys.modules[type(model).__module__], "CausalLMOutputWithPast")  # noqa: B009

    def _check_parts(self, config: Any, decoder: Any) -> None:
        """Raise where something is there that the kernel does not do."""
        sliding = getattr(config, "sliding_window", None) and getattr(config, "use_sliding_window", True)
        kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
        if sliding or kinds != {"full_attention"}:
            raise Unfit("its attention is to a window")
        if not len(decoder.layers) or config.num_hidden_layers < len(decoder.layers):
            raise Unfit("its config leaves out layers")
        if type(self.embeddings) is not nn.Embedding or type(self.head) is not nn.Linear:
            raise Unfit("its embeddings or its head are of another kind")
        if 2 * self.rotary.inv_freq.shape[0] != self.depth:
            raise Unfit("its rotary angles are for a part of each head")
        for layer in decoder.layers:
            attention, mlp = layer.self_attn, layer.mlp
            norms = (layer.input_layernorm, layer.post_attention_layernorm)
            alike = attention.head_dim == self.depth and attention.scaling == self.depth**-0.5
            if not alike or any(norm.variance_epsilon != self.eps for norm in norms):
                raise Unfit("its layers are not alike")
            silent = (attention.o_proj, mlp.gate_proj, mlp.up_proj, mlp.down_proj)
            if any(type(layer.get_submodule(path)) is not nn.Linear for path, _ in _PARTS.values() if "proj" in path):
                raise Unfit("one of its products is not a linear layer")
            if any(part.bias is not None for part in silent):
                raise Unfit("it has biases where Llama has none")
            if (
                not is_from(mlp.act_fn, "transformers.activations", "SiLUActivation")
                and type(mlp.act_fn) is not nn.SiLU
            ):
                raise Unfit("its activation is not SiLU")

    def _check_weights(self, values: Values) -> None:
        size, width = len(DecoderLayer._fields), self.embeddings.embedding_dim
        *weights, head, _ = values
        layers = [DecoderLayer(*weights[i : i + size]) for i in range(0, len(weights), size)]  # type: ignore[arg-type]
        check_layers(layers, width, self.heads * self.depth, self.groups * self.depth, torch.device("cpu"))
        if head is None or head.shape[1] != width:
            raise ValueError(f"the head must be of {width} columns")

    @property
    def dtype(self) -> torch.dtype:
        """Of the model, of its answers and of its cache."""
        dtype: torch.dtype = self.head.weight.dtype
        return dtype

    def refuses(self, call: dict[str, Any]) -> str | None:
        """Why the model itself has to answer this call, or None: it is one token a text, on a plain cache.

        Without AVX2 torch's own products are faster for more than a few texts.
        """
        if torch.is_grad_enabled():
            return "a gradient may be wanted"
        unknown = [name for name, value in call.items() if name not in _TAKEN and value is not None]
        if unknown:
            return f"it is called with {', '.join(sorted(unknown))}"
        ids, embeds = call.get("input_ids"), call.get("inputs_embeds")
        cache: Any = call.get("past_key_values")
        x = embeds if ids is None else ids
        if (ids is None) == (embeds is None) or type(x) is not Tensor or x.device.type != "cpu" or x.shape[1:2] != (1,):
            return "it is not called with one token for each text, on the CPU"
        types = (torch.int64, torch.int32) if embeds is None else (self.dtype,)
        if x.dim() != (2 if embeds is None else 3) or x.dtype not in types or not len(x):
            return f"it is not called with tokens, or with embeddings in {self.dtype}"
        if self.embeddings.weight.dtype is not self.dtype or self.norm.weight.dtype is not self.dtype:
            return "its weights are not of one type"
        if len(x) > _FEW and _ops.ops.cpu_build() == "baseline":
            return "torch is faster for many texts where there are no vector kernels"
        if not call.get("use_cache", True) or not _is_plain(cache):
            return "there is no plain cache that grows"
        kept = call.get("logits_to_keep", 0)
        if type(kept) is not int or kept < 0:
            return "logits_to_keep is not a number of tokens"
        if not self._fits(cache, len(x)):
            return f"the cache is not of this model in {self.dtype}"
        return self._refuses_places(call, len(x), cache.layers[0].keys.shape[2])

    def _fits(self, cache: Any, rows: int) -> bool:
        shape, sizes = cache.layers[0].keys.shape, (rows, self.groups, self.depth)
        if len(cache.layers) * len(DecoderLayer._fields) + 2 != len(self.packed) or len(shape) != 4:
            return False
        return (shape[0], shape[1], shape[3]) == sizes and all(
            tensor.dtype is self.dtype and tensor.device.type == "cpu" and tensor.shape == shape
            for layer in cache.layers
            for tensor in (layer.keys, layer.values)
        )

    @staticmethod
    def _refuses_places(call: dict[str, Any], rows: int, past: int) -> str | None:
        mask, places = call.get("attention_mask"), call.get("position_ids")
        if mask is not None:
            if type(mask) is not Tensor or mask.shape != (rows, past + 1):
                return "the mask does not say of each token so far whether it is padding"
            if not bool(mask[:, -1].all()):
                return "a new token is padding"
        if places is not None and (type(places) is not Tensor or places.shape not in ((rows, 1), (1, 1))):
            return "the positions are not one for each text"
        return None

    def states(self, call: dict[str, Any], weights: Values) -> Tensor:
        """The last hidden states (B, H) in float32, behind the final norm; the cache grows in place. For a call that is
        not refused.

        weights: what `packed` holds for this call
        """
        ids, cache, mask = call.get("input_ids"), call["past_key_values"], call.get("attention_mask")
        x = (call["inputs_embeds"] if ids is None else self.embeddings(ids)).float()
        keys, values = [layer.keys for layer in cache.layers], [layer.values for layer in cache.layers]
        places = call.get("position_ids")
        if places is None:
            places = torch.tensor([[keys[0].shape[2]]])
        cos, sin = (part.expand(len(x), -1, -1)[:, 0].contiguous() for part in self.rotary(x, position_ids=places))
        seen = None if mask is None else mask[:, :-1].bool().contiguous()
        state, key, value = _ops.ops.decoder_step(
            x[:, 0], weights[:-2], keys, values, cos, sin, seen, self.heads, self.eps
        )
        key, value = key.to(self.dtype), value.to(self.dtype)
        for i in range(len(keys)):
            cache.update(key[i][:, :, None], value[i][:, :, None], i)
        return self.norm(state)

    def __call__(self, call: dict[str, Any], weights: Values) -> Any:
        """What the model would return."""
        states, (weight, bias) = self.states(call, weights), weights[-2:]
        assert weight is not None
        if weight.dim() == 3:
            logits = _ops.ops.linear_half(states, weight, bias, self.head.weight.shape[0])
        else:
            logits = nn.functional.linear(states, weight, bias)
        return self._answer(logits=logits.to(self.dtype)[:, None], past_key_values=call["past_key_values"])


def _is_plain(cache: Any) -> bool:
    """Whether it is transformers' cache that grows by concatenation, with something in it."""
    if not is_from(cache, "transformers.cache_utils", "DynamicCache") or getattr(cache, "offloading", False):
        return False
    kinds = {type(layer): layer for layer in cache.layers}
    plain = all(is_from(layer, "transformers.cache_utils", "DynamicLayer") for layer in kinds.values())
    return bool(kinds) and plain and all(layer.is_initialized for layer in cache.layers)
