"""What every way to look ahead must do, whatever it does: one suite over all of them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest
import tiny
import torch

from scone.decode import Scone, SconeConfig, Verifier
from scone.errors import ConfigError
from scone.lm import CausalLM, MaskedLM
from scone.lookahead import (
    Answer,
    AtMean,
    AtSample,
    Carried,
    Draft,
    Expectation,
    Gibbs,
    Lookahead,
    Masked,
    Masks,
    Mix,
    Nothing,
    Paths,
    Query,
    Rollout,
    Taylor,
)
from scone.loop import prefill
from scone.options import integer, kinds_of, option
from scone.output import Cost, Output
from scone.processors import OneByOne
from scone.settings import parse_settings, strategies
from scone.verifier import EmbeddingVerifier

PAPER = Taylor(form="mean", linearise="prob", marginals="unmasked", clamp=False)
WAYS: dict[str, Lookahead] = {
    "expectation": Expectation(tokens=3),
    "expectation, one of few": Expectation(tokens=1, among=4),
    "paths": Paths(tokens=3, count=2),
    "paths as drawn": Paths(tokens=3, count=2, judged="drawn", coupled=False),
    "masked": Masked(tokens=4),
    "masked, warm": Masked(tokens=2, temperature=2.0),
    "chains from a rollout, Taylor": Gibbs(tokens=5, block=3, iterations=2, estimate=Taylor()),
    "chains from a short rollout, at the mean": Gibbs(
        tokens=5, start=Rollout(tokens=1), block=2, iterations=3, estimate=AtMean()
    ),
    "chains from a rollout, as drawn": Gibbs(tokens=5, block=2, chains=2, coupled=False, estimate=AtSample()),
    "chains from masks, Taylor": Gibbs(tokens=5, start=Masks(warmup=1), chains=2, estimate=PAPER),
    "chains from masks, at the mean": Gibbs(tokens=5, start=Masks(), estimate=AtMean(marginals="masked")),
    "chains from masks, as drawn": Gibbs(
        tokens=5, start=Masks(), sync_every=2, block=1, iterations=5, estimate=AtSample()
    ),
    "chains carried on, Taylor": Gibbs(
        tokens=5, start=Carried(), block=2, estimate=Taylor(marginals="masked", scale=0.5)
    ),
    "chains carried on, at the mean": Gibbs(tokens=5, start=Carried(), block=2, chains=2, estimate=AtMean()),
    "chains carried on, as drawn": Gibbs(
        tokens=5, start=Carried(), schedule="uniform", block=2, iterations=4, thin=2, estimate=AtSample()
    ),
    "draft": Draft(lm=tiny.llama(seed=5), inner=Expectation(tokens=3)),
    "draft of other tokens": Draft(lm=tiny.llama(seed=5, tokens="unigram"), inner=Expectation(tokens=2)),
    "draft that draws paths": Draft(lm=tiny.llama(seed=5, tokens="characters"), inner=Paths(tokens=3, count=2)),
    "nothing": Nothing(),
    "mixture": Mix(Expectation(tokens=2), Nothing()),
    "mixture of chains and paths": Mix(
        Gibbs(tokens=4, start=Carried(), estimate=AtSample()), Paths(tokens=2, count=2), weights=(1, 2)
    ),
    "mixture with a draft": Mix(Draft(lm=tiny.llama(seed=5), inner=Paths(tokens=2, judged="drawn")), Nothing()),
    "mixture of chains": Mix(Gibbs(tokens=4), Mix(Masked(tokens=3), Gibbs(tokens=4, start=Carried(), chains=2))),
}
WORKERS = {"chains of two workers": Gibbs(tokens=6, start=Masks(), block=2, iterations=6, workers=2, estimate=Taylor())}
DRAWN = {name for name in WAYS if name not in {
    "expectation", "expectation, one of few", "masked", "masked, warm", "nothing", "mixture", "draft",
    "draft of other tokens"}}  # fmt: skip
OF_EMBEDDINGS = {"embeddings", "embeddings anywhere", "gradients"}
PROMPTS = ["the movie was", "a nice day", "what a wonderful old picture of the river it is"]


def each(ways: dict[str, Lookahead]) -> Any:
    return pytest.mark.parametrize("name", ways)


@cache
def verifier() -> Verifier:
    return Verifier(*tiny.classifier(), target="positive")


def engine_of(name: str, judge: Any = None, **options: object) -> Scone:
    config = SconeConfig(
        **{"particles": 1, "lookahead": (WAYS | WORKERS)[name], "min_mass": 0, "top_k": 4, "strength": 8, **options}
    )
    return Scone(tiny.llama(), tiny.masked_lm("bert"), judge or verifier(), config)


def same_steps(one: Output, at: int, other: Output, there: int, atol: float = 1e-4) -> bool:
    """Whether two texts have the same tokens, and the same q at each."""
    pairs = list(zip(one.trace[at], other.trace[there]))
    return one.token_ids[at] == other.token_ids[there] and all(torch.allclose(a.q, b.q, atol=atol) for a, b in pairs)


def test_all_ways_are_here() -> None:
    def kinds(lookahead: Lookahead) -> set[type]:
        inner = set().union(*map(kinds, lookahead.parts)) if isinstance(lookahead, Mix) else set()
        return {type(lookahead)} | inner

    seen = set().union(*map(kinds, WAYS.values()))
    assert {cls for cls in kinds_of(Lookahead) if cls.__module__.startswith("scone.")} == seen
    assert {cls.__name__.lower() for cls in seen} - {"mix"} <= set(strategies())
    chains = [way for way in WAYS.values() if isinstance(way, Gibbs)]
    assert {(type(way.start), type(way.estimate)) for way in chains} == {
        (start, estimate) for start in (Rollout, Masks, Carried) for estimate in (AtSample, AtMean, Taylor)
    }


@each(WAYS)
def test_a_prompt_does_not_notice_its_batch(name: str) -> None:
    """A prompt by itself and beside others of other lengths: the same tokens, and the same q at every step."""
    engine = engine_of(name)
    together = engine.generate(PROMPTS, max_new_tokens=4, num_return_sequences=2, seed=6)
    for i, prompt in enumerate(PROMPTS):
        alone = engine.generate([prompt], max_new_tokens=4, num_return_sequences=2, seed=6)
        assert all(same_steps(alone, copy, together, 2 * i + copy) for copy in (0, 1))


@each(WAYS)
def test_seeds(name: str) -> None:
    """The same seed gives the same text, another one another; q hangs on it just where something is drawn."""
    engine = engine_of(name)
    one, same, other = (engine.generate(PROMPTS, max_new_tokens=5, seed=seed) for seed in (2, 2, 3))
    assert one.token_ids == same.token_ids != other.token_ids
    assert all(torch.equal(a.q, b.q) for a, b in zip(one.trace[0], same.trace[0]))
    steps = [engine.next_token(PROMPTS[0], max_new_tokens=9, seed=seed).q for seed in (2, 3)]
    assert torch.allclose(*steps, atol=1e-5) == (name not in DRAWN)


@each(WAYS | WORKERS)
def test_q_is_of_the_lookahead(name: str) -> None:
    """It differs from candidate to candidate, and from φ of what stands there already."""
    engine = engine_of(name)
    q = engine.next_token(PROMPTS[0], max_new_tokens=9).q
    now = engine.with_config(lookahead=Nothing()).next_token(PROMPTS[0], max_new_tokens=9).q
    assert q.std() > 1e-4 and bool((q >= 0).all()) and bool((q <= 1).all() or "Taylor" in name)
    assert torch.allclose(q, now, atol=1e-4) == (name == "nothing")


@cache
def halves() -> list[tuple[Any, Any]]:
    models = tiny.llama(), tiny.masked_lm("bert"), tiny.classifier()
    return [(copy.deepcopy(model).to(torch.bfloat16), tok) for model, tok in models]


@each(WAYS | WORKERS)
def test_half_precision(name: str) -> None:
    whole = engine_of(name)
    lm, masked, judge = halves()
    engine = Scone(lm, masked, Verifier(*judge, target="positive"), whole.config)
    out = engine.generate(PROMPTS[:2], max_new_tokens=3)
    assert out.scores.dtype == torch.float32 and [len(ids) for ids in out.token_ids] == [3, 3]
    assert all(step.q.isfinite().all() and step.q.dtype == torch.float32 for steps in out.trace for step in steps)

    def some(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        kept = torch.full_like(scores, -torch.inf)
        kept[:, 40:44] = torch.tensor([0.3, 0.2, 0.1, 0.0])
        return kept

    q, expected = (e.next_token(PROMPTS[0], max_new_tokens=3, logits_processor=[some]).q for e in (engine, whole))
    assert q.std() > 0
    if name not in DRAWN | set(WORKERS):
        assert torch.allclose(q, expected, atol=0.1)


@each(WAYS | WORKERS)
@pytest.mark.parametrize(("masked", "judge"), [("unigram", "wordpiece"), ("wordpiece", "characters")])
def test_three_vocabularies(name: str, masked: str, judge: str) -> None:
    """Byte-level BPE for the LM, and two others for masked LM and verifier."""
    reads = Verifier(*tiny.classifier(tiny.TOKENIZERS[judge]()), target="positive")
    family = "roberta" if masked == "unigram" else "bert"
    models = tiny.llama(), tiny.masked_lm(family, tiny.TOKENIZERS[masked]())
    engine = Scone(*models, reads, engine_of(name).config)
    prompts = [*PROMPTS[:2], "naïve café 🙂"]
    out = engine.generate(prompts, max_new_tokens=3, seed=1)
    assert out.scores.isfinite().all() and all(step.q.isfinite().all() for steps in out.trace for step in steps)
    q = engine.next_token(PROMPTS[0], max_new_tokens=9).q
    now = engine.with_config(lookahead=Nothing()).next_token(PROMPTS[0], max_new_tokens=9).q
    assert torch.allclose(q, now, atol=1e-4) == (name == "nothing")
    if name not in WORKERS:
        assert same_steps(engine.generate(prompts[1:2], max_new_tokens=3, seed=1), 0, out, 1)


@each(WAYS | WORKERS)
def test_texts_that_have_ended(name: str) -> None:
    """One text is made to end early: it is left alone, the others do not notice; an end is judged as it stands."""
    engine = engine_of(name)
    lm, eos = engine.parts.lm, engine.lm_tokenizer.eos_token_id
    second = lm.encode(PROMPTS[1])

    def end_the_second(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        if ids[0, : len(second)].tolist() != second or ids.shape[1] != len(second) + 2:
            return scores.index_fill(1, torch.tensor([eos]), -torch.inf)
        kept = torch.full_like(scores, -torch.inf)
        kept[:, [eos, 40]] = torch.tensor([50.0, 0.0])
        return kept

    out = engine.generate(PROMPTS, max_new_tokens=5, seed=1, logits_processor=[OneByOne(end_the_second)])
    assert [len(ids) for ids in out.token_ids] == [5, 3, 5] and out.token_ids[1][-1] == eos
    assert out.finish_reasons == ["length", "stop", "length"] and out.texts[1] == PROMPTS[1] + lm.decode(
        out.token_ids[1][:2]
    )
    last = out.trace[1][-1]
    assert float(last.q[0]) == pytest.approx(float(engine.verifier.score(out.texts[1])), abs=1e-5)
    if name not in WORKERS:
        alone = engine.generate(PROMPTS[2:], max_new_tokens=5, seed=1, logits_processor=[OneByOne(end_the_second)])
        assert same_steps(alone, 0, out, 2)


@each(WAYS | WORKERS)
def test_one_token_left(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing can follow: q is φ itself, and no strategy is asked."""
    engine = engine_of(name)
    monkeypatch.setattr(type(engine.lookahead), "judge", Ban("the lookahead"))
    step = engine.next_token(PROMPTS[0], max_new_tokens=1)
    lm = engine.parts.lm
    texts = [lm.decode([*lm.encode(PROMPTS[0]), int(token)]) for token in step.tokens]
    assert torch.allclose(step.q, engine.verifier.score(texts), atol=1e-5)
    out = engine_of(name).generate(PROMPTS, max_new_tokens=1, seed=3)
    assert [len(ids) for ids in out.token_ids] == [1, 1, 1]
    assert torch.allclose(out.trace[0][0].q, step.q, atol=1e-5)
    with pytest.raises(Forbidden):
        engine.next_token(PROMPTS[0], max_new_tokens=2)


@each(WAYS | WORKERS)
def test_two_tokens_left(name: str) -> None:
    """A lookahead ends where the text does, one token after the candidate, however far it would go."""
    lookahead = (WAYS | WORKERS)[name]
    engine = engine_of(name)
    step = engine.next_token(PROMPTS[0], max_new_tokens=2)
    assert step.q.isfinite().all() and step.q.std() > 0
    if isinstance(lookahead, Expectation | Paths):
        nearest = engine.with_config(lookahead=lookahead.replace(tokens=1))
        assert torch.equal(step.q, nearest.next_token(PROMPTS[0], max_new_tokens=9).q)
    if isinstance(lookahead, Expectation | Paths | Masked) and lookahead.tokens > 1:
        assert not torch.allclose(step.q, engine.next_token(PROMPTS[0], max_new_tokens=9).q, atol=1e-5)


@each(WAYS | WORKERS)
def test_a_callable_verifier(name: str) -> None:
    """It gets a strategy that can serve it, which asks it about whole texts."""
    seen: list[str] = []

    def short(texts: list[str]) -> list[float]:
        seen.extend(texts)
        return [1 / (1 + len(text.split())) for text in texts]

    engine = engine_of(name, Verifier.from_callable(short))
    assert not engine.lookahead.needs & OF_EMBEDDINGS
    assert engine.lookahead.needs <= engine.parts.offers
    q = engine.next_token(PROMPTS[0], max_new_tokens=9).q
    assert q.isfinite().all() and seen and all(text.startswith("the movie was") for text in seen)
    step = engine.next_token(PROMPTS[0], max_new_tokens=9)
    now = {PROMPTS[0] + engine.lm_tokenizer.decode([token]) for token in step.tokens.tolist()}
    assert bool(set(seen) - now) == (name != "nothing")
    out = engine.generate(PROMPTS, max_new_tokens=3, seed=4)
    if name not in WORKERS:
        assert same_steps(engine.generate(PROMPTS[:1], max_new_tokens=3, seed=4), 0, out, 0)


@pytest.mark.parametrize(
    "lookahead", [Paths(tokens=3, count=2), Expectation(tokens=3)], ids=lambda way: type(way).__name__
)
def test_an_expected_path_does_not_end(lookahead: Lookahead) -> None:
    """An expected embedding belongs to a text that goes on: how likely the end is plays no part in it."""
    model, tok = tiny.llama()
    ends, eos = copy.deepcopy(model), torch.tensor([tok.eos_token_id])
    ends.lm_head.register_forward_hook(lambda module, given, out: out.index_fill(-1, eos, 1e4))
    config = SconeConfig(particles=1, lookahead=lookahead, min_mass=0, top_k=4)
    plain, ending = (Scone((lm, tok), None, verifier(), config) for lm in (model, ends))
    never = lambda ids, scores: scores.index_fill(1, eos, -torch.inf)  # noqa: E731
    q, expected = (
        engine.next_token(PROMPTS[0], max_new_tokens=9, logits_processor=[never]).q for engine in (ending, plain)
    )
    assert torch.allclose(q, expected, atol=1e-5)


@pytest.mark.parametrize("chains", [False, True], ids=["paths", "chains"])
def test_q_is_the_mean_over_what_was_drawn(chains: bool) -> None:
    """Three futures of each candidate side by side, each judged once; coupled candidates draw with the same noise."""
    seen: list[str] = []
    judge = Verifier.from_callable(lambda texts: seen.extend(texts) or [len(text) / 99 for text in texts])
    way: Any = Gibbs(tokens=4, chains=3, estimate=AtSample()) if chains else Paths(tokens=3, count=3, judged="drawn")
    config = SconeConfig(particles=1, lookahead=way, min_mass=0, top_k=4)
    engine = Scone(tiny.llama(), tiny.masked_lm("bert"), judge, config)
    step = engine.next_token(PROMPTS[0], max_new_tokens=9, seed=1)
    assert len(seen) == 12
    means = torch.tensor([len(text) / 99 for text in seen]).view(4, 3)
    assert torch.allclose(step.q, means.mean(1), atol=1e-6) and means.std(1).max() > 0.005
    seen.clear()
    apart = engine.with_config(lookahead=way.replace(coupled=False)).next_token(PROMPTS[0], max_new_tokens=9, seed=1)
    assert not torch.allclose(apart.q, step.q, atol=1e-4)


@each(WAYS | WORKERS)
def test_forbidden_tokens_are_never_candidates(name: str) -> None:
    engine = engine_of(name)
    plain = engine.generate(PROMPTS, max_new_tokens=4, seed=2)
    forbidden = sorted({token for ids in plain.token_ids for token in ids})

    def forbid(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return scores.index_fill(1, torch.tensor(forbidden), -torch.inf)

    out = engine.generate(PROMPTS, max_new_tokens=4, seed=2, logits_processor=[forbid])
    for steps in out.trace:
        assert all(not set(step.tokens.tolist()) & set(forbidden) for step in steps)
        assert all(step.log_p.isfinite().all() and step.log_p_star.isfinite().all() for step in steps)

    def only_two(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        kept = torch.full_like(scores, -torch.inf)
        kept[:, [40, 41]] = scores[:, [40, 41]]
        return kept

    step = engine.next_token(PROMPTS[0], max_new_tokens=9, logits_processor=[only_two])
    assert sorted(step.tokens.tolist()) == [40, 41] and float(step.log_p_star.exp().sum()) == pytest.approx(1)


@pytest.fixture
def batch() -> Iterator[dict[str, torch.Tensor]]:
    tok = tiny.llama()[1]
    before = tok.padding_side, tok.pad_token
    tok.padding_side, tok.pad_token = "left", tok.eos_token
    yield tok(PROMPTS, return_tensors="pt", padding=True)
    tok.padding_side, tok.pad_token = before


@each(WAYS)
@pytest.mark.parametrize("hook", ["custom_generate", "logits_processor"])
def test_within_transformers_texts_are_the_same(name: str, hook: str, batch: dict[str, torch.Tensor]) -> None:
    """Greedily, in a batch: the tokens of `generate`, and its p* at every step, the lookaheads carried on included."""
    length = 9 if "carried" in name else 4  # chains of several blocks, so that it matters where they begin
    engine = engine_of(name, strength=300)  # so that small differences of q show
    expected = engine.generate(PROMPTS, max_new_tokens=length, do_sample=False)
    if hook == "custom_generate":
        options = {"custom_generate": engine.custom_generate}
    else:
        options = {"logits_processor": [engine.logits_processor(max_new_tokens=length)], "do_sample": False}
    out = engine.lm.generate(
        **batch, **options, max_new_tokens=length, return_dict_in_generate=True, output_scores=True
    )
    width = batch["input_ids"].shape[1]
    stop = engine.lm_tokenizer.eos_token_id  # which `generate` pads with
    written = out.sequences[:, width:].tolist()
    assert written == [ids + [stop] * (len(row) - len(ids)) for ids, row in zip(expected.token_ids, written)]
    for i, scores in enumerate(out.scores):
        for row, steps in zip(scores, expected.trace):
            if i >= len(steps):  # ended
                continue
            assert torch.allclose(row[steps[i].tokens], steps[i].log_p_star, atol=2e-2)
            assert int(row.isfinite().sum()) == len(steps[i].tokens)


class Forbidden(Exception):
    """Something was used that must not be."""


@dataclass
class Ban:
    """Raises."""

    what: str

    def __call__(self, *args: object, **kwargs: object) -> None:
        raise Forbidden(self.what)


def fails(act: Callable[[], object]) -> bool:
    try:
        act()
    except Forbidden:
        return True
    return False


@each(WAYS | WORKERS)
def test_needs_are_what_is_used(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a part made to raise, exactly the strategies fail that say that they need it."""
    engine = engine_of(name)
    needs = engine.lookahead.needs
    loop, texts = engine.loop(), engine.open(PROMPTS, max_new_tokens=9, seed=0)
    state = prefill(engine.parts.lm, texts)

    def decide() -> None:
        loop.decide(texts, state, 8)

    decide()
    lm, read = engine.parts.lm, CausalLM.read

    def of_others(own: CausalLM, *args: Any, **options: Any) -> Any:
        if own is lm:
            raise Forbidden("lm states")
        return read(own, *args, **options)

    def whole(leaf: EmbeddingVerifier, rows: Any, *rest: object) -> torch.Tensor:
        return torch.zeros(len(rows))

    bans = {
        "masked lm": [(MaskedLM, "hidden"), (MaskedLM, "draw"), (MaskedLM, "expect"), (MaskedLM, "encode_batch")],
        "lm states": [(CausalLM, "read")],
        "embeddings anywhere": [(EmbeddingVerifier, "value")],
        "gradients": [(torch.autograd, "grad"), (EmbeddingVerifier, "linearise")],
    }
    for need, places in bans.items():
        with monkeypatch.context() as patch:
            for method in ("value_of_ids", "value_of_expected"):
                patch.setattr(EmbeddingVerifier, method, whole)
            for owner, method in places:
                patch.setattr(owner, method, of_others if owner is CausalLM else Ban(need))
            assert fails(decide) == (need in needs), need
    reads_texts = engine.parts.offers - OF_EMBEDDINGS
    assert (engine.config.lookahead.serving(reads_texts) == engine.config.lookahead) == (not needs & OF_EMBEDDINGS)
    decide()


@each(WAYS | WORKERS)
def test_no_masked_lm_is_loaded_where_none_is_needed(name: str) -> None:
    """A function that loads it is called when an engine needs it, and where there is none that is said at once."""
    lookahead = (WAYS | WORKERS)[name]
    loaded: list[Any] = []
    load = lambda: (loaded.append(tiny.masked_lm("bert")), loaded[-1])[1]  # noqa: E731
    engine = Scone(tiny.llama(), load, verifier(), SconeConfig(particles=1, lookahead=lookahead, min_mass=0, top_k=4))
    engine.generate(PROMPTS[:1], max_new_tokens=2)
    assert bool(loaded) == ("masked lm" in lookahead.needs)
    if loaded:
        with pytest.raises(ConfigError, match="needs a masked LM: pass masked_lm, got None"):
            Scone(tiny.llama(), None, verifier(), engine.config)
    else:
        assert engine.masked_lm is loaded[0][0] and len(loaded) == 1
        none = Scone(tiny.llama(), None, verifier(), engine.config)
        assert none.generate(PROMPTS[:1], max_new_tokens=2).token_ids and none.masked_lm is None


@each(WAYS | WORKERS)
def test_where_only_logits_are_seen(name: str) -> None:
    """A strategy that runs the LM is refused or replaced by one that does not, in a sentence that says why."""
    lookahead = (WAYS | WORKERS)[name]
    offers = frozenset({"masked lm"}) | OF_EMBEDDINGS
    try:
        served = lookahead.serving(offers)
    except ConfigError as error:
        assert str(error) == "lookahead Paths runs the LM beyond its next token, and here only logits are seen"
        assert "paths" in name
        return
    assert served.needs <= offers and (served == lookahead) == ("lm states" not in lookahead.needs)
    if isinstance(lookahead, Gibbs):
        assert served == (lookahead.replace(start=Masks()) if isinstance(lookahead.start, Rollout) else lookahead)
    if isinstance(lookahead, Expectation):
        assert served == Masked(tokens=lookahead.tokens)


@each(WAYS)
def test_cost_counts_what_was_run(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of the verifier, and whether the masked LM and the LM were run at all."""
    engine = engine_of(name)
    rows: dict[str, int] = {"verifier": 0, "masked": 0}
    value, hidden = EmbeddingVerifier.value, MaskedLM.hidden

    def judged(leaf: EmbeddingVerifier, embeds: torch.Tensor, *rest: object) -> torch.Tensor:
        rows["verifier"] += len(embeds)
        return value(leaf, embeds, *rest)

    def read(mlm: MaskedLM, ids: torch.Tensor, *rest: object) -> torch.Tensor:
        rows["masked"] += len(ids)
        return hidden(mlm, ids, *rest)

    monkeypatch.setattr(EmbeddingVerifier, "value", judged)
    monkeypatch.setattr(MaskedLM, "hidden", read)
    loop, texts = engine.loop(), engine.open(PROMPTS, max_new_tokens=9, seed=0)
    cost = loop.decide(texts, prefill(engine.parts.lm, texts), 8).judged.cost
    assert cost.verifier_rows == rows["verifier"]
    assert (cost.masked_lm_rows > 0) == (rows["masked"] > 0) == ("masked lm" in engine.lookahead.needs)
    assert (cost.lm_rows > 0) == ("lm states" in engine.lookahead.needs)
    assert isinstance(cost, Cost)


@dataclass(frozen=True)
class Vowels(Lookahead):
    """A strategy of the tests: all that is new is in this class."""

    letters: int = option(1, integer(1, 5), "vowels that count")

    def judge(self, query: Query) -> Answer:
        counts = [sum(text.count(letter) for letter in "aeiou"[: self.letters]) for text in query.written]
        q = torch.tensor([count / (1 + len(text)) for count, text in zip(counts, query.written)])
        carried = [(text.carried or 0) + 1 for text in query.texts]
        return Answer(q.expand(len(query.parts.verifier.terms), -1), Cost(), carried)


def test_a_new_strategy_is_one_class(batch: dict[str, torch.Tensor]) -> None:
    """It is generated with, mixed, carried on, named on a command line and found in every list, with nothing else changed."""
    config = parse_settings("default,lookahead=vowels,letters=2,min_mass=0,top_k=4")
    assert config.lookahead == Vowels(letters=2) and "vowels" in strategies()
    engine = Scone(tiny.llama(), None, verifier(), config)
    step = engine.next_token(PROMPTS[0], max_new_tokens=9)
    texts = [PROMPTS[0] + engine.lm_tokenizer.decode([t]) for t in step.tokens.tolist()]
    expected = [(text.count("a") + text.count("e")) / (1 + len(text)) for text in texts]
    assert step.q.tolist() == pytest.approx(expected)
    (text,) = opened = engine.open(PROMPTS[:1], max_new_tokens=5, seed=0)
    for _ in engine.loop().run(opened, prefill(engine.parts.lm, opened), 5):
        assert text.carried == min(len(text.new_ids), 4)
    greedy = engine.generate(PROMPTS, max_new_tokens=4, do_sample=False).token_ids
    ids = engine.lm.generate(**batch, custom_generate=engine.custom_generate, max_new_tokens=4)
    assert ids[:, batch["input_ids"].shape[1] :].tolist() == greedy
    mixed = parse_settings("default,lookahead=vowels+nothing,letters=5")
    assert mixed.lookahead == Mix(Vowels(letters=5), Nothing())
    assert Scone(tiny.llama(), None, verifier(), mixed).generate(PROMPTS, max_new_tokens=3).scores.isfinite().all()
    with pytest.raises(ConfigError, match="letters must be an integer from 1 to 5, got 6"):
        parse_settings("default,lookahead=vowels,letters=6")
    with pytest.raises(ConfigError, match="letters is an option of lookahead vowels, and the lookahead is masked"):
        parse_settings("default,lookahead=masked,letters=2")
    with pytest.raises(ConfigError, match=r"lookahead must be one of .*Vowels\(\)"):
        SconeConfig(lookahead="vowels")
