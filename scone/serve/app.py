"""The server's HTTP: requests in OpenAI's shapes, replies whole or as they are written."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import AsyncIterator, Coroutine
from contextlib import aclosing, asynccontextmanager
from typing import Any, TypeVar

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse, StreamingResponse

from scone.errors import InputError
from scone.serve.desk import Desk, Full, Job, News
from scone.serve.orders import Chat, Completion, Order, read
from scone.serve.replies import Reply
from scone.serve.steering import Steering

__all__ = ["application"]


def application(steering: Steering, *, batch: int, queue: int, max_tokens: int) -> FastAPI:
    """What `scone.serve.build` returns; the thread that writes begins and ends with it."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        app.state.desk = Desk(steering, batch=batch, queue=queue)
        yield
        await asyncio.to_thread(app.state.desk.close)

    app = FastAPI(title="SConE", lifespan=lifespan)

    for kind in (RequestValidationError, InputError, Full, Exception):
        app.add_exception_handler(kind, _refused)

    async def serve(body: Completion | Chat, request: Request) -> Any:
        desk: Desk = app.state.desk
        if body.model not in (None, steering.name, "scone"):
            return _error(404, f"model must be {steering.name!r}, got {body.model!r}")
        order = read(body, seed=secrets.randbits(31))
        if order.max_new_tokens > max_tokens:
            raise InputError(f"max_tokens must be at most {max_tokens}, got {order.max_new_tokens}")
        desk.check(order)
        reply = Reply(order, steering.name, chat=isinstance(body, Chat))
        told = _Told(desk, order)
        if body.stream:
            usage = bool((body.stream_options or {}).get("include_usage"))
            first = await _while_there(request, told, told.next())  # a mistake shows before a stream has begun
            return StreamingResponse(_events(told, first, reply, usage), media_type="text/event-stream")
        whole = await _while_there(request, told, told.whole())
        return JSONResponse(reply.whole(whole, told.job) if whole else {})

    @app.post("/v1/completions")
    async def completions(body: Completion, request: Request) -> Any:
        """Continue a prompt, or several."""
        return await serve(body, request)

    @app.post("/v1/chat/completions")
    async def chats(body: Chat, request: Request) -> Any:
        """Answer a conversation."""
        return await serve(body, request)

    @app.get("/v1/models")
    async def models() -> Any:
        """The one model, and the names of the wishes that `scone.attribute` and `scone.avoid` take."""
        one = {"id": steering.name, "object": "model", "owned_by": "scone", "attributes": steering.names}
        return {"object": "list", "data": [one]}

    @app.get("/health")
    async def health() -> Any:
        """200 while texts are written."""
        alive = app.state.desk.alive
        return JSONResponse({"status": "ok" if alive else "down"}, 200 if alive else 503)

    @app.get("/metrics")
    async def metrics() -> Any:
        """Counts, in the text format of Prometheus."""
        return PlainTextResponse(app.state.desk.metrics.page(app.state.desk.gauges()))

    return app


def _refused(request: Request, problem: Exception) -> JSONResponse:
    """An exception as OpenAI's clients expect it."""
    if isinstance(problem, RequestValidationError):
        first = problem.errors()[0]
        where = ".".join(str(part) for part in first["loc"] if part != "body")
        return _error(400, f"{where}: {first['msg']}".removeprefix(": "))
    if isinstance(problem, Full):
        return _error(429, str(problem), "rate_limit_error", {"Retry-After": "1"})
    if isinstance(problem, InputError):
        return _error(400, str(problem))
    return _error(500, str(problem), "server_error")


def _error(status: int, message: str, kind: str = "invalid_request_error", headers: Any = None) -> JSONResponse:
    return JSONResponse({"error": {"message": message, "type": kind, "param": None, "code": None}}, status, headers)


T = TypeVar("T")


class _Told:
    """What the desk's thread tells of an order, on this side of the fence between threads and coroutines."""

    def __init__(self, desk: Desk, order: Order) -> None:
        self._desk, self._left = desk, len(order.prompts) * order.n
        self._news: asyncio.Queue[News | Exception] = asyncio.Queue()
        loop = asyncio.get_running_loop()

        def tell(news: News | Exception) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(self._news.put_nowait, news)

        self.job: Job = desk.submit(order, tell)

    async def rest(self, first: News | None = None) -> AsyncIterator[News]:
        """All that is told, until every text has ended."""
        while self._left:
            news = first or await self.next()
            first = None
            self._left -= news.finish_reason is not None
            yield news

    async def whole(self) -> list[News]:
        """Everything at once."""
        return [news async for news in self.rest()]

    def leave(self) -> None:
        """Whoever listened has gone, or has heard all."""
        self._desk.cancel(self.job)

    async def next(self) -> News:
        """The next news; raises what ended the job."""
        news = await self._news.get()
        if isinstance(news, Exception):
            raise news
        return news


async def _events(told: _Told, first: News | None, reply: Reply, usage: bool) -> AsyncIterator[str]:
    """Server-sent events; whoever goes away in the middle ends the job."""
    try:
        for piece in reply.opening():
            yield _event(piece)
        async with aclosing(told.rest(first)) as rest:  # type: ignore[type-var]
            async for news in rest:
                yield _event(reply.piece(news))
        if usage:
            yield _event(reply.usage_piece(told.job))
        yield "data: [DONE]\n\n"
    except Exception as problem:  # the status has gone out already
        yield _event({"error": {"message": str(problem), "type": "server_error", "param": None, "code": None}})
    finally:
        told.leave()


def _event(body: dict[str, Any]) -> str:
    return f"data: {json.dumps(body, ensure_ascii=False)}\n\n"


async def _while_there(request: Request, told: _Told, work: Coroutine[Any, Any, T]) -> T | None:
    """What some work comes to, or None where the client hangs up first; the job goes on only if it succeeds."""

    async def gone() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    done, left = asyncio.ensure_future(work), asyncio.ensure_future(gone())
    try:
        await asyncio.wait({done, left}, return_when=asyncio.FIRST_COMPLETED)
        if done.done() and not done.exception():
            return done.result()
        told.leave()
        return done.result() if done.done() else None
    finally:
        done.cancel()
        left.cancel()
