"""The language model: SmolLM2-135M-Instruct, from the GGUF file of a pip package."""

from __future__ import annotations

from functools import partial

import torch
from transformers import GenerationConfig, LlamaForCausalLM, PreTrainedTokenizerBase

from scone.embedded.cache import cached, folder_name
from scone.embedded.gguf import convert, load
from scone.embedded.packages import SMOLLM2


def load_lm() -> tuple[LlamaForCausalLM, PreTrainedTokenizerBase]:
    """SmolLM2-135M-Instruct and its tokenizer (with its chat template), float32, in eval mode.

    The first call converts the GGUF file into the cache folder, which takes about half a minute.
    """
    source = SMOLLM2.locate()
    name = folder_name("smollm2-135m-instruct", source.name, source.stat().st_size)
    build = partial(convert, source, title="SmolLM2-135M", dtype=torch.float16, finish=_finish)
    return load(cached(name, build))


def _finish(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerBase) -> None:
    ends = [tokenizer.convert_tokens_to_ids(token) for token in ("<|im_end|>", "<|endoftext|>")]
    model.generation_config = GenerationConfig(
        eos_token_id=ends, pad_token_id=ends[0], bos_token_id=tokenizer.bos_token_id
    )
