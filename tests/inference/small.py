"""Small models of the families that `accelerate` knows, with weights that show a mistake, and calls of them."""

from __future__ import annotations

import torch
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    CamembertConfig,
    CamembertForSequenceClassification,
    ElectraConfig,
    ElectraForSequenceClassification,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    RobertaConfig,
    RobertaForSequenceClassification,
    XLMRobertaConfig,
    XLMRobertaForSequenceClassification,
)

SIZES = {"vocab_size": 50, "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 3, "num_attention_heads": 6,
         "num_key_value_heads": 2, "max_position_embeddings": 64}  # fmt: skip
LMS = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SIZES)),
    "tied": lambda: LlamaForCausalLM(LlamaConfig(**SIZES, tie_word_embeddings=True)),
    "wide heads": lambda: LlamaForCausalLM(LlamaConfig(**SIZES, head_dim=10)),
    "mistral": lambda: MistralForCausalLM(MistralConfig(**SIZES, sliding_window=None)),
    "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**SIZES)),
}
ENCODERS = {
    "bert": (BertForSequenceClassification, BertConfig, {}),
    "electra": (ElectraForSequenceClassification, ElectraConfig, {"embedding_size": 16}),
    "roberta": (RobertaForSequenceClassification, RobertaConfig, {}),
    "xlm-roberta": (XLMRobertaForSequenceClassification, XLMRobertaConfig, {}),
    "camembert": (CamembertForSequenceClassification, CamembertConfig, {}),
}
IDS = torch.tensor([[3, 4, 5, 6, 7], [8, 9, 10, 11, 12]])
PADDED = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]])


def lm(family: str = "llama", *, halves: bool = False):
    """A causal LM in eval mode; `halves`: its weights are numbers of 16 bits."""
    torch.manual_seed(0)
    model = LMS[family]().eval()
    return _spread(model, halves)


def classifier(family: str = "bert", *, attention: str = "sdpa"):
    """A sequence classifier with three labels in eval mode."""
    kind, config, more = ENCODERS[family]
    sizes = {name: size for name, size in SIZES.items() if "key_value" not in name}
    torch.manual_seed(0)
    return _spread(kind(config(**sizes, num_labels=3, pad_token_id=1, attn_implementation=attention, **more)).eval())


@torch.no_grad()
def _spread(model, halves: bool = False):
    for parameter in model.parameters():  # biases and norms begin as zeros and ones
        parameter += 0.1 * torch.randn_like(parameter)
    return model.bfloat16().float() if halves else model


@torch.no_grad()
def cache_of(model, count: int = 4, mask: torch.Tensor | None = None):
    """The cache after the first tokens, as the model itself makes it."""
    extra = {} if mask is None else {"attention_mask": mask[:, :count], "position_ids": positions(mask)[:, :count]}
    return model(IDS[:, :count], use_cache=True, **extra).past_key_values


def positions(mask: torch.Tensor) -> torch.Tensor:
    """Of left-padded texts."""
    return (mask.cumsum(1) - 1).clamp(min=0)


def one_token(cache, *, ids: torch.Tensor = IDS[:, 4:]) -> dict:
    """The call that a step makes."""
    return {"input_ids": ids, "past_key_values": cache, "use_cache": True, "logits_to_keep": 1}
