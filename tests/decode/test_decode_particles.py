"""Particles: weights are those of sequential Monte Carlo, one is kept, and nothing depends on the rest of the batch."""

from __future__ import annotations

import itertools
import math

import pytest
import tiny
import torch

from scone.decode import Scone, SconeConfig, Verifier
from scone.errors import ConfigError
from scone.lookahead import Expectation, Nothing, Paths
from scone.particles import Particle, Population, systematic
from scone.seeds import derive
from scone.text import Text

LENGTH, TOP_K = 4, 3
PROMPTS = ["the movie was", "what a"]


def vowels(texts: list[str]) -> list[float]:
    """0.8 or 0.2: whether an odd number of the text's last characters are vowels."""
    return [0.8 if sum(c in "aeiou" for c in text[-6:]) % 2 else 0.2 for text in texts]


def engine(**options: object) -> Scone:
    shared = {"top_k": TOP_K, "min_mass": 0, "reweigh": "bayes", "strength": 1.0, "particles": 1}
    config = SconeConfig(lookahead=Nothing(), **{**shared, **options})
    return Scone(tiny.llama(), None, Verifier.from_callable(vowels), config)


def enumerated(prompt: str) -> dict[str, tuple[float, float]]:
    """p and φ of every text that the LM can write from its three likeliest tokens."""
    model, tokenizer = tiny.llama()
    start, stop = tokenizer(prompt)["input_ids"], tokenizer.eos_token_id
    ahead, found = [((), 1.0)], {}
    with torch.no_grad():
        for _ in range(LENGTH):
            longer = []
            for path, p in ahead:
                logits = model(torch.tensor([[*start, *path]])).logits[0, -1]
                values, tokens = logits.topk(TOP_K)
                longer += [((*path, int(t)), p * float(q)) for t, q in zip(tokens, values.softmax(0))]
            found |= {path: p for path, p in longer if path[-1] == stop}
            ahead = [(path, p) for path, p in longer if path[-1] != stop]
    found |= dict(ahead)
    texts, writer = {}, engine().loop().writer
    for path in found:
        text = Text(prompt, start, 0)
        for token in path:
            writer.append(text, token)
        texts[path] = text.text
    return {repr(path): (p, vowels([texts[path]])[0]) for path, p in found.items()}


def test_sampled_particles_are_draws_from_the_exact_posterior():
    """Sequential Monte Carlo: kept texts follow p · φ, whatever steers them, and the evidence is unbiased."""
    truth = enumerated(PROMPTS[0])
    evidence = sum(p * phi for p, phi in truth.values())
    posterior_mean = sum(p * phi * phi for p, phi in truth.values()) / evidence
    prior_mean, draws = evidence, 240
    assert posterior_mean - prior_mean > 0.1  # else nothing is shown
    for options in ({}, {"resample": 1.0}, {"resample": 0.0}, {"safe": 0.5, "rest": 2}):
        out = engine(particles=8, keep="sample", **options).generate(
            PROMPTS[:1], max_new_tokens=LENGTH, num_return_sequences=draws, seed=4
        )
        estimates = torch.tensor(out.log_evidence, dtype=torch.float64).exp()
        error = float(estimates.std()) / math.sqrt(draws)
        assert abs(float(estimates.mean()) - evidence) < 4 * error + 1e-3
        assert abs(float(out.scores.mean()) - posterior_mean) < 4 * float(out.scores.std()) / math.sqrt(draws) + 0.01
        drawn = [repr(tuple(ids)) for ids in out.token_ids]
        common = [path for path, (p, phi) in truth.items() if p * phi / evidence > 0.04]
        for path in common:
            want = truth[path][0] * truth[path][1] / evidence
            assert abs(drawn.count(path) / draws - want) < 4.5 * math.sqrt(want * (1 - want) / draws) + 0.01


def test_steering_harder_does_not_change_what_the_weights_stand_for():
    truth = enumerated(PROMPTS[0])
    evidence = sum(p * phi for p, phi in truth.values())
    steered = engine(particles=12, keep="sample").with_config(strength=2.0)
    out = steered.generate(PROMPTS[:1], max_new_tokens=LENGTH, num_return_sequences=200, seed=5)
    estimates = torch.tensor(out.log_evidence, dtype=torch.float64).exp()
    assert abs(float(estimates.mean()) - evidence) < 4 * float(estimates.std()) / math.sqrt(200) + 1e-3


def test_the_best_is_kept_and_is_better():
    one = engine().generate(PROMPTS, max_new_tokens=8, num_return_sequences=20, seed=1)
    best = engine(particles=4).generate(PROMPTS, max_new_tokens=8, num_return_sequences=20, seed=1)
    assert float(best.scores.mean()) > float(one.scores.mean()) + 0.05
    assert one.log_evidence is None and best.log_evidence is None and len(best.texts) == 40
    assert torch.equal(best.scores, torch.tensor(vowels(best.texts)))


def test_without_strength_particles_are_best_of_n():
    plain = engine(particles=4).with_config(strength=0.0)
    single = engine().with_config(strength=0.0)
    (kept,) = plain.generate(PROMPTS[0], max_new_tokens=8, seed=2).texts
    (text,) = single.open(PROMPTS[0], max_new_tokens=8, seed=2)
    texts = []
    for i in range(4):
        own = Text(text.context, text.prompt_ids, derive(text.seed, "particle", i) if i else text.seed)
        for _ in single._write(single.loop(), [own], 8):
            pass
        texts.append(own.text)
    assert kept == max(texts, key=lambda t: vowels([t])[0])


def test_a_text_does_not_depend_on_its_batch():
    particles = engine(particles=3, keep="sample")
    together = particles.generate(PROMPTS, max_new_tokens=10, num_return_sequences=2, seed=3)
    for i, prompt in enumerate(PROMPTS):
        alone = particles.generate(prompt, max_new_tokens=10, num_return_sequences=2, seed=3)
        assert alone.texts == together.texts[2 * i : 2 * i + 2]
        assert alone.log_evidence == pytest.approx(together.log_evidence[2 * i : 2 * i + 2], rel=1e-4)


def test_a_stream_shows_only_what_has_been_chosen_and_ends_in_a_whole_text():
    verifier = Verifier(*tiny.classifier(), target="positive")
    particles = Scone(tiny.llama(), None, verifier, SconeConfig(particles=3, lookahead=Expectation(2), strength=3.0))
    pieces = list(particles.stream(PROMPTS[0], max_new_tokens=20, seed=0))
    assert 2 <= len(pieces) <= 4  # a choice every eight tokens
    assert pieces == list(particles.stream(PROMPTS[0], max_new_tokens=20, seed=0))
    (short,) = particles.generate(PROMPTS[0], max_new_tokens=20, seed=0).continuations
    assert abs(len("".join(pieces)) - len(short)) < 60


def test_the_trace_is_that_of_the_text_that_was_kept():
    out = engine(particles=4, resample=1.0).generate(PROMPTS, max_new_tokens=8, num_return_sequences=4, seed=6)
    for ids, steps in zip(out.token_ids, out.trace):
        assert [step.token for step in steps] == ids
    assert any(step.resampled for steps in out.trace for step in steps)


def test_weights_and_resampling_by_hand():
    population = Population.of([Text("a", [1], 7)], count=4, keep="sample", share=0.5)
    population.resample(0)
    assert not population.moves  # all weigh the same
    first, second, third, fourth = population.particles
    first.new_ids, first.continuation, first.log_weight = [5], " b", math.log(4.0)
    second.log_weight = third.log_weight = fourth.log_weight = -math.inf
    population.resample(0)
    assert set(population.moves) == {id(second), id(third), id(fourth)}
    assert set(map(id, population.moves.values())) == {id(first)}
    assert [p.continuation for p in population.particles] == [" b"] * 4
    assert len({p.seed for p in population.particles}) == 4  # each goes on with its own noise
    assert third.new_ids == [5] and third.new_ids is not first.new_ids
    assert population.log_evidence == pytest.approx([0.0]) and [p.log_weight for p in population.particles] == [0.0] * 4
    assert isinstance(first, Particle)


@pytest.mark.parametrize("seed", [0, 1 << 52, (1 << 53) - 1])
def test_systematic_resampling_gives_each_its_share(seed):
    weights = torch.tensor([0.1, 0.45, 0.0, 0.25, 0.2])
    drawn = systematic(weights, seed)
    for place, weight in enumerate(weights.tolist()):
        assert math.floor(5 * weight) <= drawn.count(place) <= math.ceil(5 * weight)
    assert all(drawn[place] == place for place in set(drawn))  # whoever survives stays where it is


def test_systematic_resampling_is_unbiased():
    weights = torch.tensor([0.62, 0.07, 0.31])
    counts = torch.zeros(3)
    for seed in range(600):
        for place in systematic(weights, derive(seed)):
            counts[place] += 1 / 1800
    assert torch.allclose(counts, weights, atol=0.03)


@pytest.mark.parametrize("options", [{"particles": 0}, {"keep": "worst"}, {"resample": 1.5}])
def test_bad_options_are_named(options):
    with pytest.raises(ConfigError, match=next(iter(options))):
        SconeConfig(**options)


def test_inside_transformers_generate():
    particles = engine(particles=3)
    inputs = particles.lm_tokenizer(PROMPTS[0], return_tensors="pt")
    ids = particles.lm.generate(
        **inputs, custom_generate=particles.custom_generate, max_new_tokens=8, do_sample=True, seed=3
    )
    assert ids.shape[0] == 1
    out = particles.generate(PROMPTS[0], max_new_tokens=8, seed=3)
    stop = particles.lm_tokenizer.eos_token_id
    written = ids[0, inputs["input_ids"].shape[1] :].tolist()
    assert list(itertools.takewhile(lambda t: t != stop, written)) == [t for t in out.token_ids[0] if t != stop]


def test_texts_that_are_the_same_so_far_are_judged_once():
    """At the first step all particles and all copies have the same candidates; a lookahead that draws asks for each."""
    verifier, asked = Verifier(*tiny.classifier(), target="positive"), {}
    for lookahead in (Nothing(), Expectation(2), Paths(tokens=2, count=1)):
        config = SconeConfig(top_k=3, min_mass=0, lookahead=lookahead, particles=4)
        particles = Scone(tiny.llama(), None, verifier, config)
        out = particles.generate(PROMPTS[:1], max_new_tokens=2, num_return_sequences=5, seed=1)
        asked[type(lookahead).__name__] = out.trace[0][0].cost.verifier_rows
    assert asked == {"Nothing": 3, "Expectation": 3, "Paths": 60}


def test_judging_once_changes_no_text():
    verifier = Verifier(*tiny.classifier(), target="positive")
    config = SconeConfig(top_k=4, min_mass=0, lookahead=Expectation(2), particles=5, strength=3.0)
    particles = Scone(tiny.llama(), None, verifier, config)
    once = particles.generate(PROMPTS, max_new_tokens=8, num_return_sequences=2, seed=4)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Expectation, "draws", True)
        each = particles.generate(PROMPTS, max_new_tokens=8, num_return_sequences=2, seed=4)
    assert once.token_ids == each.token_ids and once.cost.verifier_rows < each.cost.verifier_rows


def test_the_odds_of_q_tell_good_particles_apart():
    """By q itself, 0.97 and 0.999 weigh the same, and nothing would ever be resampled where texts go well."""
    group = [Particle("One", [3], seed) for seed in range(2)]
    population = Population([group], "best", 0.9, [0.0])
    population.finish(torch.tensor([0.97, 0.999]))
    weights = torch.tensor([particle.log_weight for particle in group]).softmax(0)
    assert weights[1] > 0.95 and population.kept() == [1]
    population.resample(0)
    assert list(population.moves) == [id(group[0])]
