"""A server for one machine: OpenAI-style completions and chats, steered as each request asks.

    app = build(Steering.from_pretrained(default=["positive"]))     # an ASGI application; `scone serve` runs it

`orders` says what a request may ask, `desk` keeps the queue and the batches, `app` speaks HTTP.
"""

from __future__ import annotations

from typing import Any

from scone.errors import InputError
from scone.serve.steering import Steering

__all__ = ["Steering", "build"]


def build(steering: Steering, *, batch: int = 16, queue: int = 64, max_tokens: int = 1024) -> Any:
    """An ASGI application for these models: `batch` texts at once, `queue` requests that wait, `max_tokens` each.

    >>> build(Steering.from_pretrained()).title
    'SConE'
    """
    try:
        import fastapi  # noqa: F401
    except ImportError as missing:
        raise InputError(f"a server needs fastapi and uvicorn: pip install 'scone[serve]' ({missing})") from missing
    from scone.serve.app import application

    return application(steering, batch=batch, queue=queue, max_tokens=max_tokens)
