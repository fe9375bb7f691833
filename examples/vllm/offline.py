"""The same without a server: `LLM(...).generate`, with a dict of options for each request.

SCONE_VLLM=embedded python examples/vllm/offline.py [MODEL]
"""

from __future__ import annotations

import os
import sys

os.environ.setdefault("SCONE_VLLM", "embedded")
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")

if __name__ == "__main__":
    from vllm import LLM, SamplingParams

    from scone.embedded import load_lm

    model = sys.argv[1] if len(sys.argv) > 1 else load_lm()[0].config._name_or_path
    llm = LLM(
        model=model,
        dtype="bfloat16",
        max_model_len=512,
        enforce_eager=True,
        logits_processors=["scone.vllm:SconeLogitsProcessor"],
    )
    kinds = {"positive": {"attribute": "positive"}, "negative": {"attribute": "negative"}, "plain": None}
    params = [
        SamplingParams(max_tokens=15, temperature=0, extra_args={"scone": kind} if kind else None)
        for kind in kinds.values()
    ]
    for name, out in zip(kinds, llm.generate(["The movie was"] * 3, params)):
        print(f"{name:>9}: The movie was{out.outputs[0].text!r}")
