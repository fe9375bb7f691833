"""What control must and must not do to the LM's distribution."""

from __future__ import annotations

from typing import Any

import pytest
import tiny
import torch

from scone import reference
from scone.decode import Scone, SconeConfig, Verifier
from scone.lm import CausalLM, choose, propose
from scone.lookahead import AtMean, AtSample, Expectation, Gibbs, Lookahead, Masked, Masks, Mix, Nothing, Paths
from scone.reweigh import reweigh

PROMPTS = ["the movie was", "a nice day", "what"]


def constant(value: float) -> Verifier:
    tokenizer = tiny.wordpiece()
    return Verifier.from_module(
        lambda embeds, mask: embeds.sum((1, 2)) * 0 + value, tokenizer, torch.randn(len(tokenizer), 4)
    )


@pytest.mark.parametrize("rule", ["bayes", "odds", "softmax", "logit"])
def test_constant_verifier_changes_nothing(engine: Scone, rule: str) -> None:
    flat = Scone(tiny.llama(), tiny.masked_lm("bert"), constant(0.3), engine.config.replace(reweigh=rule))
    plain = engine.with_config(strength=0)
    step, expected = flat.next_token("the movie was"), plain.next_token("the movie was")
    assert torch.allclose(step.log_p_star, expected.log_p.log_softmax(-1), atol=1e-5)
    assert flat.generate(PROMPTS, max_new_tokens=5, seed=4).token_ids == (
        plain.generate(PROMPTS, max_new_tokens=5, seed=4).token_ids
    )


def test_strength_zero_is_plain_sampling_from_the_truncated_distribution(engine: Scone) -> None:
    """The tokens are those of Gumbel-max on transformers' own logits."""
    out = engine.with_config(strength=0, top_k=4).generate(["the movie was"], max_new_tokens=4, seed=8)
    ids = engine.lm_tokenizer("the movie was")["input_ids"]
    for step, token in zip(out.trace[0], out.token_ids[0]):
        logits = engine.lm(input_ids=torch.tensor([ids])).logits[0, -1]
        expected = logits.log_softmax(-1).topk(4)
        assert step.tokens.tolist() == expected.indices.tolist()
        assert torch.allclose(step.log_p, expected.values, atol=1e-4)
        assert step.token == token
        ids = [*ids, token]


def test_draws_follow_the_distribution() -> None:
    log_p = torch.tensor([0.5, 0.3, 0.15, 0.05]).log().expand(4000, 4)
    tokens = torch.tensor([7, 2, 31, 4]).expand(4000, 4)
    chosen = choose(tokens, log_p, vocabulary=40, seeds=range(4000), step=3)
    share = torch.bincount(chosen, minlength=4) / 4000
    assert torch.allclose(share, log_p[0].exp(), atol=0.03)


def test_order_of_candidates_does_not_matter() -> None:
    tokens, log_p = torch.tensor([[7, 2, 31]] * 50), torch.tensor([[0.2, 0.5, 0.3]] * 50).log()
    seeds = range(50)
    forward = tokens.gather(1, choose(tokens, log_p, vocabulary=40, seeds=seeds, step=0)[:, None])
    back = tokens.flip(1).gather(1, choose(tokens.flip(1), log_p.flip(1), vocabulary=40, seeds=seeds, step=0)[:, None])
    assert torch.equal(forward, back)


def test_control_raises_the_score(engine: Scone) -> None:
    """At a last step q is φ itself: what is taken greedily under great strength is what the verifier likes best."""
    strong = engine.with_config(strength=1e5, top_k=10)
    step = strong.next_token("the movie was", max_new_tokens=1)
    texts = [strong.parts.lm.decode([*strong.parts.lm.encode("the movie was"), int(t)]) for t in step.tokens]
    scores = strong.verifier.score(texts)
    assert torch.allclose(step.q, scores, atol=1e-5)
    assert scores[step.log_p_star.argmax()] == scores.max() > scores.min() + 0.001


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("bayes", [0.5 * 0.2**2, 0.5 * 0.8**2]),
        ("odds", [0.5 * (0.2 / 0.8) ** 2, 0.5 * (0.8 / 0.2) ** 2]),
        ("logit", [0.5 * 0.2**2 / (0.2**2 + 0.8**2), 0.5 * 0.8**2 / (0.2**2 + 0.8**2)]),
        (
            "softmax",
            [0.5 * torch.tensor([0.2, 0.8]).softmax(0)[0] ** 2, 0.5 * torch.tensor([0.2, 0.8]).softmax(0)[1] ** 2],
        ),
    ],
)
def test_rules_of_reweighing(rule: str, expected: list[float]) -> None:
    log_p = torch.tensor([[0.5, 0.5, 0.0]]).log()
    q = torch.tensor([[[0.2, 0.8, 0.5]]])
    result = reweigh(log_p, q, rule, strength=2).exp()[0]
    wanted = torch.tensor([*expected, 0.0])
    assert torch.allclose(result, wanted / wanted.sum(), atol=1e-6)


def test_a_satisfied_term_does_not_outweigh_one_in_doubt() -> None:
    """By the odds of both together: 0.98 or 0.99 matters little while the other is even."""
    log_p = torch.tensor([[0.5, 0.5]]).log()
    satisfied, doubtful = [0.98, 0.99], [0.55, 0.45]
    together = torch.tensor([[satisfied], [doubtful]])
    for rule in ("bayes", "odds"):
        p = reweigh(log_p, together, rule, strength=4, strengths=[1.0, 1.0]).exp()[0]
        assert p[0] > 0.6
    alone = reweigh(log_p, together[:1], "odds", strength=4).exp()[0]
    assert alone[1] > 0.9  # where nothing else is in doubt it does matter


def test_terms_multiply_each_to_its_strength() -> None:
    log_p = torch.tensor([[0.5, 0.5]]).log()
    q = torch.tensor([[[0.2, 0.8]], [[0.9, 0.3]]])
    result = reweigh(log_p, q, "bayes", strength=1, strengths=[1.0, 2.0]).exp()[0]
    wanted = torch.tensor([0.2 * 0.9**2, 0.8 * 0.3**2])
    assert torch.allclose(result, wanted / wanted.sum(), atol=1e-6)


def test_candidates_honour_top_p_min_p_and_forbidden_tokens() -> None:
    logits = torch.tensor([[0.6, 0.2, 0.1, 0.06, 0.04]]).log()
    assert propose(logits, top_k=10, top_p=0.75).log_p.isfinite().sum() == 2
    assert propose(logits, top_k=10, min_p=0.15).log_p.isfinite().sum() == 3
    forbidden = logits.clone()
    forbidden[0, 0] = -torch.inf
    assert propose(forbidden, top_k=2).tokens.tolist() == [[1, 2]]


@pytest.mark.parametrize("seed", [0, 1])
def test_fast_path_equals_reference(positive: Verifier, seed: int) -> None:
    engine = Scone(tiny.llama(), tiny.masked_lm("bert"), positive, SconeConfig.paper())
    parts = reference.Parts.of(engine)
    fast = engine.next_token("the movie was", max_new_tokens=12, seed=seed)
    plain = reference.next_token(parts, "the movie was", max_new_tokens=12, seed=seed)
    assert fast.tokens.tolist() == plain.tokens.tolist()
    assert torch.allclose(fast.q, plain.q, atol=1e-5)
    assert torch.allclose(fast.log_p_star, plain.log_p_star, atol=1e-4)
    assert plain.q.std() > 1e-3


def test_generation_equals_reference(positive: Verifier) -> None:
    small = {"chains": 2, "iterations": 4, "thin": 2}
    paper = SconeConfig.paper(top_k=4)
    config = paper.replace(lookahead=paper.lookahead.replace(tokens=6, **small))
    engine = Scone(tiny.llama(), tiny.masked_lm("bert"), positive, config)
    parts = reference.Parts.of(engine)
    text, steps = reference.generate(parts, "a nice day", max_new_tokens=4, seed=5, top_k=4, lookahead=6, **small)
    out = engine.generate(["a nice day"], max_new_tokens=4, seed=5)
    assert out.continuations == [text]
    for fast, plain in zip(out.trace[0], steps):
        assert torch.allclose(fast.q, plain.q, atol=1e-5)


@pytest.mark.parametrize("kind", ["expected", "chains", "callable"])
def test_a_mixture_is_the_weighted_mean_of_log_odds(engine: Scone, kind: str) -> None:
    if kind == "callable":
        short = Verifier.from_callable(lambda texts: [1 / (1 + len(text)) for text in texts])
        engine = Scone((engine.lm, engine.lm_tokenizer), (engine.masked_lm, engine.masked_lm_tokenizer), short)
    chains = Gibbs(tokens=4, start=Masks(), estimate=AtSample())
    ahead = chains if kind == "chains" else Expectation(tokens=4)
    engine = engine.with_config(min_mass=0)
    prompt, options = "the movie was", {"max_new_tokens": 9, "seed": 1}

    def q(lookahead: Lookahead) -> torch.Tensor:
        return engine.with_config(lookahead=lookahead).next_token(prompt, **options).q

    alone, now = q(ahead), q(Nothing())
    texts = [prompt + engine.lm_tokenizer.decode([t]) for t in engine.next_token(prompt, **options).tokens.tolist()]
    assert torch.allclose(now, engine.verifier.score(texts), atol=1e-5)
    assert not torch.allclose(alone, now, atol=1e-4)
    mixed = 0.75 * alone.logit() + 0.25 * now.logit()
    assert torch.allclose(q(Mix(ahead, Nothing(), weights=(3, 1))).logit(), mixed, atol=1e-4)
    assert torch.allclose(q(Mix(ahead, Nothing())).logit(), (alone.logit() + now.logit()) / 2, atol=1e-4)
    three = Mix(ahead, Mix(Nothing(), ahead), Nothing(), weights=(0.5, 0.25, 0.25))
    assert torch.allclose(q(three).logit(), 0.625 * alone.logit() + 0.375 * now.logit(), atol=1e-4)


def judged_texts(config: SconeConfig, prompt: object, **options: int) -> list[str]:
    """What a verifier is asked of the candidates after a prompt."""
    seen: list[str] = []
    verifier = Verifier.from_callable(lambda texts: seen.extend(texts) or [0.5] * len(texts))
    engine = Scone(tiny.llama(), None, verifier, config)
    engine.next_token(prompt, **options)
    return seen


@pytest.mark.parametrize("window", [1, 2, 5, 100])
@pytest.mark.parametrize("remaining", [0, 5])
def test_the_context_window_keeps_the_last_tokens(engine: Scone, window: int, remaining: int) -> None:
    """`context_window` counts tokens of the LM, the candidate among them."""
    config = SconeConfig(particles=1, context_window=window, min_mass=0, top_k=5, lookahead=Nothing())
    prompt, lm = "the movie was a great film", engine.parts.lm
    ids = lm.encode(prompt)
    seen = judged_texts(config, prompt, max_new_tokens=remaining + 1)
    tokens = engine.with_config(top_k=5).next_token(prompt).tokens.tolist()
    assert window > len(ids) or len(set(seen)) == len(seen) == 5
    assert seen == [lm.decode([*ids, token][-window:]) for token in tokens]


def test_the_context_window_leaves_the_verifiers_numbers_to_the_end_of_the_text(engine: Scone) -> None:
    """Every strategy judges the same window; the LM itself still reads the whole text."""
    prompt = "the movie was a great film"
    whole = engine.next_token(prompt, max_new_tokens=6)
    for lookahead in (
        Nothing(),
        Masked(tokens=3),
        Gibbs(tokens=3, start=Masks(warmup=0), iterations=0, estimate=AtMean()),
    ):
        narrow = engine.with_config(lookahead=lookahead, context_window=3)
        wide = narrow.with_config(context_window=None)
        step = narrow.next_token(prompt, max_new_tokens=6)
        assert torch.equal(step.tokens, whole.tokens) and torch.allclose(step.log_p, whole.log_p, atol=1e-5)
        assert not torch.allclose(step.q, wide.next_token(prompt, max_new_tokens=6).q, atol=1e-3)


def test_the_temperature_is_the_lms(engine: Scone) -> None:
    """p* is built on p to the power of 1 / temperature, and q is the same."""
    engine = engine.with_config(top_k=5, reweigh="bayes", strength=2)
    at_one, cool = (engine.with_config(temperature=t).next_token("the movie was", seed=3) for t in (1.0, 0.5))
    ids = torch.tensor([engine.parts.lm.encode("the movie was")])
    with torch.no_grad():
        logits = engine.lm(input_ids=ids).logits[0, -1]
    expected = (logits / 0.5).log_softmax(-1)[cool.tokens]
    assert torch.allclose(cool.log_p, expected, atol=1e-4) and not torch.allclose(cool.log_p, at_one.log_p, atol=0.1)
    assert torch.allclose(cool.q, at_one.q, atol=1e-5)
    assert torch.allclose(cool.log_p_star, (expected + 2 * cool.q.log()).log_softmax(-1), atol=1e-4)


def test_softmax_sums_over_the_samples_that_there_are(engine: Scone) -> None:
    """Algorithm 1 sums q over the samples: those of the chains that ran, not of options that stand idle."""
    ids, base = [40, 41, 42], engine.with_config(reweigh="softmax", strength=1)

    def only(input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        kept = torch.full_like(scores, -torch.inf)
        kept[:, ids] = torch.tensor([1.0, 0.5, 0.0])
        return kept

    lookaheads = {
        Expectation(tokens=2): 1,
        Nothing(): 1,
        Paths(tokens=2, count=3): 3,
        Gibbs(tokens=4, chains=2, iterations=4, thin=2): 4,
        Gibbs(tokens=4, chains=3): 3,
        Mix(Gibbs(tokens=4, chains=3), Nothing()): 1,
    }
    for lookahead, samples in lookaheads.items():
        step = base.with_config(lookahead=lookahead).next_token("the movie was", logits_processor=[only])
        expected = (step.log_p + (samples * step.q).log_softmax(-1)).log_softmax(-1)
        assert torch.allclose(step.log_p_star, expected, atol=1e-5), lookahead


def test_nothing_is_judged_where_nothing_can_change(engine: Scone, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without strength, of the config or of all terms, no model but the LM is run."""
    monkeypatch.setattr(Gibbs, "judge", lambda *args: pytest.fail("a lookahead without strength"))
    step = engine.with_config(strength=0).next_token("the movie was")
    assert step.q.tolist() == [1.0] * 6 and torch.allclose(step.log_p_star, step.log_p.log_softmax(-1))
    idle = Scone(
        (engine.lm, engine.lm_tokenizer), tiny.masked_lm("bert"), engine.verifier.with_strength(0), engine.config
    )
    assert idle.next_token("the movie was").q.tolist() == [1.0] * 6


@pytest.mark.parametrize("epsilon", [0.01, 0.2])
@pytest.mark.parametrize("rule", ["odds", "bayes", "logit"])
def test_no_estimate_alone_rules_a_candidate_out(rule: str, epsilon: float) -> None:
    log_p = torch.tensor([[0.5, 0.5]]).log()
    q = torch.tensor([[[0.0, 1.0]]])
    found = reweigh(log_p, q, rule, strength=2, epsilon=epsilon).exp()[0]
    least, most = epsilon, 1 - epsilon
    weights = {
        "odds": [(least / most) ** 2, (most / least) ** 2],
        "bayes": [least**2, 1.0],
        "logit": [least**2 / (least**2 + most**2), most**2 / (least**2 + most**2)],
    }[rule]
    assert torch.allclose(found, torch.tensor(weights) / sum(weights), atol=1e-6)


def test_the_configs_epsilon_and_top_p_and_min_p_reach_the_candidates(engine: Scone) -> None:
    sure = Verifier.from_callable(lambda texts: [float(i == 0) for i, _ in enumerate(texts)])
    config = SconeConfig(particles=1, lookahead=Nothing(), min_mass=0, strength=1, epsilon=0.25, top_k=4)
    judge = Scone(tiny.llama(), None, sure, config)
    step = judge.next_token("the movie was")
    odds = torch.tensor([3.0, 1 / 3, 1 / 3, 1 / 3]).log()
    assert torch.allclose(step.log_p_star, (step.log_p + odds).log_softmax(-1), atol=1e-5)
    mass = step.log_p.exp().cumsum(0)
    cut = judge.with_config(top_p=float(mass[1]) - 1e-4).next_token("the movie was")
    assert cut.tokens.tolist() == step.tokens.tolist()[:2]
    least = float((step.log_p[1] - step.log_p[0]).exp()) + 1e-4
    assert len(judge.with_config(min_p=least).next_token("the movie was").tokens) == 1


def test_each_step_draws_its_paths_with_noise_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    likely, seeds = CausalLM.likely, []

    def watched(lm: CausalLM, *args: Any, **options: Any) -> Any:
        if options["counter"] == 0:  # the first token of the paths of a step
            seeds.append(set(options["seed"].tolist()))
        return likely(lm, *args, **options)

    monkeypatch.setattr(CausalLM, "likely", watched)
    judge = Verifier.from_callable(lambda texts: [0.5] * len(texts))
    config = SconeConfig(particles=1, min_mass=0, top_k=3, lookahead=Paths(tokens=2, count=2, judged="drawn"))
    Scone(tiny.llama(), None, judge, config).generate(PROMPTS[0], max_new_tokens=4, seed=1)
    assert [len(own) for own in seeds] == [2, 2, 2] and len(set.union(*seeds)) == 6
