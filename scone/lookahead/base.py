"""What a lookahead is: candidates in; q, what it cost and what to carry to the next step out.

A new strategy is one file with one class: a frozen dataclass of its options, `needs`, and `judge`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from scone.errors import ConfigError
from scone.lm import LMState
from scone.lookahead.parts import ANYWHERE, EMBEDDINGS, GRADIENTS, LM_STATES, MASKED_LM, Parts, score_each
from scone.options import Options
from scone.output import Cost, Future, Timer
from scone.text import Text
from scone.verifier import Expression

__all__ = ["Answer", "Lookahead", "Query", "judge_apart"]

_MISSING = {
    LM_STATES: "runs the LM beyond its next token, and here only logits are seen",
    MASKED_LM: "needs a masked LM: pass masked_lm, got None",
    EMBEDDINGS: "needs a verifier that reads embeddings: got one that reads texts",
    ANYWHERE: "needs a verifier that reads the embeddings of whole texts: got one that does not",
    GRADIENTS: "needs a verifier with gradients: got one that reads texts",
}


@dataclass(frozen=True)
class Query:
    """Candidates whose q is asked for, n of them: each continues a text that is being written.

    >>> text = Text("It is", prompt_ids=[7, 8], seed=0)
    >>> Query(None, [text, text], torch.tensor([3, 4]), ["It is so", "It is not"], remaining=5).step
    0
    """

    parts: Parts
    texts: Sequence[Text]  # n, that of each candidate
    tokens: Tensor  # (n,) the candidates
    written: Sequence[str]  # n, text and candidate, as much of it as is to be judged
    remaining: int  # tokens of the LM that may follow a candidate
    state: LMState | None = None  # the LM after the texts, before the candidates
    rows: Sequence[int] = ()  # n, into `state`
    timer: Timer = field(default_factory=Timer)  # takes the seconds of each phase
    verifiers: Sequence[Expression] = ()  # n, what each candidate is judged by; none: all by that of the parts
    futures: Sequence[list[Future]] | None = None  # n, to be added to by `show`, where somebody looks on
    part_of: tuple[Query, Tensor] | None = None  # a larger question, and which of its candidates these are

    @cached_property
    def steps(self) -> Sequence[int]:
        """(n,) how many tokens the text of each candidate has already."""
        return [len(text.new_ids) for text in self.texts]

    @property
    def step(self) -> int:
        """The same where it is one number: texts that differ in it are judged apart, unless a lookahead takes `steps`."""
        return self.steps[0]

    @cached_property
    def read(self) -> LMState:
        """The LM after each candidate, read once for all who ask. Its cache is shared: fork it before it grows."""
        lm, state, rows = self.parts.lm, self.state, list(self.rows)
        if self.part_of is not None:
            whole, mine = self.part_of
            return lm.select(whole.read, mine)
        if state is None:
            unique = {id(text): text for text in self.texts}
            state = lm.prefill([[*text.prompt_ids, *text.new_ids] for text in unique.values()])
            place = {key: row for row, key in enumerate(unique)}
            rows = [place[id(text)] for text in self.texts]
        with self.timer("look ahead"):
            return lm.step(lm.select(state, torch.tensor(rows)), self.tokens, headless=True)

    @property
    def rows_or_texts(self) -> Sequence[int]:
        """n numbers, the same for candidates of the same text, which stand side by side."""
        return self.rows or [id(text) for text in self.texts]

    @property
    def was_read(self) -> LMState | None:
        """The LM after each candidate, where somebody has asked for it."""
        return self.__dict__.get("read")

    def future(self, i: int, path: Sequence[int]) -> str:
        """What tokens of the LM after candidate i add to its text."""
        text = self.texts[i]
        return self.parts.lm.added([*text.prompt_ids, *text.new_ids, int(self.tokens[i])], path)

    def score(self, texts: Sequence[str]) -> Tensor:
        """(terms, rows): φ of texts, equally many for each candidate, those of a candidate side by side."""
        if not self.verifiers:
            return self.parts.score(texts)
        return score_each(self.by_row(len(texts)), lambda leaf, rows: leaf.judged([texts[i] for i in rows]))

    def score_expected(self, texts: Sequence[str], means: Sequence[Tensor]) -> Tensor:
        """The same of texts that go on with tokens known by their mean embeddings, (rows, tokens, D) a reader."""
        if not self.verifiers:
            return self.parts.score_expected(texts, means)
        of = {leaf.key: mean for leaf, mean in zip(self.parts.readers, means)}

        def expected(leaf: Any, rows: list[int]) -> Tensor:
            return leaf.value_of_expected([texts[i] for i in rows], of[leaf.key][rows])

        return score_each(self.by_row(len(texts)), expected)

    def by_row(self, rows: int) -> list[Expression]:
        """The verifier of each of some rows, equally many for each candidate, where candidates have their own."""
        count = len(self.verifiers)
        return [self.verifiers[i * count // rows] for i in range(rows)]

    @property
    def asked(self) -> int:
        """Rows that verifiers read where each judges one row a candidate."""
        return sum(len(own.leaves) for own in self.verifiers or [self.parts.verifier] * len(self.texts))

    def show(self, who: Lookahead, read: Callable[[], Sequence[str]]) -> None:
        """Keep the texts that a lookahead reads behind the candidates, those of a candidate side by side."""
        if self.futures is None:
            return
        texts = read()
        for i, text in enumerate(texts):
            self.futures[i * len(self.futures) // len(texts)].append(Future(type(who).__name__, text))

    def only(self, which: Sequence[int], remaining: int) -> Query:
        """The question about some of the candidates; the LM's pass is shared."""
        return replace(
            self,
            texts=[self.texts[i] for i in which],
            tokens=self.tokens[list(which)],
            written=[self.written[i] for i in which],
            remaining=remaining,
            rows=[self.rows[i] for i in which] if self.rows else (),
            verifiers=[self.verifiers[i] for i in which] if self.verifiers else (),
            futures=None if self.futures is None else [self.futures[i] for i in which],
            part_of=(self, torch.tensor(list(which))),
        )

    def carrying(self, part: int) -> Query:
        """The same question with what the texts carry for one part of a mixture; the LM's pass is shared."""
        texts = [replace(text, carried=None if text.carried is None else text.carried[part]) for text in self.texts]
        other = replace(self, texts=texts)
        if self.was_read is not None:
            other.__dict__["read"] = self.read
        return other


@dataclass(frozen=True)
class Answer:
    """q of each candidate under each term of the verifier, and what a text carries on if that candidate is taken.

    >>> Answer(torch.tensor([[0.2, 0.9]]), Cost(verifier_rows=2)).q.shape
    torch.Size([1, 2])
    """

    q: Tensor  # (terms, n) float32, on any device
    cost: Cost
    carried: Sequence[Any] | None = None  # n, or None where nothing is carried


class Lookahead(Options):
    """A way to estimate q; what it needs is in `needs`, and what it does in `judge`.

    >>> from scone.lookahead import Expectation, Gibbs
    >>> sorted(Expectation.needs), sorted(Gibbs().needs)
    (['embeddings', 'lm states'], ['embeddings', 'embeddings anywhere', 'gradients', 'lm states', 'masked lm'])
    """

    @property
    def needs(self) -> frozenset[str]:
        """What an engine has to offer: names of `scone.lookahead.parts`."""
        return frozenset()

    @property
    def draws(self) -> bool:
        """Whether futures are drawn: then texts that are the same so far have different ones."""
        return True

    @property
    def samples(self) -> int:
        """Estimates that q is the mean of; `reweigh="softmax"` sums them."""
        return 1

    def prepare(self, parts: Parts) -> None:
        """Load what it needs, so that a mistake shows before anything is written."""
        parts.prepare(self.needs)

    def judge(self, query: Query) -> Answer:
        """q of every candidate of the query."""
        raise NotImplementedError

    def place(self, parts: Parts, step: int, remaining: int) -> Hashable:
        """What this lookahead makes of a text's place: texts for which it is the same may be judged together."""
        return step, remaining

    def pass_on(self, carried: Any, parts: Parts, *, remaining: int) -> Any:
        """What a text carries on when it takes a token that was not judged."""
        return carried

    def instead(self, missing: frozenset[str]) -> Lookahead | None:
        """A lookahead of the same spirit that does without what is missing, or None."""
        return None

    def serving(self, offers: frozenset[str]) -> Lookahead:
        """This lookahead, or the one that stands in for it where an engine does not offer what it needs.

        >>> from scone.lookahead import Expectation
        >>> Expectation(3).serving(frozenset({"lm states"}))  # a verifier that reads texts
        Paths(tokens=3, count=4, judged='drawn', among=20, min_p=0.1, coupled=True)
        """
        missing = self.needs - offers
        if not missing:
            return self
        other = self.instead(missing)
        if other is None:
            raise ConfigError(f"lookahead {type(self).__name__} {_MISSING[min(missing)]}")
        return other.serving(offers)

    def horizon(self, remaining: int) -> int:
        """Tokens of lookahead where `remaining` may still follow."""
        return min(self.tokens, remaining)  # type: ignore[attr-defined]


def judge_apart(lookahead: Lookahead, query: Query, remaining: Sequence[int]) -> Answer:
    """The answer where texts are not equally far: those that are alike to the lookahead are judged together.

    remaining: (n,) tokens that may follow each candidate

    >>> from types import SimpleNamespace
    >>> count = SimpleNamespace(  # its q is how many candidates it is asked about at once
    ...     place=lambda parts, step, remaining: remaining,
    ...     judge=lambda query: Answer(torch.full((1, len(query.texts)), float(len(query.texts))), Cost()),
    ... )
    >>> text = Text("It is", prompt_ids=[7, 8], seed=0)
    >>> query = Query(None, [text] * 3, torch.tensor([3, 4, 5]), ["It is so", "It is not", "It is"], remaining=5)
    >>> judge_apart(count, query, [5, 3, 5]).q
    tensor([[2., 1., 2.]])
    """
    places = [lookahead.place(query.parts, step, left) for step, left in zip(query.steps, remaining)]
    groups = [[i for i, own in enumerate(places) if own == place] for place in dict.fromkeys(places)]
    if len(groups) == 1:
        return lookahead.judge(query)
    answers = [lookahead.judge(query.only(group, remaining[group[0]])) for group in groups]
    order = torch.tensor([i for group in groups for i in group]).argsort()
    terms = max(len(answer.q) for answer in answers)
    q = [torch.cat([own.q, own.q.new_ones(terms - len(own.q), own.q.shape[1])]) for own in answers]
    carried = [entry for group, own in zip(groups, answers) for entry in own.carried or [None] * len(group)]
    return Answer(
        torch.cat(q, 1)[:, order],
        sum((answer.cost for answer in answers), Cost()),
        [carried[i] for i in order.tolist()] if any(answer.carried for answer in answers) else None,
    )
