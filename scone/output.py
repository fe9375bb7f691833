"""What generation returns: texts, a record of every step, and the time that each phase took."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields

from torch import Tensor

from scone.trace import Trace
from scone.trace.notebook import summary_of, table_of

__all__ = ["Cost", "Future", "Output", "Step", "Timer"]


@dataclass(frozen=True)
class Cost:
    """Work that was done: rows of a batch that each model read, and passes of the LM that had to wait for each other.

    `rested` counts the tokens that safe texts were written without a look.

    >>> Cost(lm_rows=2) + Cost(lm_rows=3, lm_passes=1)
    Cost(lm_rows=5, lm_passes=1, masked_lm_rows=0, verifier_rows=0, draft_rows=0, rested=0)
    """

    lm_rows: int = 0
    lm_passes: int = 0
    masked_lm_rows: int = 0
    verifier_rows: int = 0
    draft_rows: int = 0
    rested: int = 0

    def __add__(self, other: Cost) -> Cost:
        return Cost(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))


@dataclass(frozen=True)
class Future:
    """What a lookahead reads behind a candidate; `by` is the lookahead's class.

    >>> Future(by="Paths", text=" and the sun was out").by
    'Paths'
    """

    by: str
    text: str


@dataclass(frozen=True)
class Step:
    """One step of Algorithm 1: k candidates, most probable first.

    `log_p` are the LM's log-probabilities, `q` the probability that the finished text satisfies the attribute, and
    `log_p_star` the reweighed distribution, normalised over the candidates.

    >>> import torch
    >>> step = Step(torch.tensor([7, 3]), torch.zeros(2), torch.ones(2), torch.zeros(2), chosen=1)
    >>> step.token
    3
    """

    tokens: Tensor  # (k,) int64
    log_p: Tensor  # (k,)
    q: Tensor  # (k,)
    log_p_star: Tensor  # (k,)
    chosen: int | None = None  # index of the candidate that was taken
    seconds: dict[str, float] = field(default_factory=dict)  # by phase, for the whole batch
    cost: Cost = field(default_factory=Cost)  # of the lookahead, for the whole batch
    hopeless: bool = False  # the verifier gave no candidate a chance, so that p* is the LM's own distribution
    resampled: bool = False  # another particle had written it, which this one went on from
    pieces: tuple[str, ...] = ()  # k, what the candidates read as
    judged: Tensor | None = None  # (k,) bool: False where q is only the mean of the others'
    end: int = 0  # characters of the continuation with this token
    futures: tuple[tuple[Future, ...], ...] = ()  # with explain=True: k, what was read behind each candidate
    score: float | None = None  # with explain=True: φ of the text so far

    @property
    def token(self) -> int | None:
        """The token that was taken."""
        return None if self.chosen is None else int(self.tokens[self.chosen])

    def _repr_html_(self) -> str:
        return table_of(self)


@dataclass(frozen=True)
class Output:
    """Finished texts: n prompts × `num_return_sequences`, the sequences of a prompt side by side.

    >>> from scone.decode import Scone
    >>> out = Scone.from_pretrained().generate(["The tea"], max_new_tokens=2, num_return_sequences=2)
    >>> len(out), out.texts[0] == "The tea" + out.continuations[0], [len(steps) for steps in out.trace]
    (2, True, [2, 2])
    """

    texts: list[str]  # what the verifier judges: prompt and continuation; the latter alone for a chat or by `verdict`
    continuations: list[str]
    token_ids: list[list[int]]  # new tokens, the stop token included
    scores: Tensor  # (n,) φ of the texts
    finish_reasons: list[str]  # "stop" or "length"
    trace: Trace  # one Step for each new token of each text; a list of lists that can show itself
    seconds: dict[str, float]  # by phase, summed over the steps
    cost: Cost  # of all lookaheads, those of particles that were not kept included
    log_evidence: list[float] | None = None  # with keep="sample": log of an estimate of E[φ] under the LM, a text each

    def __len__(self) -> int:
        return len(self.texts)

    def _repr_html_(self) -> str:
        return summary_of(self)


class Timer:
    """Seconds by phase.

    >>> timer = Timer()
    >>> with timer("propose"):
    ...     pass
    >>> list(timer.take())
    ['propose']
    """

    def __init__(self) -> None:
        self._now: dict[str, float] = {}

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            self._now[phase] = self._now.get(phase, 0.0) + time.perf_counter() - start

    def take(self) -> dict[str, float]:
        """The seconds since the last call."""
        taken, self._now = self._now, {}
        return taken
