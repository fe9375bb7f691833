"""Where a causal LM can be cut before its vocabulary: the logits are a linear layer of the last hidden states, and no more."""

from __future__ import annotations

from typing import Any

from torch import nn

from .structure import is_from, untouched

__all__ = ["is_plain"]

_CLASSES = {  # whose logits are `lm_head(base_model(...).last_hidden_state)`
    **{
        "llama": "Llama",
        "mistral": "Mistral",
        "mixtral": "Mixtral",
        "qwen2": "Qwen2",
        "qwen3": "Qwen3",
        "phi3": "Phi3",
    },
    **{"gemma": "Gemma", "olmo2": "Olmo2", "smollm3": "SmolLM3", "stablelm": "StableLm", "starcoder2": "Starcoder2"},
    **{"gpt_neox": "GPTNeoX"},
}
_SCALED = ("final_logit_softcapping", "logit_scale", "logits_scaling", "lm_head_multiplier")


def is_plain(model: Any) -> bool:
    """Whether logits are `head(states)` now, and nobody listens to the model or its head, or has replaced their forward.

    >>> is_plain(nn.Linear(2, 2))
    False
    """
    known = is_from(model, "transformers.models.gpt2.modeling_gpt2", "GPT2LMHeadModel") or any(
        is_from(model, f"transformers.models.{family}.modeling_{family}", f"{name}ForCausalLM")
        for family, name in _CLASSES.items()
    )
    if not known or any(getattr(model.config, name, None) for name in _SCALED):
        return False
    head = model.get_output_embeddings()
    return type(head) is nn.Linear and untouched(model, head)
