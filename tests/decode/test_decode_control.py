"""What control must and must not do to the LM's distribution."""

from __future__ import annotations

import pytest
import tiny
import torch

from scone import reference
from scone.decode import Scone, SconeConfig, Verifier
from scone.estimate import reweigh
from scone.sampling import choose, propose

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
    texts = [strong.causal_lm.decode([*strong.causal_lm.encode("the movie was"), int(t)]) for t in step.tokens]
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
    result = reweigh(log_p, q, SconeConfig(reweigh=rule, strength=2)).exp()[0]
    wanted = torch.tensor([*expected, 0.0])
    assert torch.allclose(result, wanted / wanted.sum(), atol=1e-6)


def test_a_satisfied_term_does_not_outweigh_one_in_doubt() -> None:
    """By the odds of both together: 0.98 or 0.99 matters little while the other is even."""
    log_p = torch.tensor([[0.5, 0.5]]).log()
    satisfied, doubtful = [0.98, 0.99], [0.55, 0.45]
    together = torch.tensor([[satisfied], [doubtful]])
    for rule in ("bayes", "odds"):
        p = reweigh(log_p, together, SconeConfig(reweigh=rule, strength=4), strengths=[1.0, 1.0]).exp()[0]
        assert p[0] > 0.6
    alone = reweigh(log_p, together[:1], SconeConfig(reweigh="odds", strength=4)).exp()[0]
    assert alone[1] > 0.9  # where nothing else is in doubt it does matter


def test_terms_multiply_each_to_its_strength() -> None:
    log_p = torch.tensor([[0.5, 0.5]]).log()
    q = torch.tensor([[[0.2, 0.8]], [[0.9, 0.3]]])
    result = reweigh(log_p, q, SconeConfig(reweigh="bayes", strength=1), strengths=[1.0, 2.0]).exp()[0]
    wanted = torch.tensor([0.2 * 0.9**2, 0.8 * 0.3**2])
    assert torch.allclose(result, wanted / wanted.sum(), atol=1e-6)


def test_candidates_honour_top_p_min_p_and_forbidden_tokens() -> None:
    logits = torch.tensor([[0.6, 0.2, 0.1, 0.06, 0.04]]).log()
    assert propose(logits, SconeConfig(top_p=0.75)).log_p.isfinite().sum() == 2
    assert propose(logits, SconeConfig(min_p=0.15)).log_p.isfinite().sum() == 3
    forbidden = logits.clone()
    forbidden[0, 0] = -torch.inf
    assert propose(forbidden, SconeConfig(top_k=2)).tokens.tolist() == [[1, 2]]


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
    small = {"top_k": 4, "chains": 2, "iterations": 4, "thin": 2, "lookahead": 6}
    engine = Scone(tiny.llama(), tiny.masked_lm("bert"), positive, SconeConfig.paper(**small))
    text, steps = reference.generate(reference.Parts.of(engine), "a nice day", max_new_tokens=4, seed=5, **small)
    out = engine.generate(["a nice day"], max_new_tokens=4, seed=5)
    assert out.continuations == [text]
    for fast, plain in zip(out.trace[0], steps):
        assert torch.allclose(fast.q, plain.q, atol=1e-5)


@pytest.mark.parametrize("kind", ["expected", "chains", "callable"])
def test_blend_mixes_the_lookahead_with_the_text_so_far(engine: Scone, kind: str) -> None:
    if kind == "callable":
        short = Verifier.from_callable(lambda texts: [1 / (1 + len(text)) for text in texts])
        engine = Scone((engine.lm, engine.lm_tokenizer), (engine.masked_lm, engine.masked_lm_tokenizer), short)
    ways = {"expected": {"expand": "mean", "init": "lm"}, "chains": {"expand": "sample", "init": "mask"}}
    engine = engine.with_config(min_mass=0, lookahead=4, **ways.get(kind, ways["expected"]))
    prompt, options = "the movie was", {"max_new_tokens": 9, "seed": 1}
    steps = {share: engine.with_config(blend=share).next_token(prompt, **options) for share in (0.0, 0.25, 1.0)}
    texts = [prompt + engine.lm_tokenizer.decode([token]) for token in steps[1.0].tokens.tolist()]
    assert torch.allclose(steps[1.0].q, engine.verifier.score(texts), atol=1e-5)
    assert not torch.allclose(steps[0.0].q, steps[1.0].q, atol=1e-4)
    mixed = 0.75 * steps[0.0].q.logit() + 0.25 * steps[1.0].q.logit()
    assert torch.allclose(steps[0.25].q.logit(), mixed, atol=1e-4)
