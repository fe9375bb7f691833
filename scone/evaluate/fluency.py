"""Perplexity of continuations under a causal LM."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from scone.lm import CausalLM

__all__ = ["negative_log_likelihood"]


@torch.inference_mode()
def negative_log_likelihood(
    lm: CausalLM, prompt: str, continuations: Sequence[str], *, batch: int = 32
) -> tuple[np.ndarray, np.ndarray]:
    """Summed over the continuation's tokens, given the prompt, and how many they are: (n,) float64 and (n,) int64.

    A token belongs to the continuation when it ends after the prompt does: tokenizers may join the seam.
    """
    total, count = np.zeros(len(continuations)), np.zeros(len(continuations), dtype=np.int64)
    for start in range(0, len(continuations), batch):
        texts = [prompt + continuation for continuation in continuations[start : start + batch]]
        encoded = lm.tokenizer(texts, return_offsets_mapping=True)
        rows = encoded["input_ids"]
        width = max(map(len, rows))
        ids = torch.tensor([[*row, *[0] * (width - len(row))] for row in rows], device=lm.device)  # (b, T)
        mask = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in rows], device=lm.device)
        new = torch.tensor(
            [
                [end > len(prompt) for _, end in offsets] + [False] * (width - len(offsets))
                for offsets in encoded["offset_mapping"]
            ],
            device=lm.device,
        )
        logits = lm.model(input_ids=ids, attention_mask=mask).logits[:, :-1].float()
        nll = torch.nn.functional.cross_entropy(logits.transpose(1, 2), ids[:, 1:], reduction="none")  # (b, T-1)
        counted = new[:, 1:]  # a text's first token has nothing before it and no probability
        total[start : start + batch] = (nll * counted).sum(1).double().cpu().numpy()
        count[start : start + batch] = counted.sum(1).cpu().numpy()
    return total, count
