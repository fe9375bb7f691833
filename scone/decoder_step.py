"""One step of a Llama-like LM without the framework between its products.

A pass over a few texts is some thirty small operations a layer, and starting them takes as long as the products do. Here
all layers are one call of `scone_kernels`, with the weights, cache and rotary angles of the model itself.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

import scone_kernels as kernels
from scone.encoder import as_published
from scone_kernels.ops.linear_half import HalfLinear

__all__ = ["DecoderStep"]

_FAMILIES = {"llama", "mistral", "qwen2"}  # their layers have the same parts
_FEW = 12  # texts up to which no build of the kernels is slower than torch's products
_LINEARS = (
    *("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj"),
    *("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"),
)


class DecoderStep:
    """A model's own step, in float32 on the CPU; `DecoderStep.of(model)` is None where its kind is not known.

    >>> from scone.embedded import load_lm
    >>> model, tokenizer = load_lm()
    >>> step, ids = DecoderStep.of(model), tokenizer("One two three", return_tensors="pt")["input_ids"]
    >>> with torch.no_grad():
    ...     cache = model(ids[:, :-1], use_cache=True).past_key_values
    ...     logits = step(ids[:, -1:], None, cache)
    ...     bool(torch.allclose(logits, model(ids).logits[:, -1], atol=1e-3)), cache.get_seq_length()
    (True, 3)
    """

    def __init__(self, model: Any) -> None:
        decoder = model.model
        self.embeddings, self.rotary, self.norm, self.head = (
            *(decoder.embed_tokens, decoder.rotary_emb, decoder.norm),
            model.lm_head,
        )
        self.heads: int = model.config.num_attention_heads
        self.eps: float = model.config.rms_norm_eps
        self.modules = [*decoder.modules(), model.lm_head]
        self.parts: list[_Part] = []  # in the order of kernels.DecoderLayer
        for layer in decoder.layers:
            query, key, value, mix, gate, up, down = (layer.get_submodule(name) for name in _LINEARS)
            self.parts.append(_Part.of(layer.input_layernorm))
            for part in (query, key, value):
                self.parts += [_Part.of(part), _Part(part._parameters, "bias", torch.float32)]
            self.parts += map(_Part.of, (mix, layer.post_attention_layernorm, gate, up, down))

    @staticmethod
    def of(model: Any) -> DecoderStep | None:
        """The step of a model of transformers, or None: a family that is not known, a part that is not as published."""
        config: Any = getattr(model, "config", None)
        if getattr(config, "model_type", None) not in _FAMILIES or not kernels.status().cpu.live:
            return None
        if hasattr(model, "hf_device_map") or not as_published(model) or not all(map(as_published, model.model.layers)):
            return None
        linears = [layer.get_submodule(name) for layer in model.model.layers for name in _LINEARS]
        biased = [part for i, part in enumerate(linears) if i % len(_LINEARS) > 2 and part.bias is not None]
        sliding = getattr(config, "sliding_window", None) and getattr(config, "use_sliding_window", True)
        if any(type(part) not in (nn.Linear, HalfLinear) for part in [*linears, model.lm_head]) or biased or sliding:
            return None
        return DecoderStep(model) if config.hidden_act == "silu" else None

    def takes(self, ids: Tensor, cache: Any) -> bool:
        """Whether this step is best done here: one token a text, a plain cache, float32 on the CPU, nobody who listens.

        Without AVX2 torch's own products are faster for more than a few texts.
        """
        return (
            ids.shape[1] == 1
            and ids.device.type == "cpu"
            and (len(ids) <= _FEW or torch.ops.scone_kernels.cpu_build() != "baseline")
            and not torch.is_grad_enabled()
            and not torch.is_autocast_enabled("cpu")
            and type(cache) is DynamicCache
            and all(type(layer) is DynamicLayer and layer.is_initialized for layer in cache.layers)
            and all(part.is_fit for part in self.parts)
            and self.embeddings.weight.dtype is torch.float32
            and not any(module._forward_hooks or module._forward_pre_hooks for module in self.modules)
        )

    def __call__(self, ids: Tensor, mask: Tensor | None, cache: Any) -> Tensor:
        """Logits (B, V) after ids (B, 1), or embeddings (B, 1, D), that follow the cache, which grows in place.

        mask: (B, T + 1) 1 where a token is real, or None where all are
        """
        x = ids if ids.is_floating_point() else self.embeddings(ids)
        keys, values = [layer.keys for layer in cache.layers], [layer.values for layer in cache.layers]
        past = keys[0].shape[2]
        position = torch.tensor([[past]]) if mask is None else mask.sum(1, keepdim=True) - 1
        cos, sin = (part.expand(len(x), -1, -1)[:, 0].contiguous() for part in self.rotary(x, position_ids=position))
        seen = None if mask is None else mask[:, :-1].bool()
        weights = [part.value for part in self.parts]
        state, key, value = torch.ops.scone_kernels.decoder_step(
            x[:, 0], weights, keys, values, cos, sin, seen, self.heads, self.eps
        )
        for i in range(len(keys)):
            cache.update(key[i][:, :, None], value[i][:, :, None], i)
        if isinstance(self.head, HalfLinear):
            return self.head(self.norm(state))
        return torch.ops.scone_kernels.linear(self.norm(state), self.head.weight, self.head.bias)


class _Part(NamedTuple):
    """A weight of the model, looked up at every step: `model.to(...)` puts others in its place."""

    found: dict[str, Any]
    name: str
    stored: torch.dtype

    @staticmethod
    def of(module: nn.Module) -> _Part:
        """The weight of a layer, or its panels."""
        if isinstance(module, HalfLinear):
            return _Part(module._buffers, "bits", module.stored)
        return _Part(module._parameters, "weight", torch.float32)

    @property
    def is_fit(self) -> bool:
        """Whether it is as the kernel takes it."""
        value = self.found[self.name]
        return value is None or value.dtype is (torch.float32 if self.stored is torch.float32 else torch.int16)

    @property
    def value(self) -> Tensor | None:
        """What the kernel takes."""
        value = self.found[self.name]
        return value if self.stored is torch.float32 else value.view(self.stored)
