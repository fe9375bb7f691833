"""Replies in OpenAI's shapes, with ours in the field `scone` of each choice."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Sequence
from typing import Any

from scone.serve.desk import Job, News
from scone.serve.orders import Order

__all__ = ["Reply"]


class Reply:
    """The shapes of one reply: whole, or piece by piece."""

    def __init__(self, order: Order, model: str, *, chat: bool) -> None:
        self._order, self._chat, self._texts = order, chat, len(order.prompts) * order.n
        kind = "chat.completion" if chat else "text_completion"
        self._head = {
            "id": f"{'chatcmpl' if chat else 'cmpl'}-{uuid.uuid4().hex}",
            "object": kind, "created": int(time.time()), "model": model,
        }  # fmt: skip

    def whole(self, told: Sequence[News], job: Job) -> dict[str, Any]:
        """All texts at once."""
        choices = []
        for index in range(self._texts):
            own = [news for news in told if news.index == index]
            text, last = "".join(news.piece for news in own), own[-1]
            body = {"message": {"role": "assistant", "content": text}} if self._chat else {"text": text}
            choices.append(self._choice(last, body))
        return {**self._head, "choices": choices, "usage": _usage(job)}

    def opening(self) -> Iterator[dict[str, Any]]:
        """What a stream begins with: in a chat, who speaks."""
        if self._chat:
            for index in range(self._texts):
                yield self._chunk([self._choice(News(index), {"delta": {"role": "assistant", "content": ""}})])

    def piece(self, news: News) -> dict[str, Any]:
        """A piece of a stream."""
        body = {"delta": {"content": news.piece} if news.piece else {}} if self._chat else {"text": news.piece}
        return self._chunk([self._choice(news, body)])

    def usage_piece(self, job: Job) -> dict[str, Any]:
        """The last piece, for those who ask how much it was."""
        return {**self._chunk([]), "usage": _usage(job)}

    def _chunk(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        head = {**self._head, "object": "chat.completion.chunk"} if self._chat else self._head
        return {**head, "choices": choices}

    def _choice(self, news: News, body: dict[str, Any]) -> dict[str, Any]:
        ours: dict[str, Any] = {"q": news.q}
        if news.phi is not None:
            passed = news.phi >= self._order.control.threshold
            ours |= {"phi": news.phi, "scores": news.scores, "verdict": "pass" if passed else "fail"}
        return {"index": news.index, **body, "logprobs": None, "finish_reason": news.finish_reason, "scone": ours}


def _usage(job: Job) -> dict[str, int]:
    return {
        "prompt_tokens": job.prompt_tokens,
        "completion_tokens": job.new_tokens,
        "total_tokens": job.prompt_tokens + job.new_tokens,
    }
