"""Masked LMs of each family, and the chains that they write."""

from __future__ import annotations

import copy
import dataclasses
import itertools
from types import SimpleNamespace

import pytest
import tiny
import torch

from scone.decode import Scone, SconeConfig, Verifier
from scone.errors import ConfigError
from scone.lm import MaskedLM
from scone.lookahead import AtMean, AtSample, Carried, Gibbs, Masked, Masks, Mix, Nothing, Taylor
from scone.lookahead.chains import Chains, Memory, Sample, begin, draw_masks, marginals, run_chains, shift

FAMILIES = ["bert", "distilbert", "roberta", "electra", "modernbert"]


def hidden_at(
    mlm: MaskedLM, texts: list[str]
) -> tuple[dict[str, torch.Tensor], torch.Tensor, tuple[torch.Tensor, ...]]:
    """A batch, the head's input at every token, and where these are."""
    batch = mlm.tokenizer(texts, return_tensors="pt", padding=True)
    place = batch["attention_mask"].nonzero(as_tuple=True)
    return batch, mlm.hidden(batch["input_ids"], batch["attention_mask"].bool(), *place), place


@pytest.mark.parametrize("family", FAMILIES)
def test_split_head_gives_the_models_logits(family: str) -> None:
    model, tok = tiny.masked_lm(family)
    mlm = MaskedLM(model, tok)
    batch, hidden, (row, col) = hidden_at(mlm, ["the movie was great", "a day"])
    logits = hidden @ mlm.head.weight.T + (0 if mlm.head.bias is None else mlm.head.bias)
    with torch.no_grad():
        expected = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits[row, col]
    assert torch.allclose(logits, expected, atol=1e-4)


def swapped(mlm: MaskedLM) -> MaskedLM:
    """The same masked LM without a known cut: its whole logits, as for a family that nobody has told us of."""
    mlm.model.register_forward_hook(lambda *_: None)  # who listens to the whole model has to hear it
    return mlm


@pytest.mark.parametrize("family", FAMILIES)
def test_an_unknown_family_draws_and_expects_by_its_logits(family: str) -> None:
    """Draws and expectations of every family, against the same model by its ready logits and against plain torch."""
    known, unknown = MaskedLM(*tiny.masked_lm(family)), swapped(MaskedLM(*tiny.masked_lm(family)))
    for mlm in (known, unknown):
        with torch.no_grad():
            mlm.model.get_output_embeddings().bias.normal_(generator=torch.Generator().manual_seed(6)).mul_(3)
    table = torch.randn(len(known.tokenizer), 5, generator=torch.Generator().manual_seed(4))
    grad = torch.randn(2, 5, generator=torch.Generator().manual_seed(5))
    _, hidden, (row, _) = hidden_at(known, ["the movie was great", "a day"])
    _, logits, _ = hidden_at(unknown, ["the movie was great", "a day"])
    assert logits.shape == (len(hidden), len(known.tokenizer))
    p = (logits / 0.7).masked_fill(~known.keep, -torch.inf).softmax(-1)
    for mlm, at in ((known, hidden), (unknown, logits)):
        expected = mlm.expect(at, table, temperature=0.7)
        assert torch.allclose(expected, p @ table, atol=1e-4)
        dots = mlm.expect_dot(at, table, grad, segment=row, temperature=0.7)
        assert torch.allclose(dots, ((p @ table) * grad[row]).sum(-1), atol=1e-4)
    counters = torch.arange(len(row))
    ours, theirs = (
        m.draw(x, seed=3, counter=counters, temperature=0.7) for m, x in ((known, hidden), (unknown, logits))
    )
    assert torch.equal(ours, theirs)


@pytest.mark.parametrize("family", FAMILIES)
def test_draws_follow_the_conditional_of_the_temperature(family: str) -> None:
    mlm = MaskedLM(*tiny.masked_lm(family))
    with torch.no_grad():
        mlm.model.get_output_embeddings().weight.mul_(0.3)  # flatter, so that several tokens are drawn
    try:
        _, hidden, _ = hidden_at(mlm, ["the movie"])
        logits = (hidden[1] @ mlm.head.weight.T + (0 if mlm.head.bias is None else mlm.head.bias)) / 1.5
        p = logits.masked_fill(~mlm.keep, -torch.inf).softmax(-1)
        drawn = mlm.draw(hidden[1].expand(4000, -1), seed=torch.arange(4000), counter=7, temperature=1.5)
        share = torch.bincount(drawn, minlength=len(p)) / 4000
        assert (share - p).abs().sum() / 2 < 0.5 * (p * (1 - p) / 4000).sqrt().sum() + 0.06
        assert p.max() < 0.95
    finally:
        with torch.no_grad():
            mlm.model.get_output_embeddings().weight.div_(0.3)


WAYS = {
    "position": Gibbs(tokens=5, estimate=Taylor()),
    "mean form": Gibbs(tokens=5, start=Masks(), estimate=Taylor(form="mean", linearise="prob", marginals="unmasked")),
    "at the sample": Gibbs(tokens=5, start=Masks(), block=2, iterations=3, estimate=AtSample()),
    "at the mean": Gibbs(tokens=5, start=Masks(), estimate=AtMean(marginals="masked")),
    "expected": Masked(tokens=5),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_controls(family: str, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """q hangs on the masked LM: on its draws, on its expectation and, by the bridge, on the verifier's reading of both."""
    masked = tiny.masked_lm(family)
    verifier = Verifier(*tiny.classifier(masked[1]), target="positive")
    engine = Scone(tiny.llama(), masked, verifier, SconeConfig(particles=1, lookahead=WAYS[way], min_mass=0, top_k=4))
    rows: list[int] = []
    hidden = MaskedLM.hidden
    watch = lambda mlm, ids, *rest: (rows.append(len(ids)), hidden(mlm, ids, *rest))[1]  # noqa: E731
    monkeypatch.setattr(MaskedLM, "hidden", watch)
    step = engine.next_token("the movie was", max_new_tokens=6)
    assert step.q.isfinite().all() and step.q.std() > 0 and rows
    now = engine.with_config(lookahead=Nothing()).next_token("the movie was", max_new_tokens=6)
    assert not torch.allclose(step.q, now.q, atol=1e-3)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("family", FAMILIES)
def test_unknown_family_works_on_ready_logits(family: str, way: str) -> None:
    """A model without a known cut gives the same draws and q by its whole logits, in every strategy that asks it."""
    masked = tiny.masked_lm(family)
    verifier = Verifier(*tiny.classifier(masked[1]), target="positive")
    config = SconeConfig(particles=1, lookahead=WAYS[way], min_mass=0, top_k=4)
    engine = Scone(tiny.llama(), masked, verifier, config)
    expected = engine.next_token("the movie was", max_new_tokens=9).q
    swapped(engine.parts.masked_lm)
    found = engine.next_token("the movie was", max_new_tokens=9).q
    assert torch.allclose(found, expected, atol=1e-4) and found.std() > 0
    engine.parts.masked_lm.expect = lambda hidden, table, **kw: table.new_zeros(len(hidden), table.shape[1])
    engine.parts.masked_lm.expect_dot = lambda hidden, *args, **kw: hidden.new_zeros(len(hidden))
    zero = engine.next_token("the movie was", max_new_tokens=9).q
    assert torch.allclose(zero, found, atol=1e-4) == (way == "at the sample")


def start(length: int = 6, rows: int = 3) -> tuple[MaskedLM, Chains]:
    mlm = MaskedLM(*tiny.masked_lm("bert"))
    texts = ["the movie was", "a nice day it is", "what"][:rows]
    futures = [[mlm.mask_id] * length] * rows
    return mlm, begin(mlm, texts, mlm.encode_batch(texts), futures, torch.arange(rows))


def run(mlm: MaskedLM, chains: Chains, step: int = 0, **options: object) -> list[Sample]:
    """The states that chains from [MASK] keep, without a warm-up unless one is asked for."""
    gibbs = Gibbs(**{"start": Masks(warmup=0), **options})
    samples, _ = gibbs._run(SimpleNamespace(masked_lm=mlm), chains, step)
    assert len(samples) * gibbs.chains == gibbs.samples
    return samples


def test_special_tokens_are_never_drawn() -> None:
    mlm, state = start(length=20)
    banned = {mlm.tokenizer.convert_tokens_to_ids(t) for t in [*tiny.BERT_SPECIAL.values(), "[unused0]"]}
    drawn = {
        t for step in range(20) for future in state.with_ids(run(mlm, state, step)[-1].ids).futures() for t in future
    }
    assert not drawn & banned and len(drawn) > 50


@pytest.mark.parametrize("schedule", ["systematic", "uniform"])
@pytest.mark.parametrize(("iterations", "thin", "kept"), [(1, None, 1), (20, 5, 4), (5, 2, 3), (4, None, 1), (0, 3, 1)])
def test_kept_states_hold_no_mask_and_fixed_text_stays(
    schedule: str, iterations: int, thin: int | None, kept: int
) -> None:
    mlm, state = start()
    samples = run(mlm, state, schedule=schedule, iterations=iterations, thin=thin, block=2)
    assert len(samples) == kept
    for sample in samples:
        assert not (sample.ids == mlm.mask_id).any()
        fixed = state.offset < 0
        assert torch.equal(sample.ids[fixed], state.ids[fixed])
        assert (state.offset[sample.row, sample.col] >= 0).all()


def test_states_are_kept_after_every_so_many_updates(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 5 updates with `thin=2`, the states after 2, 4 and 5 of them: those of shorter runs."""
    mlm, state = start()
    options = {
        "schedule": "uniform",
        "block": 6,
        "start": Masks(warmup=0),
    }  # the whole future each time: no [MASK] left
    kept = run(mlm, state, iterations=5, thin=2, **options)
    for sample, iterations in zip(kept, (2, 4, 5)):
        (alone,) = run(mlm, state, iterations=iterations, **options)
        assert torch.equal(sample.ids, alone.ids) and torch.allclose(sample.hidden, alone.hidden)


def positions(mlm: MaskedLM, chains: Chains, monkeypatch: pytest.MonkeyPatch, **options: object) -> list[list[int]]:
    """Which places of the first row's future are masked in each update."""
    first, seen = int((chains.offset[0] == 0).nonzero()), []
    hidden = MaskedLM.hidden

    def watch(
        mlm: MaskedLM, ids: torch.Tensor, mask: torch.Tensor, row: torch.Tensor, col: torch.Tensor
    ) -> torch.Tensor:
        assert (ids[row, col] == mlm.mask_id).all()
        seen.append(sorted({int(c) - first for c in col[row == 0]}))
        return hidden(mlm, ids, mask, row, col)

    with monkeypatch.context() as patch:
        patch.setattr(MaskedLM, "hidden", watch)
        chosen = {"block": 6, "iterations": 1, "schedule": "systematic", "workers": 1, "sync_every": 1, **options}
        run_chains(mlm, chains, Memory(chains), temperature=1.0, step=0, **chosen)
    return seen


def test_schedules(monkeypatch: pytest.MonkeyPatch) -> None:
    mlm, state = start(length=5, rows=1)
    blocks = positions(mlm, state, monkeypatch, block=2, iterations=4)
    assert blocks == [[0, 1], [2, 3], [3, 4], [0, 1]]
    uniform = positions(mlm, state, monkeypatch, block=2, iterations=60, schedule="uniform")
    assert {tuple(block) for block in uniform} == {(0, 1), (1, 2), (2, 3), (3, 4)}  # never beyond the future
    assert positions(mlm, state, monkeypatch, block=9, iterations=2) == [[0, 1, 2, 3, 4]] * 2


@pytest.mark.parametrize(("began", "updates"), [(Masks(warmup=3), 4), (Carried(warmup=2), 3), (Masks(warmup=0), 1)])
def test_a_warm_up_is_for_rows_of_nothing_but_masks(
    began: object, updates: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    mlm = MaskedLM(*tiny.masked_lm("bert"))
    fixed = mlm.encode_batch(["the movie", "a day"])
    state = begin(mlm, ["the movie", "a day"], fixed, [[mlm.mask_id] * 4, [mlm.mask_id] * 3 + [30]], torch.arange(2))
    rows: list[int] = []
    hidden = MaskedLM.hidden
    watch = lambda mlm, ids, *rest: (rows.append(len(ids)), hidden(mlm, ids, *rest))[1]  # noqa: E731
    monkeypatch.setattr(MaskedLM, "hidden", watch)
    run(mlm, state, start=began, block=4, iterations=1)
    assert rows == [1] * (updates - 1) + [2]


def test_sweep_and_masked_marginals_agree_for_one_position() -> None:
    mlm, state = start(length=1)
    (sample,) = run(mlm, state)
    masked = marginals(mlm, state.with_ids(sample.ids), masked=True)
    assert torch.allclose(sample.hidden, masked.hidden, atol=1e-5)
    unmasked = marginals(mlm, state.with_ids(sample.ids), masked=False)
    assert not torch.allclose(unmasked.hidden, masked.hidden, atol=1e-2)


def test_masked_marginals_mask_each_position_by_itself() -> None:
    """Of many rows, and more than one batch of them."""
    mlm = MaskedLM(*tiny.masked_lm("bert"))
    future = mlm.encode("great film and the actors")
    state = begin(mlm, ["the movie was"] * 60, [mlm.encode("the movie was")] * 60, [future] * 60, torch.arange(60))
    found = marginals(mlm, state, masked=True)
    assert len(found.hidden) == 60 * len(future) > 256
    for at, (row, col) in enumerate(zip(found.row[:5].tolist(), found.col[:5].tolist())):
        ids = state.ids[row : row + 1].clone()
        ids[0, col] = mlm.mask_id
        expected = mlm.hidden(ids, state.mask[:1], torch.tensor([0]), torch.tensor([col]))
        assert torch.allclose(found.hidden[at :: len(future)], expected, atol=1e-5)


def test_rows_of_one_seed_share_their_noise() -> None:
    """Coupled candidates: the same conditionals and the same seed give the same draw, other seeds others."""
    mlm = MaskedLM(*tiny.masked_lm("bert"))
    text, future = "the movie was", [mlm.mask_id] * 8
    state = begin(mlm, [text] * 3, [mlm.encode(text)] * 3, [future] * 3, torch.tensor([4, 4, 5]))
    one, same, other = state.with_ids(run(mlm, state, 2)[-1].ids).futures()
    assert one == same != other
    assert state.with_ids(run(mlm, state, 3)[-1].ids).futures()[0] != one


def test_every_draw_of_a_step_has_noise_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Warm-up, updates and what is still [MASK] in states that are kept never share a counter."""
    mlm, state = start(length=5, rows=1)
    seen: list[int] = []
    draw = MaskedLM.draw

    def watch(mlm: MaskedLM, hidden: torch.Tensor, *, counter: torch.Tensor, **options: object) -> torch.Tensor:
        seen.extend(counter.tolist())
        return draw(mlm, hidden, counter=counter, **options)

    monkeypatch.setattr(MaskedLM, "draw", watch)
    for step in (0, 1):
        run(mlm, state, step, start=Masks(warmup=2), block=1, iterations=5, thin=2, schedule="uniform")
    assert len(seen) == len(set(seen)) > 14


def test_more_updates_than_have_noise_are_refused() -> None:
    Gibbs(iterations=4095)
    Gibbs(start=Masks(warmup=5), iterations=4086, thin=1000)
    for options in (
        {"iterations": 4096},
        {"start": Masks(warmup=4), "iterations": 4092},
        {"iterations": 2049, "thin": 1},
    ):
        with pytest.raises(ConfigError, match="iterations must leave a step at most 4096 updates"):
            Gibbs(**options)


def test_the_temperature_is_the_masked_lms(engine: Scone) -> None:
    """As cold as can be, chains take the likeliest tokens whatever the seed, and an expectation is one row."""
    cold = Gibbs(tokens=4, start=Masks(), estimate=AtSample(), temperature=1e-4)
    engine = engine.with_config(lookahead=cold)
    one, other = (engine.next_token("the movie was", max_new_tokens=9, seed=s).q for s in (0, 1))
    assert torch.allclose(one, other, atol=1e-5)
    warm = engine.with_config(lookahead=cold.replace(temperature=1.0))
    one, other = (warm.next_token("the movie was", max_new_tokens=9, seed=s).q for s in (0, 1))
    assert not torch.allclose(one, other, atol=1e-3)


WARM = {
    "expected": Masked(tokens=4),
    "at the mean": Gibbs(tokens=4, start=Masks(), estimate=AtMean()),
    "position": Gibbs(tokens=4, start=Masks(), estimate=Taylor()),
    "mean form": Gibbs(tokens=4, start=Masks(), estimate=Taylor(form="mean")),
    "at the sample": Gibbs(tokens=4, start=Masks(), estimate=AtSample()),
}


@pytest.mark.parametrize("way", WARM)
def test_an_expectation_has_the_masked_lms_temperature(
    engine: Scone, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With all draws made at one temperature, what is left of the option is the expectation's."""
    draw = MaskedLM.draw
    monkeypatch.setattr(
        MaskedLM, "draw", lambda mlm, hidden, **options: draw(mlm, hidden, **options | {"temperature": 1.0})
    )
    ways = [WARM[way].replace(temperature=t) for t in (1.0, 3.0)]
    one, other = (engine.with_config(lookahead=each).next_token("the movie was", max_new_tokens=9).q for each in ways)
    assert torch.allclose(one, other, atol=1e-4) == (way == "at the sample")


def test_empty_future() -> None:
    mlm = MaskedLM(*tiny.masked_lm("bert"))
    fixed = mlm.encode_batch(["the movie", "a day"])
    state = begin(mlm, ["the movie", "a day"], fixed, [[], [mlm.mask_id]], torch.arange(2))
    (sample,) = run(mlm, state)
    assert sample.row.tolist() == [1]
    assert state.with_ids(sample.ids).futures()[0] == []
    assert draw_masks(mlm, state, sample.ids, Memory(state), temperature=1.0, step=0, number=0) is sample.ids


@pytest.mark.parametrize(
    "estimate", [AtSample(), AtMean(), AtMean(marginals="masked"), Taylor(), Taylor(form="mean")], ids=str
)
def test_futures_that_end_at_once_are_no_lookahead(positive: Verifier, estimate: object) -> None:
    """Where the LM sees the end of the text after every candidate, q is φ of what stands there."""
    (model, tok), masked = tiny.llama(), tiny.masked_lm("bert")
    config = SconeConfig(particles=1, lookahead=Gibbs(tokens=4, estimate=estimate), min_mass=0, top_k=4)
    goes_on = Scone((model, tok), masked, positive, config).next_token("the movie").q
    ending = copy.deepcopy(model)
    ending.lm_head.register_forward_hook(
        lambda head, given, out: out.index_fill(-1, torch.tensor([tok.eos_token_id]), 1e4)
    )
    engine = Scone((ending, tok), masked, positive, config)
    never = lambda ids, scores: scores.index_fill(1, torch.tensor([tok.eos_token_id]), -torch.inf)  # noqa: E731
    q = engine.next_token("the movie", logits_processor=[never]).q
    now = engine.with_config(lookahead=Nothing()).next_token("the movie", logits_processor=[never]).q
    assert torch.allclose(q, now, atol=1e-5) and not torch.allclose(q, goes_on, atol=1e-3)


def test_chains_have_tokens() -> None:
    with pytest.raises(ConfigError, match="tokens must be an integer of at least 1, got 0"):
        Gibbs(tokens=0)


def test_a_text_that_does_not_fit_keeps_its_end() -> None:
    mlm = MaskedLM(*tiny.masked_lm("bert"))
    text = "the movie was a great film and " * 90
    state = begin(mlm, [text, "a day"], mlm.encode_batch([text, "a day"]), [[mlm.mask_id] * 4] * 2, torch.arange(2))
    assert state.ids.shape == (2, 512) and state.texts[1] == "a day"
    assert text.endswith(state.texts[0]) and mlm.encode(state.texts[0]) == state.ids[0, 1:507].tolist()


def test_carried_chains_survive(engine: Scone) -> None:
    """What follows a token that was taken is what its lookahead said, shifted, except where it was redrawn."""
    mlm = engine.parts.masked_lm
    assert shift([1, 2, 3], 4, mlm.mask_id) == [2, 3, mlm.mask_id, mlm.mask_id]
    frozen = engine.with_config(lookahead=Gibbs(tokens=4, start=Carried(), block=1, iterations=1, estimate=AtSample()))
    seen = []
    (text,) = texts = frozen.open(["the movie was"], max_new_tokens=9, seed=0)
    for _ in frozen.loop().run(texts, frozen.parts.lm.prefill([text.prompt_ids]), 5):
        if text.carried is not None:
            seen.append(text.carried[0])
    assert len(seen) >= 4
    for before, after in itertools.pairwise(seen):
        assert after[1 : len(before) - 1] == before[2:][: len(after) - 1]


@pytest.mark.parametrize(
    "lookahead",
    [
        Gibbs(tokens=5, start=Carried(), chains=2, estimate=AtSample()),
        Mix(Gibbs(tokens=5, start=Carried(), chains=2, estimate=AtSample()), Nothing()),
        Mix(Gibbs(tokens=5, estimate=AtSample()), Gibbs(tokens=5, start=Carried(), chains=2, estimate=AtSample())),
        Mix(Nothing(), Mix(Gibbs(tokens=3), Nothing()), Gibbs(tokens=5, start=Carried(), chains=2)),
    ],
    ids=["alone", "with nothing", "with chains that start anew", "mixed twice"],
)
def test_chains_move_on_under_a_token_that_was_not_judged(engine: Scone, lookahead: object) -> None:
    """Also within a mixture, whose other parts carry nothing."""
    engine = engine.with_config(lookahead=lookahead)
    mask_id = engine.parts.masked_lm.mask_id

    def chains(text: object) -> list[list[int]]:
        if isinstance(lookahead, Gibbs):
            return text.carried
        return next(own for own in text.carried if own is not None)

    (text,) = texts = engine.open(["the movie was"], max_new_tokens=9, seed=0)
    steps = engine.loop().run(texts, engine.parts.lm.prefill([text.prompt_ids]), 9)
    next(steps)
    before = [list(future) for future in chains(text)]
    assert len(before) == 2 and all(mask_id not in future for future in before)
    settled = dataclasses.replace(engine.loop(), config=engine.config.replace(min_mass=1.0))
    decision = settled.decide(texts, engine.parts.lm.prefill([[*text.prompt_ids, *text.new_ids]]), 7)
    assert not decision.judged.place
    settled.take(text, decision, 0, int(decision.candidates.tokens[0, 0]), 7)
    assert chains(text) == [[*future[1:], mask_id] for future in before]
