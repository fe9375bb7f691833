"""The one decode loop: propose → look ahead → reweigh → choose → commit, for texts that are written side by side.

`generate`, `stream`, `custom_generate` and the logits processor all go through it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from scone.config import SconeConfig
from scone.failure import Room
from scone.lm import Candidates, CausalLM, LMState, choose, fetched, propose, sent
from scone.lookahead import Answer, Lookahead, Parts, Query, judge_apart
from scone.output import Cost, Future, Step, Timer
from scone.particles import Population
from scone.reweigh import all_hold, reweigh
from scone.seeds import token_seed
from scone.text import Text, Writer
from scone.verifier import Expression

__all__ = [
    "Decision", "Judged", "Loop", "Taken", "commit", "judge", "own_verifiers", "prefill", "rests", "strengths_of",
]  # fmt: skip

Process = Callable[[Sequence[Text], Tensor], Tensor]
"""(texts, the LM's logits (B, V)) -> logits (B, V), before the candidates are picked."""


@dataclass(frozen=True)
class Judged:
    """q of the candidates, and what the lookahead leaves behind for each that had one.

    >>> Judged(torch.ones(1, 1, 2), torch.tensor([[True, False]])).place
    {}
    """

    q: Tensor  # (terms, B, K), where the candidates were found
    known: Tensor  # (B, K) bool, False where q is only the mean of the others'
    cost: Cost = Cost()
    place: Mapping[tuple[int, int], int] = field(default_factory=dict)  # (text, candidate) -> row of what follows
    carried: Sequence[object] | None = None  # what a text carries on if that candidate is taken
    read: LMState | None = None  # the LM after that candidate
    futures: Sequence[Sequence[Future]] = ()  # what was read behind it, where the loop explains itself

    @property
    def seen(self) -> Tensor:
        """(B,) bool, False where a text's choice was settled and nothing was judged."""
        return self.known.any(-1)


@dataclass(frozen=True)
class Decision:
    """One step for B texts: q and p* are where the LM's logits are, until a token is taken."""

    candidates: Candidates
    judged: Judged
    q: Tensor  # (B, K) product over the verifier's terms, each to its strength
    log_p_star: Tensor  # (B, K)
    epsilon: float  # a q of no more than this is none

    @property
    def hopeless(self) -> Tensor:
        """(B,) bool: q was judged, and is none for any candidate; asked of a decision on the CPU."""
        q = self.q.masked_fill(self.candidates.log_p.isneginf(), 0)
        return self.judged.seen & (q <= self.epsilon).all(-1)

    def with_choice(self, chosen: Tensor) -> tuple[Decision, list[int]]:
        """The decision on the CPU, and what was taken (B,): one wait for both."""
        q, log_p_star, chosen = fetched(self.q, self.log_p_star, chosen)
        return replace(self, q=q, log_p_star=log_p_star), chosen.tolist()

    def on_host(self) -> Decision:
        """The decision on the CPU."""
        return self.with_choice(torch.zeros(0))[0]

    def step(self, b: int, chosen: int | None, seconds: dict[str, float], writer: Writer, end: int = 0) -> Step:
        """The record of one text's step, without the places that hold no candidate."""
        real, judged = ~self.candidates.log_p[b].isneginf(), self.judged
        tokens, log_p = self.candidates.tokens[b][real], self.candidates.log_p[b][real]
        rows = [judged.place.get((b, k)) for k in real.nonzero()[:, 0].tolist()]
        return Step(
            tokens, log_p, self.q[b][real], self.log_p_star[b][real], chosen=chosen, seconds=seconds, cost=judged.cost,
            pieces=writer.pieces(tokens.tolist()), judged=judged.known[b][real], end=end,
            hopeless=bool(self.hopeless[b]),
            futures=tuple(() if row is None else tuple(judged.futures[row]) for row in rows) if judged.futures else (),
        )  # fmt: skip

    def row_after(self, b: int, token: int) -> int | None:
        """The row of `judged.read` in which the LM has read this token after text b, or None."""
        if self.judged.read is None:
            return None
        return next((row for (text, k), row in self.judged.place.items()
                     if text == b and int(self.candidates.tokens[b, k]) == token), None)  # fmt: skip


@dataclass(frozen=True)
class Taken:
    """A step that was made: the texts have grown by their tokens; a caller may end some before the loop goes on."""

    texts: Sequence[Text]
    decision: Decision
    chosen: Sequence[int]
    state: LMState  # the LM before the step
    seconds: dict[str, float]


@dataclass(frozen=True)
class Loop:
    """Everything that stays the same from step to step.

    >>> from scone.decode import Scone
    >>> engine = Scone.from_pretrained(target="positive")
    >>> loop, texts = engine.loop(), engine.open("The movie was", max_new_tokens=3, seed=0)
    >>> [len(taken.texts[0].new_ids) for taken in loop.run(texts, prefill(loop.parts.lm, texts), 3)]
    [1, 2, 3]
    """

    parts: Parts
    config: SconeConfig
    lookahead: Lookahead
    writer: Writer
    do_sample: bool = True
    process: Process | None = None
    population: Population | None = None  # of particles, where texts are those
    timer: Timer = field(default_factory=Timer)
    explain: bool = False  # whether it is kept what lookaheads read
    room: Room = field(default_factory=Room)

    def run(self, texts: Sequence[Text], state: LMState, max_new_tokens: int) -> Iterator[Taken]:
        """Step by step until all texts have ended or are long enough; texts that have ended leave the batch."""
        for i in range(max_new_tokens):
            taken = self.advance(texts, state, [max_new_tokens - i - 1] * len(texts))
            if self.population is not None:
                self.population.weigh(texts, taken.decision, taken.chosen)
            yield taken
            if i + 1 == max_new_tokens:
                return
            with self.timer("commit"):
                texts, rows = self.go_on(texts)
                if not texts:
                    return
                last = [text.new_ids[-1] for text in texts]
                state = commit(self.parts.lm, state, rows, last, taken.decision)

    def advance(self, texts: Sequence[Text], state: LMState, remaining: Sequence[int]) -> Taken:
        """One step: each text takes a token, after which `remaining` of its own may follow."""
        decision = self.decide(texts, state, remaining)
        with self.timer("sample"):
            decision, chosen = decision.with_choice(self.choose(texts, decision))
        for b, (text, k) in enumerate(zip(texts, chosen)):
            if bool(decision.judged.seen[b]):
                text.q, text.rested = decision.q[b, k].item(), 0
            elif rests(text, self.config):
                text.rested += 1
            self.take(text, decision, b, int(decision.candidates.tokens[b, k]), remaining[b])
        return Taken(texts, decision, chosen, state, self.timer.take())

    def go_on(self, texts: Sequence[Text]) -> tuple[Sequence[Text], list[int]]:
        """The texts of the next step, and for each its row in this one; particles may go on from one another."""
        row = {id(text): b for b, text in enumerate(texts)}
        if self.population is None:
            living: list[Text] = [text for text in texts if text.finish_reason is None]
            return living, [row[id(text)] for text in living]
        self.population.resample(len(texts[0].new_ids) - 1)
        moves, self.population.moves = self.population.moves, {}
        living = [text for text in self.population.particles if text.finish_reason is None]
        return living, [row[id(moves.get(id(text), text))] for text in living]

    def decide(self, texts: Sequence[Text], state: LMState, remaining: int | Sequence[int]) -> Decision:
        """Propose candidates from what the LM says next, and weigh them."""
        with self.timer("propose"):
            logits = state.logits if self.process is None else self.process(texts, state.logits)
        return self.weigh(texts, logits, state, remaining)

    def weigh(
        self, texts: Sequence[Text], logits: Tensor, state: LMState | None, remaining: int | Sequence[int]
    ) -> Decision:
        """Algorithm 1 from logits (B, V); without strength nothing is judged and p* is p.

        The host waits for the candidates; what is made of them stays where the logits are.
        remaining: tokens that may follow the one that is chosen, one number for all texts or one each
        """
        each = [remaining] * len(texts) if isinstance(remaining, int) else remaining
        config, own = self.config, own_verifiers(texts, self.parts)
        strengths = strengths_of(own) if own else [term.strength for term in self.parts.verifier.terms]
        with self.timer("propose"):
            candidates = propose(
                logits, top_k=config.top_k, top_p=config.top_p, min_p=config.min_p, temperature=config.temperature
            )
        if config.strength == 0 or not (own or any(strengths)):
            q = torch.ones(len(strengths), *candidates.tokens.shape, device=candidates.on_device.tokens.device)
            judged = Judged(q, torch.zeros(candidates.tokens.shape, dtype=torch.bool))
        else:
            judged = judge(self, texts, candidates, state, each)
        with self.timer("reweigh"):
            log_p_star = reweigh(
                candidates.on_device.log_p, judged.q, config.reweigh, strength=config.strength, strengths=strengths,
                epsilon=config.epsilon, samples=self.lookahead.samples,
            )  # fmt: skip
            q = all_hold(judged.q, strengths) if len(strengths) > 1 else judged.q[0]
            if own:  # a text has the q that it has where no other is in the batch
                alone = [b for b, verifier in enumerate(own) if len(verifier.terms) == 1]
                q[alone] = judged.q[0, alone]
        return Decision(candidates, judged, q, log_p_star, config.epsilon)

    def choose(self, texts: Sequence[Text], decision: Decision) -> Tensor:
        """The candidate that each text takes: (B,), where the decision is."""
        if not self.do_sample:
            return decision.log_p_star.argmax(-1)
        return choose(
            decision.candidates.on_device.tokens,
            decision.log_p_star,
            vocabulary=self.parts.lm.vocabulary,
            seeds=[token_seed(text.seed) for text in texts],
            step=[len(text.new_ids) for text in texts],
        )

    def take(self, text: Text, decision: Decision, b: int, token: int, remaining: int) -> None:
        """Add a token to text b of a decision, with what the lookahead carries on for it."""
        judged = decision.judged
        found = (decision.candidates.tokens[b] == token).nonzero()
        row = judged.place.get((b, int(found[0]))) if len(found) else None
        if row is not None and judged.carried is not None:
            text.carried = judged.carried[row]
        elif text.carried is not None:
            text.carried = self.lookahead.pass_on(text.carried, self.parts, remaining=remaining)
        self.writer.append(text, token)


def prefill(lm: CausalLM, texts: Sequence[Text]) -> LMState:
    """The LM after all that is written; texts of the same tokens go through it once.

    >>> from scone.embedded import load_lm
    >>> lm = CausalLM(*load_lm())
    >>> prefill(lm, [Text("One", lm.encode("One"), seed) for seed in (0, 1)]).logits.shape
    torch.Size([2, 49152])
    """
    written = [(*text.prompt_ids, *text.new_ids) for text in texts]
    unique = list(dict.fromkeys(written))
    state = lm.prefill(unique)
    if len(unique) == len(texts):
        return state
    place = {ids: i for i, ids in enumerate(unique)}
    return lm.select(state, torch.tensor([place[ids] for ids in written]))


def commit(lm: CausalLM, state: LMState, rows: Sequence[int], tokens: Sequence[int], decision: Decision) -> LMState:
    """The LM after one more token each for some rows of a state, of which the lookahead may have read some already."""
    known = [decision.row_after(b, token) for b, token in zip(rows, tokens)]
    read = [i for i, row in enumerate(known) if row is not None]
    unread = [i for i, row in enumerate(known) if row is None]
    if unread:
        state = lm.select(state, torch.tensor([rows[i] for i in unread]))
        state = lm.step(state, torch.tensor([tokens[i] for i in unread]))
    if not read:
        return state
    assert decision.judged.read is not None
    after = lm.select(decision.judged.read, torch.tensor([known[i] for i in read]))
    if not unread:
        return after
    order = {i: row for row, i in enumerate([*read, *unread])}
    return lm.join(after, state, [order[i] for i in range(len(rows))])


def rests(text: Text, config: SconeConfig) -> bool:
    """Whether a text is written without a look: when it was last looked at it was safe, and that is not long ago.

    >>> text = Text("It is", prompt_ids=[7], seed=0, q=0.99)
    >>> rests(text, SconeConfig(safe=0.95, rest=2)), rests(text, SconeConfig(rest=0)), rests(text, SconeConfig(safe=1))
    (True, False, False)
    """
    return text.q is not None and text.q > config.safe and text.rested < config.rest


def judge(
    loop: Loop, texts: Sequence[Text], candidates: Candidates, state: LMState | None, remaining: Sequence[int]
) -> Judged:
    """q of every candidate: finished texts are scored as they are, probable ones looked ahead for, the rest averaged.

    A text whose choice is settled (a single candidate above `min_mass`), or that is safe for now, is not judged at all.
    """
    parts, window, timer = loop.parts, loop.config.context_window, loop.timer
    own = own_verifiers(texts, parts)
    terms = max((len(verifier.terms) for verifier in own), default=len(parts.verifier.terms))
    resting = 0
    ahead: list[tuple[int, int]] = []
    exact: list[tuple[int, int]] = []
    written: dict[tuple[int, int], str] = {}
    with timer("plan"):
        share = candidates.share.tolist()
        for b, text in enumerate(texts):
            if not text.steered:
                continue
            live = [k for k, p in enumerate(share[b]) if p > 0 and p >= loop.config.min_mass]
            if len(live) < 2:
                continue
            if remaining[b] and rests(text, loop.config):
                resting += 1
                continue
            begin = _begin(text, parts.lm, window)
            for k in live:
                continuation, ended = loop.writer.continuation(text, int(candidates.tokens[b, k]))
                (exact if ended or remaining[b] == 0 else ahead).append((b, k))
                written[b, k] = text.judged(continuation)[begin:]
    asked, row_of = _without_twins(ahead, texts, candidates, remaining, draws=loop.lookahead.draws)

    def about(pairs: list[tuple[int, int]]) -> Query:
        return Query(
            parts,
            texts=[texts[b] for b, _ in pairs],
            tokens=torch.tensor([int(candidates.tokens[pair]) for pair in pairs]),
            written=[written[pair] for pair in pairs],
            remaining=max((remaining[b] for b, _ in pairs), default=0),
            state=state,
            rows=[b for b, _ in pairs],
            timer=timer,
            verifiers=[own[b] for b, _ in pairs] if own else (),
            futures=[[] for _ in pairs] if loop.explain else None,
        )

    def as_it_is(rows: range) -> Tensor:
        query = about(exact[rows.start : rows.stop])
        return query.score(query.written)

    def ask(rows: range) -> tuple[Answer, Query]:
        pairs = asked[rows.start : rows.stop]
        query = about(pairs)
        return judge_apart(loop.lookahead, query, [remaining[b] for b, _ in pairs]), query

    found: list[Tensor] = []  # (terms or fewer, n) each
    if exact:
        with timer("verify"):
            found += loop.room.spread("texts", len(exact), as_it_is)
    cost = Cost(verifier_rows=about(exact).asked, rested=resting)
    if not ahead:
        return Judged(*_filled(found, exact, candidates, terms), cost)

    answers, queries = zip(*loop.room.spread("candidates", len(asked), ask))
    if len(asked) < len(ahead):
        q = torch.cat([answer.q for answer in answers], 1)
        found.append(q.index_select(1, sent([row_of[pair] for pair in ahead], q.device)))
    else:
        found += [answer.q for answer in answers]
    cost = sum((answer.cost for answer in answers), cost)
    read = [query for query in queries if query.was_read is not None]
    cost += Cost(lm_rows=sum(len(query.written) for query in read), lm_passes=len(read))
    carried = None if answers[0].carried is None else [entry for answer in answers for entry in answer.carried]
    after = queries[0].was_read if len(queries) == 1 else None  # in parts, the LM reads the one that is taken once more
    futures = [own for query in queries for own in query.futures or ()]
    filled = _filled(found, [*exact, *ahead], candidates, terms)
    return Judged(*filled, cost, row_of, carried, after, futures)


def own_verifiers(texts: Sequence[Text], parts: Parts) -> list[Expression]:
    """What each text is judged by; nothing where all are judged by the verifier of the parts."""
    return [text.verifier or parts.verifier for text in texts] if any(text.verifier for text in texts) else []


def strengths_of(verifiers: Sequence[Expression]) -> Tensor:
    """(terms, B): the strengths of each text's verifier, 0 for terms that it lacks.

    >>> from scone.verifier import Verifier
    >>> short = Verifier.from_callable(lambda texts: [len(text) < 9 for text in texts])
    >>> strengths_of([short & ~short, short.with_strength(3)])
    tensor([[1., 3.],
            [1., 0.]])
    """
    own = [torch.tensor([term.strength for term in verifier.terms]) for verifier in verifiers]
    return torch.nn.utils.rnn.pad_sequence(own)


def _without_twins(
    ahead: Sequence[tuple[int, int]],
    texts: Sequence[Text],
    candidates: Candidates,
    remaining: Sequence[int],
    *,
    draws: bool,
) -> tuple[list[tuple[int, int]], dict[tuple[int, int], int]]:
    """The candidates to ask about, and for each of `ahead` its row among them: the same tokens are judged once.

    Particles have in common what they began with. A lookahead that draws has futures of its own for each text.
    """
    if draws:
        return list(ahead), {pair: row for row, pair in enumerate(ahead)}
    keys = [
        (id(text.verifier), text.context, left, *text.prompt_ids, *text.new_ids) for text, left in zip(texts, remaining)
    ]
    asked: list[tuple[int, int]] = []
    found: dict[tuple[object, int], int] = {}
    row_of = {}
    for b, k in ahead:
        key = keys[b], int(candidates.tokens[b, k])
        if key not in found:
            found[key] = len(asked)
            asked.append((b, k))
        row_of[b, k] = found[key]
    return asked, row_of


def _begin(text: Text, lm: CausalLM, window: int | None) -> int:
    """The first character that is judged: the last `window` tokens of the LM count, a candidate among them."""
    ids = [*(text.prompt_ids if text.context else ()), *text.new_ids]
    if window is None or len(ids) < window:
        return 0
    kept = lm.decode(ids[len(ids) - window + 1 :]).lstrip("\N{REPLACEMENT CHARACTER}")
    return max(0, len(text.text) - len(kept))


def _filled(
    found: Sequence[Tensor], pairs: Sequence[tuple[int, int]], candidates: Candidates, terms: int
) -> tuple[Tensor, Tensor]:
    """q (terms, B, K) where the candidates are, and which were judged (B, K), on the CPU.

    found: q (terms or fewer, n) of the (text, candidate) pairs; of terms that no text has there, q is 1. The others have
    the mean of their text's, by probability.
    """
    near = candidates.on_device
    q = torch.full((terms, *near.tokens.shape), torch.nan, device=near.tokens.device)
    known = torch.zeros(near.tokens.shape, dtype=torch.bool)
    if pairs:
        text, k = torch.tensor(pairs).unbind(1)
        known[text, k] = True
        full = [torch.cat([part, part.new_ones(terms - len(part), part.shape[1])]) for part in found]
        values = torch.cat([part.to(q.device) for part in full], 1)
        q = q.flatten(1).index_copy(1, sent(text * q.shape[2] + k, q.device), values).view_as(q)
    judged = ~q.isnan()
    weight = near.share * judged
    mean = (weight * q.nan_to_num()).sum(-1, keepdim=True) / weight.sum(-1, keepdim=True).clamp(min=1e-30)
    mean = torch.where(judged.any(-1, keepdim=True), mean, 1.0)
    return torch.where(judged, q, mean), known
