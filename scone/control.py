"""q for every candidate: which need a lookahead, the lookaheads themselves, and what the verifier says of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

import scone_kernels as kernels
from scone.bridge import Bridge, Surfaces
from scone.conditionals import Conditionals
from scone.config import SconeConfig
from scone.errors import DeviceError
from scone.estimate import Expansion, blend, estimate, linearise
from scone.lm import CausalLM, LMState, truncate
from scone.lookahead import Lookahead, Sample, begin, look_ahead, shift
from scone.output import Timer
from scone.sampling import Candidates
from scone.seeds import chain_seed, mix, rollout_seed
from scone.text import Text, Writer
from scone.verifier import EmbeddingVerifier, Expression

__all__ = ["Controller", "Judged", "Plan", "plan"]

_SENTENCE = "It was a bright cold day in spring, and everyone who could walk had gone outside to look at the river."


@dataclass(frozen=True)
class Plan:
    """Which candidates are judged, and how: pairs (text, candidate) as indices into (B, K).

    >>> Plan(ahead=[(0, 2)], ahead_texts=["It was"], exact=[(0, 1)], exact_texts=["It."]).ahead
    [(0, 2)]
    """

    ahead: list[tuple[int, int]]  # by lookahead
    ahead_texts: list[str]
    exact: list[tuple[int, int]]  # by φ of a text that is finished
    exact_texts: list[str]


@dataclass(frozen=True)
class Judged:
    """q of the candidates, the lookahead of each that had one, and the LM's state after it where the LM wrote that.

    >>> Judged(torch.ones(1, 1, 2), {(0, 1): [[7, 8, 9]]}).futures[0, 1]  # one chain of three tokens
    [[7, 8, 9]]
    """

    q: Tensor  # (terms, B, K)
    futures: dict[tuple[int, int], list[list[int]]]
    read: LMState | None = None
    rows: dict[tuple[int, int], int] = field(default_factory=dict)  # of `read`


class Controller:
    """Masked LM, verifier and the bridges between them; an engine's is `engine.controller`.

    >>> from scone.decode import Scone, SconeConfig
    >>> controller = Scone.from_pretrained().controller
    >>> controller.horizon(0, SconeConfig()), controller.horizon(1000, SconeConfig())
    (0, 3)
    """

    def __init__(self, lm: CausalLM, mlm: Conditionals, verifier: Expression) -> None:
        self.lm = lm
        self.mlm = mlm
        self.verifier = verifier
        self.surfaces = Surfaces(mlm.tokenizer)
        self.bridges: dict[object, Bridge] = {}
        self.readers = [leaf for leaf in verifier.leaves if isinstance(leaf, EmbeddingVerifier)]  # of embeddings
        for leaf in self.readers:
            if leaf.device != mlm.device:
                raise DeviceError(
                    f"verifier {leaf.name} must be on the masked LM's device {mlm.device}, got {leaf.device}"
                )
            self.bridges[leaf.key] = Bridge(mlm.tokenizer, mlm.keep.shape[0], self.surfaces, leaf)
        self.differentiable = len(self.readers) == len(verifier.leaves)
        self.lm_tables: dict[object, Tensor] = {}  # (V of the LM, D), made when first used
        self.density = len(mlm.encode(_SENTENCE)) / max(1, len(lm.tokenizer(_SENTENCE)["input_ids"]))

    def horizon(self, remaining: int, config: SconeConfig) -> int:
        """Masked-LM tokens of lookahead for `remaining` tokens of the LM after the candidate."""
        return config.horizon(max(1, round(remaining * self.density)) if remaining > 0 else 0)

    def judge(
        self,
        texts: Sequence[Text],
        candidates: Candidates,
        writer: Writer,
        config: SconeConfig,
        *,
        remaining: int,
        timer: Timer,
        state: LMState | None = None,
    ) -> Judged:
        """q of every candidate; `remaining` tokens may follow it, and `state` is the LM's, for `init="lm"`."""
        length = self.horizon(remaining, config)
        with timer("plan"):
            todo = plan(texts, candidates, writer, config, length)
        q = torch.full((len(self.verifier.terms), *candidates.tokens.shape), torch.nan)
        futures: dict[tuple[int, int], list[list[int]]] = {}
        read = None
        if todo.exact:
            with timer("verify"):
                rows, columns = map(list, zip(*todo.exact))
                q[:, rows, columns] = self._score_terms(todo.exact_texts)
        if todo.ahead and not config.uses_masked_lm and self.differentiable:
            with timer("look ahead"):
                read = self._read(todo, texts, candidates, state)
                means = self._anticipate(read, config, length)
            with timer("estimate"):
                rows, columns = map(list, zip(*todo.ahead))
                q[:, rows, columns] = self._score_expected(todo.ahead_texts, means, config)
        elif todo.ahead:
            with timer("begin"):
                start, read = self._begin(todo, texts, candidates, config, length, state)
            with timer("look ahead"):
                kept = look_ahead(self.mlm, start, config, step=len(texts[0].new_ids))
            estimates = []
            for sample in kept:
                with timer("linearise"):
                    expansions = self._linearise(start, sample, config)
                with timer("estimate"):
                    estimates.append(estimate(self.verifier, expansions, self.mlm, sample, config))  # (terms, rows)
            rows, columns = map(list, zip(*todo.ahead))
            q[:, rows, columns] = torch.stack(estimates).mean(0).unflatten(1, (-1, config.chains)).mean(-1)
            last = start.with_ids(kept[-1].ids).futures()
            for i, pair in enumerate(todo.ahead):
                futures[pair] = last[i * config.chains : (i + 1) * config.chains]
        if todo.ahead and config.blend > 0:
            with timer("estimate"):
                q[:, rows, columns] = blend(
                    q[:, rows, columns], self._score_now(todo.ahead_texts, config), config.blend
                )
        return Judged(fill(q, candidates), futures, read, {pair: row for row, pair in enumerate(todo.ahead)})

    def carry(self, text: Text, judged: Judged, b: int, k: int, config: SconeConfig, *, remaining: int) -> None:
        """Keep the lookahead of the candidate that was taken, or the old one shifted where it had none."""
        if (b, k) in judged.futures:
            text.futures = judged.futures[b, k]
        elif text.futures is not None:
            length = self.horizon(remaining, config)
            text.futures = [shift(future, length, self.mlm.mask_id) for future in text.futures]

    def _linearise(self, start: Lookahead, sample: Sample, config: SconeConfig) -> dict[object, Expansion]:
        return {
            leaf.key: linearise(
                leaf, self.bridges.get(leaf.key), start, sample, config, surfaces=self.surfaces, mlm=self.mlm
            )
            for leaf in self.verifier.leaves
        }

    def _score_terms(self, texts: list[str]) -> Tensor:
        values = {leaf.key: leaf.evaluate(texts) for leaf in self.verifier.leaves}
        return torch.stack([term.combine(values) for term in self.verifier.terms])

    def _score_now(self, texts: list[str], config: SconeConfig) -> Tensor:
        """(terms, rows): q of texts as if they ended here, in the lookahead's window."""
        if not self.differentiable:
            return self._score_terms(texts)
        nothing = {leaf: leaf.table.new_empty(len(texts), 0, leaf.table.shape[1]) for leaf in self.readers}
        return self._score_expected(texts, nothing, config)

    def _score_expected(self, texts: list[str], means: dict[EmbeddingVerifier, Tensor], config: SconeConfig) -> Tensor:
        """(terms, rows): q of texts that go on with the mean embeddings (rows, tokens, D) of each leaf."""
        values = {
            leaf.key: leaf.value_of_expected(texts, mean, window=config.context_window).cpu()
            for leaf, mean in means.items()
        }
        return torch.stack([term.combine(values) for term in self.verifier.terms])

    def _begin(
        self,
        todo: Plan,
        texts: Sequence[Text],
        candidates: Candidates,
        config: SconeConfig,
        length: int,
        state: LMState | None,
    ) -> tuple[Lookahead, LMState | None]:
        """A row for each candidate and chain, chains side by side; and what the LM read for it, a row a candidate."""
        rows = [(b, k, c) for b, k in todo.ahead for c in range(config.chains)]
        token = torch.tensor([int(candidates.tokens[b, k]) for b, k, _ in rows])
        seed = torch.tensor([chain_seed(texts[b].seed, c) for b, _, c in rows])
        if not config.coupled:
            seed = mix(seed, token)
        fixed_texts = [text for text in todo.ahead_texts for _ in range(config.chains)]
        read = None
        if config.init == "lm":
            read = self._read(todo, texts, candidates, state)
            fixed_texts, fixed, futures = self._roll_out(rows, fixed_texts, texts, token, seed, config, length, read)
        else:
            fixed = [ids for ids in self.mlm.encode_batch(todo.ahead_texts) for _ in range(config.chains)]
            warm = config.init == "warm"
            known = [texts[b].futures[c] if warm and texts[b].futures else None for b, _, c in rows]  # type: ignore[index]
            futures = [shift(future, length, self.mlm.mask_id) for future in known]
        start = begin(self.mlm, fixed_texts, fixed, futures, seed, context_window=config.context_window)
        return start, read

    def _read(self, todo: Plan, texts: Sequence[Text], candidates: Candidates, state: LMState | None) -> LMState:
        """The LM after each candidate that is looked ahead for."""
        if state is None:
            state = self.lm.prefill([[*t.prompt_ids, *t.new_ids] for t in texts])
        forked = self.lm.select(state, torch.tensor([b for b, _ in todo.ahead]))
        return self.lm.step(forked, torch.tensor([int(candidates.tokens[b, k]) for b, k in todo.ahead]))

    def _anticipate(self, read: LMState, config: SconeConfig, length: int) -> dict[EmbeddingVerifier, Tensor]:
        """The next tokens in expectation, as embeddings of each verifier: (rows, tokens, D)."""
        for leaf in self.readers:
            if leaf.key not in self.lm_tables:
                bridge = Bridge(self.lm.tokenizer, self.lm.vocabulary, Surfaces(self.lm.tokenizer), leaf)
                self.lm_tables[leaf.key] = bridge.table
        count = self._lm_tokens(length, config.lm_lookahead)
        forked = self.lm.select(read, torch.arange(len(read.logits)))
        tables = [self.lm_tables[leaf.key] for leaf in self.readers]
        return dict(zip(self.readers, self.lm.anticipate(forked, count, tables, top_k=config.top_k)))

    def _lm_tokens(self, length: int, limit: int | None) -> int:
        """How many tokens the LM writes, at most `limit`, of a lookahead of `length` tokens of the masked LM."""
        whole = max(1, round(length / self.density))
        return whole if limit is None else min(whole, limit)

    def _roll_out(
        self,
        rows: list[tuple[int, int, int]],
        fixed_texts: list[str],
        texts: Sequence[Text],
        token: Tensor,
        seed: Tensor,
        config: SconeConfig,
        length: int,
        read: LMState,
    ) -> tuple[list[str], list[list[int]], list[list[int]]]:
        """Futures whose beginning the LM writes, as the masked LM's tokens; [MASK] for the rest."""
        forked = self.lm.select(read, torch.arange(len(rows)) // config.chains)
        count = self._lm_tokens(length, config.lm_lookahead)
        noise = rollout_seed(seed, len(texts[0].new_ids))

        def draw(logits: Tensor, i: int) -> Tensor:
            logits = truncate(logits, top_p=config.lookahead_top_p, min_p=config.lookahead_min_p)
            return kernels.gibbs_sample_from_logits(logits, seed=noise.to(logits.device), counter=i).tokens

        written = self.lm.rollout(forked, count, draw)
        goes_on = [count < self._lm_tokens(length, None) and len(more) == count for more in written]
        whole = []
        for (b, _, _), first, more, fixed in zip(rows, token.tolist(), written, fixed_texts):
            lead = [*texts[b].prompt_ids[-8:], *texts[b].new_ids, first]
            whole.append(fixed + self.lm.decode([*lead, *more])[len(self.lm.decode(lead)) :])
        tokens = self.mlm.tokenizer(whole, add_special_tokens=False, return_offsets_mapping=True)
        out_texts, out_fixed, out_futures = [], [], []
        for text, fixed, ids, places, unfinished in zip(
            whole, fixed_texts, tokens["input_ids"], tokens["offset_mapping"], goes_on
        ):
            split = sum(start < len(fixed) for start, _ in places)
            out_texts.append(text[: places[split - 1][1]] if split else fixed)
            out_fixed.append(list(ids[:split]))
            future = list(ids[split : split + length])
            out_futures.append(future + [self.mlm.mask_id] * (length - len(future)) if unfinished else future)
        return out_texts, out_fixed, out_futures


def plan(texts: Sequence[Text], candidates: Candidates, writer: Writer, config: SconeConfig, length: int) -> Plan:
    """Sort the candidates: finished texts are scored as they are, probable ones get a lookahead, the rest nothing.

    A text whose choice is settled (a single candidate above `min_mass`) gets nothing at all.

    >>> from scone.embedded import load_lm
    >>> lm = CausalLM(*load_lm())
    >>> text, writer = Text("One two", lm.encode("One two"), seed=0), Writer(lm)
    >>> candidates = Candidates(torch.tensor([lm.encode(" three four")]), torch.tensor([[0.5, 0.3]]).log())
    >>> plan([text], candidates, writer, SconeConfig(), length=6).ahead_texts
    ['One two three', 'One two four']
    """
    ahead, ahead_texts, exact, exact_texts = [], [], [], []
    share = candidates.share.tolist()
    for b, text in enumerate(texts):
        live = [k for k, p in enumerate(share[b]) if p > 0 and p >= config.min_mass]
        if len(live) < 2:
            continue
        for k in live:
            continuation, ended = writer.continuation(text, int(candidates.tokens[b, k]))
            if ended or length == 0:
                exact.append((b, k))
                exact_texts.append(text.context + continuation)
            else:
                ahead.append((b, k))
                ahead_texts.append(text.context + continuation)
    return Plan(ahead, ahead_texts, exact, exact_texts)


def fill(q: Tensor, candidates: Candidates) -> Tensor:
    """q with the mean over the judged candidates, by probability, where a candidate was not judged; 1 if none was."""
    judged = ~q.isnan()
    weight = candidates.share * judged
    mean = (weight * q.nan_to_num()).sum(-1, keepdim=True) / weight.sum(-1, keepdim=True).clamp(min=1e-30)
    mean = torch.where(judged.any(-1, keepdim=True), mean, 1.0)
    return torch.where(judged, q, mean)
