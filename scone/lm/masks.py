"""Attention masks that a model takes as they are.

Given a mask (B, T), transformers looks whether it hides anything, for which the host waits in every pass. Given one with a
row for each query it looks at nothing, where all layers see all tokens and attention is torch's own.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

__all__ = ["attention_mask"]

_FAMILIES = {
    *("bert", "roberta", "xlm-roberta", "camembert", "electra", "distilbert"),
    *("llama", "mistral", "mixtral", "qwen2", "qwen3", "phi3", "gemma", "olmo2", "smollm3", "stablelm", "starcoder2"),
    *("gpt_neox", "gpt2"),
}


def attention_mask(model: Any, mask: Tensor, queries: int) -> Tensor:
    """The mask (B, T) in the form in which the host does not wait for its values: (B, 1, queries, T) bool on a GPU.

    Every query sees all that the mask shows: those of an encoder, or the last one of a causal LM.

    >>> import torch
    >>> attention_mask(None, torch.tensor([[False, True]]), queries=1)
    tensor([[0, 1]])
    """
    if mask.device.type != "cuda" or not _takes_ready_masks(model):
        return mask.long()
    return mask.bool()[:, None, None].expand(-1, 1, queries, -1)


def _takes_ready_masks(model: Any) -> bool:
    config = getattr(model, "config", None)
    if getattr(config, "model_type", None) not in _FAMILIES or not type(model).__module__.startswith("transformers."):
        return False
    if getattr(config, "_attn_implementation", None) != "sdpa":
        return False
    kinds = getattr(config, "layer_types", None)
    if kinds is not None:
        return all(kind == "full_attention" for kind in kinds)
    return getattr(config, "sliding_window", None) is None
