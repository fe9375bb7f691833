"""Control of the texts that a server writes side by side; knows nothing of vLLM: histories and logits in, logits out.

Each step is one batch of work: all candidates of all texts go through the draft or the masked LM together, and each
verifier reads those that need it.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from scone.config import SconeConfig
from scone.errors import InputError
from scone.lm import Candidates, propose
from scone.lookahead import Draft, Expectation, Lookahead, Masked, Mix, Nothing, Parts
from scone.lookahead.parts import LM_STATES
from scone.loop import Judged, Loop, judge, own_verifiers, strengths_of
from scone.output import Timer
from scone.reweigh import reweigh
from scone.seeds import text_seed
from scone.text import Text, Writer
from scone.vllm.asked import Asked
from scone.vllm.models import Models

__all__ = ["Controller", "Served"]

log = logging.getLogger("scone.vllm")

_FAR = 64  # tokens that remain where a text's end is out of every lookahead's sight


@dataclass
class Served(Text):
    """A text of one request: what was asked for, and what a lookahead carries on with each token that may come."""

    asked: Asked = field(default_factory=Asked)
    writer: Any = None
    max_tokens: int | None = None
    next: dict[int, Any] = field(default_factory=dict)  # by token

    @property
    def steered(self) -> bool:
        """Whether its next token is judged: its marker has come, and its request asks for control or for a bound."""
        return self.begun and (self.asked.strength > 0 or self.asked.below > 0)


@dataclass(frozen=True)
class _Group:
    """Texts that are judged together."""

    lookahead: str
    remaining: int
    min_mass: float


class Controller:
    """One server's control. `serve` opens a text, `steer` changes the logits of those whose turn it is."""

    def __init__(self, models: Models) -> None:
        self.models, self.settings = models, models.settings
        self.timer = Timer()
        self.steps = self.texts = 0
        self.seconds = 0.0
        self._lookaheads: dict[str, Lookahead] = {}
        self._warm_up()

    def _warm_up(self) -> None:
        """One text, so that models, tables and packed weights are there before the first request."""
        settings, (name, *_) = self.settings, self.settings.attributes
        asked = Asked(attribute=(name,), strength=1.0, lookahead=settings.lookahead, top_k=2)
        logits = torch.zeros(1, self.models.lm.vocabulary, device=self.models.lm.device)
        text = self.serve(asked, [0, 0])
        self._steered(self._group(text), [text], logits)

    def serve(self, asked: Asked, prompt_ids: Sequence[int], params: Any = None) -> Served:
        """The text of a request. `params`: its `max_tokens`, `stop` and `stop_token_ids`."""
        prompt, tokenizer = list(prompt_ids), self.models.lm
        stop = getattr(params, "stop", None) or ()
        ids = getattr(params, "stop_token_ids", None) or ()
        return Served(
            tokenizer.decode(prompt) if asked.verdict == "text" else "",
            prompt,
            text_seed(asked.seed, 0, prompt),
            asked=asked,
            verifier=self.models.verifier(asked),
            writer=Writer(tokenizer, stop=[stop] if isinstance(stop, str) else list(stop), stop_token_ids=list(ids)),
            max_tokens=getattr(params, "max_tokens", None),
            after=asked.after,
        )

    @torch.no_grad()
    def steer(self, texts: Sequence[Served], histories: Sequence[Sequence[int]], logits: Tensor) -> Tensor:
        """New logits (B, V) for texts that have written so much; a text whose marker has not come keeps its own.

        Where something fails the texts end: nothing goes out that was to be judged and was not.
        """
        began = time.perf_counter()
        new = logits.clone()
        groups: dict[_Group, list[int]] = {}
        for b, (text, history) in enumerate(zip(texts, histories)):
            try:
                self._catch_up(text, history)
            except InputError as error:
                log.error("a text is ended, for it cannot be followed: %s", error)
                new[b] = self._ended(text, logits[b])
                continue
            if text.steered and bool(logits[b].isfinite().any()) and not bool(logits[b].isnan().any()):
                groups.setdefault(self._group(text), []).append(b)
        for group, rows in groups.items():
            members = [texts[b] for b in rows]
            try:
                new[rows] = self._steered(group, members, logits[rows].float()).to(new.dtype)
            except Exception:
                log.exception("%d texts are ended, for they could not be judged", len(rows))
                for b in rows:
                    new[b] = self._ended(texts[b], logits[b])
        self.steps, self.texts = self.steps + 1, self.texts + len(texts)
        self.seconds += time.perf_counter() - began
        return new

    def _catch_up(self, text: Served, history: Sequence[int]) -> None:
        """Take the tokens that have been written since the last step."""
        ids = list(history)
        if min(ids, default=0) < 0:
            raise InputError(
                "the runner hides the tokens that it has written: "
                "name the processor with --logits-processors, or start with --no-async-scheduling"
            )
        if ids == text.new_ids:
            return
        if len(ids) == len(text.new_ids) + 1 and ids[:-1] == text.new_ids:
            text.carried = text.next.get(ids[-1], text.carried)
        text.next, text.new_ids = {}, ids
        text.continuation, _ = text.writer.continuation(text)

    def _group(self, text: Served) -> _Group:
        left = _FAR if text.max_tokens is None else text.max_tokens - len(text.new_ids) - 1
        sight = max(1, _sight(self._lookahead(text.asked.lookahead), self.models.parts))
        # Under a bound all candidates are judged, so that none is taken on trust.
        return _Group(
            text.asked.lookahead, max(0, min(left, sight)), 0.0 if text.asked.below else self.settings.min_mass
        )

    def _steered(self, group: _Group, texts: Sequence[Served], logits: Tensor) -> Tensor:
        """log p* over the candidates and -inf elsewhere: (B, V)."""
        k = torch.tensor([text.asked.top_k for text in texts])
        found = propose(logits, top_k=int(k.max()))
        beyond = torch.arange(found.tokens.shape[1])[None] >= k[:, None]
        candidates = Candidates(found.tokens, found.log_p.masked_fill(beyond, -torch.inf))
        lookahead = self._lookahead(group.lookahead)
        config = SconeConfig(lookahead=lookahead, min_mass=group.min_mass, context_window=self.settings.context_window)
        loop = Loop(self.models.parts, config, lookahead, _Writers(), timer=self.timer)
        judged = judge(loop, texts, candidates, None, [group.remaining] * len(texts))
        _carry(texts, candidates, judged)
        strengths = strengths_of(own_verifiers(texts, self.models.parts))
        log_p_star = reweigh(candidates.log_p, judged.q, config.reweigh, strength=1.0, strengths=strengths)
        holds = judged.q.prod(0)  # (B, K)
        scores = torch.full_like(logits, -torch.inf)
        scores.scatter_(1, candidates.tokens.to(scores.device), log_p_star.to(scores))
        for b, text in enumerate(texts):
            if not text.asked.below:
                continue
            low = (holds[b] < text.asked.below) & judged.known[b]
            if bool((low | candidates.log_p[b].isneginf()).all()):
                scores[b] = self._ended(text, scores[b])
            else:
                scores[b, candidates.tokens[b][low]] = -torch.inf
        return scores

    def _ended(self, text: Served, like: Tensor) -> Tensor:
        """Logits (V,) that allow nothing but the end."""
        ends = sorted(self.models.lm.stop_ids | text.writer.stop_ids)
        token = text.asked.end_token if text.asked.end_token is not None else (ends or [0])[0]
        return torch.full_like(like, -torch.inf).index_fill(0, torch.tensor([token], device=like.device), 0.0)

    def _lookahead(self, name: str) -> Lookahead:
        """The lookahead of a name, with what it needs loaded."""
        if name not in self._lookaheads:
            settings = self.settings
            kinds = {
                "draft": lambda: Draft(settings.draft, Expectation(tokens=settings.tokens), settings.window),
                "masked": lambda: Masked(tokens=2 * settings.tokens),
                "nothing": Nothing,
            }
            made = [kinds[part]() for part in name.split("+")]
            lookahead = made[0] if len(made) == 1 else Mix(*made)
            lookahead = lookahead.serving(self.models.parts.offers - {LM_STATES})
            lookahead.prepare(self.models.parts)
            self._lookaheads[name] = lookahead
        return self._lookaheads[name]


class _Writers(Writer):
    """Each text has a writer of its own."""

    def __init__(self) -> None:
        """There is nothing that all texts share."""

    def continuation(self, text: Any, token: int | None = None) -> tuple[str, bool]:
        return text.writer.continuation(text, token)


def _carry(texts: Sequence[Served], candidates: Candidates, judged: Judged) -> None:
    """Keep what a lookahead carries on with each candidate until it is known which was taken."""
    if judged.carried is not None:
        for (b, k), row in judged.place.items():
            texts[b].next[int(candidates.tokens[b, k])] = judged.carried[row]


def _sight(lookahead: Lookahead, parts: Parts) -> int:
    """After how many tokens of the LM it makes no difference to a lookahead that more may follow."""
    if isinstance(lookahead, Mix):
        return max(_sight(part, parts) for part in lookahead.parts)
    tokens: int = getattr(getattr(lookahead, "inner", lookahead), "tokens", 0)
    return math.ceil((tokens + 0.5) / parts.density) if isinstance(lookahead, Masked) else tokens
