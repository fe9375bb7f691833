"""Requests to a server that `serve.sh` has started: two that want opposite things and one that wants nothing, in one batch.

python examples/vllm/client.py http://localhost:8000/v1
"""

from __future__ import annotations

import asyncio
import sys

from openai import AsyncOpenAI, OpenAI

from scone.vllm import released

BASE = sys.argv[1] if len(sys.argv) > 1 else "http://localhost:8000/v1"
PROMPT = "I went to the restaurant and"
KINDS = {"positive": {"scone_attribute": "positive"}, "negative": {"scone_attribute": "negative"}, "plain": {}}


async def together() -> dict[str, str]:
    """One text of each kind, asked for at the same time."""
    client = AsyncOpenAI(base_url=BASE, api_key="none")
    asked = [
        client.completions.create(
            model="lm", prompt=PROMPT, max_tokens=20, temperature=0, extra_body={"vllm_xargs": kind} if kind else None
        )
        for kind in KINDS.values()
    ]
    return {name: found.choices[0].text for name, found in zip(KINDS, await asyncio.gather(*asked))}


def guarded() -> tuple[str, str | None]:
    """A chat that streams with a promise: what is shown has been judged with the four tokens behind it."""
    end = 3  # a special token that the LM does not write; it ends a text that nothing good can follow
    stream = OpenAI(base_url=BASE, api_key="none").chat.completions.create(
        model="lm",
        messages=[{"role": "user", "content": "Tell me about your day."}],
        max_tokens=20,
        temperature=0,
        stream=True,
        extra_body={
            "stop_token_ids": [end],
            "vllm_xargs": {"scone_avoid": "toxic", "scone_verdict": "continuation", "scone_below": 0.3, "scone_end_token": end},
        },
    )  # fmt: skip
    pieces = list(released(stream, tokens=4, end_token=end))
    return "".join(piece for piece, _ in pieces), pieces[-1][1]


if __name__ == "__main__":
    texts = asyncio.run(together())
    for name, text in texts.items():
        print(f"{name:>9}: {PROMPT}{text!r}")
    text, reason = guarded()
    print(f"  guarded: {text!r} ({reason})")
