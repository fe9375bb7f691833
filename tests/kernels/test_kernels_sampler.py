"""The sampler draws from the right distribution, reproducibly, with the same bits everywhere."""

from __future__ import annotations

import pytest
import torch
from scipy.stats import chisquare, kstest

from scone_kernels import _noise, gibbs_sample, gibbs_sample_from_logits
from scone_kernels.testing import make_inputs

DRAWS = 20_000


def test_philox_known_answers():
    """The generator's published test vectors: all zeros, and all ones."""
    zero, ones = torch.tensor([0]), torch.tensor([-1])
    words = _noise.philox(zero, zero, zero, tag=0)
    assert [int(word) for word in words] == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
    words = _noise.philox(ones, ones, ones & 0xFFFFFFFF, tag=0xFFFFFFFF)
    assert [int(word) for word in words] == [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]


def test_noise_is_gumbel():
    noise = _noise.gumbel(torch.arange(4), torch.arange(4), 25_000).flatten()
    assert kstest(noise.double().numpy(), "gumbel_r").pvalue > 1e-3
    extremes = _noise.gumbel_of_bits(torch.tensor([0, 2**32 - 1]))
    assert extremes.isfinite().all() and extremes[0] > 22 and -2.9 < extremes[1] < -2.8


def test_noise_keeps_its_resolution_where_draws_are_decided():
    """Neighbouring words near the winning end differ: a vocabulary of a million tokens has hardly a tie."""
    bits = torch.arange(2_000, 200_000, 2)
    assert _noise.gumbel_of_bits(bits).unique().numel() == bits.numel()


@pytest.mark.parametrize("vary", ["seed", "counter"])
def test_draws_follow_the_softmax(vary, backend):
    logits = torch.linspace(-3, 2, 43)  # no multiple of four: noise comes in quads, of which the last is not full
    keep = torch.arange(43) % 5 != 0
    many = logits.expand(DRAWS, -1)
    varied = {"seed": 5, "counter": 11} | {vary: torch.arange(DRAWS)}
    draw = gibbs_sample_from_logits(many, keep=keep, temperature=1.3, backend=backend, **varied)
    expected = torch.softmax((logits / 1.3).masked_fill(~keep, -torch.inf).double(), -1)
    counts = torch.bincount(draw.tokens, minlength=43)
    assert counts[~keep].sum() == 0
    assert chisquare(counts[keep].numpy(), (expected[keep] * DRAWS).numpy()).pvalue > 1e-3
    assert torch.allclose(draw.logprob.double(), expected.log()[draw.tokens], atol=1e-5)


def test_fused_draws_follow_the_softmax(backend):
    generator = torch.Generator().manual_seed(3)
    hidden, weight = torch.randn(1, 6, generator=generator), torch.randn(67, 6, generator=generator)
    draw = gibbs_sample(hidden.expand(DRAWS, -1), weight, seed=1, counter=torch.arange(DRAWS), backend=backend)
    expected = torch.softmax((hidden @ weight.T).double(), -1)[0]
    assert (expected * DRAWS > 1).all()
    counts = torch.bincount(draw.tokens, minlength=67)
    assert chisquare(counts.numpy(), (expected * DRAWS).numpy()).pvalue > 1e-3


@pytest.mark.parametrize("vocabulary", [1, 3, 514, 50257])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_tokens_are_bit_equal_across_backends_and_builds(vocabulary, dtype, cpu_builds):
    rows = 70  # a full panel of every build, and one that is not full
    inputs = make_inputs(
        "gibbs_sample_from_logits", rows=rows, vocabulary=vocabulary, width=1, dtype=dtype, temperature=0.8
    )
    inputs.arguments["seed"] = torch.arange(rows) * 0x123456789ABCDEF - 2**62
    inputs.arguments["counter"] = 2**62 - torch.arange(rows) * 0x123456789ABCDEF
    theirs = inputs.run("reference")
    for build in cpu_builds:
        torch.ops.scone_kernels.use_cpu_build(build)
        ours = inputs.run("cpu")
        assert torch.equal(ours.tokens, theirs.tokens), build
        assert torch.allclose(ours.logprob, theirs.logprob, atol=1e-5), build


def test_fused_tokens_agree_with_the_reference(backend):
    """Logits differ in their last bits between backends; with this many rows no draw was that close."""
    inputs = make_inputs("gibbs_sample", rows=100, vocabulary=5000, width=32)
    assert torch.equal(inputs.run(backend).tokens, inputs.run("reference").tokens)


def test_ties_go_to_the_lowest_token(backend):
    """Equal scores need equal noise, which distinct tokens never have: here all but two tokens are out of the race."""
    logits = torch.full((1, 2000), -torch.inf)
    logits[0, [700, 1900]] = torch.tensor([1e30, 1e30])  # noise is below the rounding of 1e30
    assert gibbs_sample_from_logits(logits, seed=0, counter=0, backend=backend).tokens.item() == 700


def test_draws_do_not_depend_on_the_batch(backend):
    inputs = make_inputs("gibbs_sample", rows=40, vocabulary=1500, width=16, keep=False)
    together = inputs.run(backend).tokens
    hidden, weight = inputs.arguments["hidden"], inputs.arguments["weight"]
    for row in (0, 7, 39):
        alone = gibbs_sample(
            hidden[row : row + 1], weight, bias=inputs.arguments["bias"], seed=0, counter=row, backend=backend
        )
        assert alone.tokens.item() == together[row]


def test_seed_counter_and_token_all_matter():
    logits = torch.zeros(1, 100_000)
    draws = {
        (seed, counter): gibbs_sample_from_logits(logits, seed=seed, counter=counter).tokens.item()
        for seed in (0, 1, 2**32, 2**63, -1)
        for counter in (0, 1, 2**32)
    }
    assert len(set(draws.values())) == len(draws)


def test_unsigned_seeds_wrap():
    logits = torch.zeros(1, 1000)
    left = gibbs_sample_from_logits(logits, seed=2**64 - 1, counter=0)
    for same in (-1, torch.tensor([-1])):  # a tensor is taken as it is
        right = gibbs_sample_from_logits(logits, seed=same, counter=0)
        assert torch.equal(left.tokens, right.tokens)


def test_only_kept_token_is_certain(backend):
    keep = torch.zeros(900, dtype=torch.bool)
    keep[777] = True
    draw = gibbs_sample(torch.randn(5, 3), torch.randn(900, 3), keep=keep, seed=0, counter=0, backend=backend)
    assert (draw.tokens == 777).all() and torch.allclose(draw.logprob, torch.zeros(5))
