"""The queue and the batches: one thread writes for everybody, and texts join and leave between two tokens.

Orders that ask for the same are written in one batch; where several batches are under way they take turns, token by token.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from scone.decode import Scone
from scone.errors import InputError, SconeError
from scone.loop import Taken
from scone.running import Running
from scone.serve.guard import Guard
from scone.serve.metrics import Metrics
from scone.serve.orders import Order
from scone.serve.steering import Steering
from scone.text import Text, scored
from scone.verifier import Expression

__all__ = ["Desk", "Full", "Job", "News"]


class Full(SconeError):
    """No room in the queue."""


@dataclass(frozen=True)
class News:
    """What has become of one text of a job: more of it, or its end."""

    index: int
    piece: str = ""
    q: float | None = None  # of the last token taken
    finish_reason: str | None = None
    phi: float | None = None  # at the end
    scores: dict[str, float] = field(default_factory=dict)  # φ by wish, at the end


@dataclass(eq=False)
class _Seat:
    """A text of a job, and how much of it has been shown."""

    job: Job
    index: int
    text: Text
    guard: Guard | None
    shown: int = 0
    q: float | None = None


@dataclass(eq=False)
class Job:
    """An order under way. `tell` is called from the desk's thread with News, or with the exception that ended it."""

    order: Order
    tell: Callable[[News | Exception], None]
    began: float = field(default_factory=time.monotonic)
    wishes: dict[str, Expression] = field(default_factory=dict)
    seats: list[_Seat] = field(default_factory=list)
    prompt_tokens: int = 0
    new_tokens: int = 0
    gone: bool = False


class Desk:
    """Takes orders, up to `queue` that wait, and writes up to `batch` texts at once."""

    def __init__(self, steering: Steering, *, batch: int = 16, queue: int = 64) -> None:
        self.steering, self.batch, self.queue = steering, batch, queue
        self.metrics = Metrics()
        self._waiting: deque[Job] = deque()
        self._batches: dict[tuple[Scone, bool], Running] = {}
        self._seats: dict[int, _Seat] = {}  # by `id` of their texts
        self._changed = threading.Condition()
        self._open = True
        self._thread = threading.Thread(target=self._work, name="scone-desk", daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether anybody writes."""
        return self._thread.is_alive()

    def check(self, order: Order) -> None:
        """Raise InputError for an order that can never be served."""
        texts = len(order.prompts) * order.n
        if texts > self.batch:
            raise InputError(f"n must leave at most {self.batch} texts a request, got {texts}")
        self.steering.read(order)

    def submit(self, order: Order, tell: Callable[[News | Exception], None]) -> Job:
        """Put an order in the queue; raises Full where there is no room."""
        job = Job(order, tell)
        with self._changed:
            if not self._open or len(self._waiting) >= self.queue:
                self.metrics.count("rejected")
                raise Full(f"the queue is full: {len(self._waiting)} requests wait")
            self._waiting.append(job)
            self._changed.notify()
        return job

    def cancel(self, job: Job) -> None:
        """Let a job's texts leave before the next token, or the queue; nothing more is told of it."""
        with self._changed:
            job.gone = True
            if job in self._waiting:
                self._waiting.remove(job)
                self.metrics.count("cancelled")

    def close(self) -> None:
        """Stop writing; what is under way ends with an error."""
        with self._changed:
            self._open = False
            self._changed.notify()
        self._thread.join()

    def gauges(self) -> dict[str, int]:
        """How much is under way, for /metrics."""
        return {"waiting_requests": len(self._waiting), "running_texts": len(self._seats)}

    def _work(self) -> None:
        while True:
            with self._changed:
                while self._open and not self._waiting and not self._seats:
                    self._changed.wait()
                if not self._open:
                    break
            self._dismiss()
            self._admit()
            for key in list(self._batches):
                self._step(key)
        for job in {*self._waiting, *(seat.job for seat in self._seats.values())}:
            job.tell(RuntimeError("the server is closing"))

    def _dismiss(self) -> None:
        """Let texts leave whose client has gone."""
        for seat in [seat for seat in self._seats.values() if seat.job.gone]:
            seat.text.finish_reason = "cancelled"
            self._leave(seat)

    def _admit(self) -> None:
        """Orders in their turn, as long as there is room for all their texts."""
        while True:
            with self._changed:
                first = self._waiting[0] if self._waiting else None
                size = len(first.order.prompts) * first.order.n if first else 0
                if first is None or len(self._seats) + size > self.batch:
                    return
                self._waiting.popleft()
            try:
                self._seat(first)
            except Exception as problem:
                self._fail([first], problem)

    def _seat(self, job: Job) -> None:
        order = job.order
        engine, job.wishes = self.steering.engine_for(order)
        texts = engine.open(order.prompts, max_new_tokens=order.max_new_tokens, copies=order.n, seed=order.seed)
        guarded = order.control.verdict == "withhold"
        for index, text in enumerate(texts):
            text.stop = order.stop
            guard = Guard(order.control.threshold, order.control.hold_back) if guarded else None
            job.seats.append(_Seat(job, index, text, guard))
        job.prompt_tokens = sum(len(text.prompt_ids) for text in texts[:: order.n])
        key = (engine, order.temperature != 0)
        if key not in self._batches:
            self._batches[key] = Running(engine.loop(do_sample=key[1]))
        self._batches[key].join(texts, order.max_new_tokens)
        self._seats.update({id(seat.text): seat for seat in job.seats})

    def _step(self, key: tuple[Scone, bool]) -> None:
        """One token for each text of a batch."""
        batch = self._batches[key]
        jobs = dict.fromkeys(self._seats[id(text)].job for text in batch.texts)
        began = time.monotonic()
        try:
            if taken := batch.step():
                self.metrics.step(len(taken.texts), time.monotonic() - began)
                self._tell(batch, taken)
        except Exception as problem:  # of a model: whoever is in this batch is told, others go on
            self._fail(list(jobs), problem)
        if not batch:
            del self._batches[key]

    def _tell(self, batch: Running, taken: Taken) -> None:
        """Show what may be shown, and end what has ended."""
        decision, ended = taken.decision, []
        q = decision.q.detach()
        for b, text in enumerate(taken.texts):
            seat = self._seats[id(text)]
            seat.job.new_tokens += 1
            judged = decision.judged.known[b]
            seat.q = float(q[b, taken.chosen[b]]) if bool(judged.any()) else None
            held = batch.loop.writer.held_back(text)
            if seat.guard is not None:
                best = float(q[b][judged].max()) if bool(judged.any()) else None
                visible = min(seat.guard.shown(text.continuation, best), len(text.continuation) - held)
                if seat.guard.tripped and text.finish_reason is None:
                    text.finish_reason = "content_filter"
            else:
                visible = len(text.continuation) - held
            if text.finish_reason is None:
                self._show(seat, visible)
            else:
                ended.append((seat, visible))
        if ended:
            self._end([seat for seat, _ in ended], [visible for _, visible in ended])

    def _show(self, seat: _Seat, visible: int) -> None:
        if visible > seat.shown:
            if not seat.job.gone:
                seat.job.tell(News(seat.index, seat.text.continuation[seat.shown : visible], seat.q))
            seat.shown = visible

    def _end(self, seats: Sequence[_Seat], visible: Sequence[int]) -> None:
        """φ of finished texts, and their last words: a guarded text that fails keeps what was held back to itself."""
        for seat, upto in zip(seats, visible):
            prompt = seat.job.order.prompts[seat.index // seat.job.order.n]
            own = {name: replace(seat.text, verifier=wish.about(prompt)) for name, wish in seat.job.wishes.items()}
            scores = {name: float(scored([text], seat.job.wishes[name])) for name, text in own.items()}
            phi = math.prod(scores.values())
            if seat.guard is not None and phi < seat.guard.threshold:
                seat.text.finish_reason = "content_filter"
            if seat.text.finish_reason != "content_filter":
                upto = len(seat.text.continuation)
            self._show(seat, upto)
            if not seat.job.gone:
                seat.job.tell(News(seat.index, "", seat.q, seat.text.finish_reason, phi, scores))
            self._leave(seat)

    def _leave(self, seat: _Seat) -> None:
        del self._seats[id(seat.text)]
        self.metrics.text(seat.text.finish_reason or "error")
        if not any(id(other.text) in self._seats for other in seat.job.seats):
            self.metrics.count("cancelled" if seat.job.gone else "served", time.monotonic() - seat.job.began)

    def _fail(self, jobs: Sequence[Job], problem: Exception) -> None:
        for job in jobs:
            for seat in job.seats:
                seat.text.finish_reason = seat.text.finish_reason or "error"
                self._seats.pop(id(seat.text), None)
            self.metrics.count("refused" if isinstance(problem, InputError) else "failed")
            job.tell(problem)
