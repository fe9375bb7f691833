"""A step waits for the device twice: for its candidates, and to know what was taken. Whatever the batch."""

from __future__ import annotations

import pytest
import torch
from models import PROMPTS, engine

from scone.decode import SconeConfig
from scone.lm import fetched, sent
from scone.lookahead import Paths
from scone.loop import prefill

CONFIGS = {
    "default": SconeConfig(),
    "particles": SconeConfig.fast(particles=4, strength=8.0),
    "paths": SconeConfig(lookahead=Paths(tokens=3, count=2)),
}


def waits_of_steps(device, config, prompts, **options):
    """The lines of each step's waits."""
    own = engine("cuda:0", config)
    own.generate(prompts[:1], max_new_tokens=2)  # tables that are made when they are first used
    texts = own.open(prompts, max_new_tokens=5, seed=0)
    loop = own.loop(texts=texts, **options)
    texts = texts if loop.population is None else loop.population.particles
    state = prefill(own.parts.lm, texts)
    found = []
    with device.counting() as tally:
        for _ in loop.run(texts, state, 5):
            found.append([event.line for event in tally.of("wait")])
            tally.clear()
    return found


@pytest.mark.parametrize("count", [1, 2, 6])
@pytest.mark.parametrize("name", CONFIGS)
def test_a_step_waits_twice(quick, name, count):
    prompts = [*PROMPTS, *(prompt + " and" for prompt in PROMPTS)][:count]
    for lines in waits_of_steps(quick, CONFIGS[name], prompts):
        assert len(lines) <= 2, lines


def test_texts_that_end_cost_no_wait(quick):
    for lines in waits_of_steps(quick, SconeConfig(), PROMPTS, stop=["e", "a"]):
        assert len(lines) <= 2, lines


def test_one_wait_for_several_tensors(quick):
    there = [sent([1, 2], torch.device("cuda:0")), sent([0.5], torch.device("cuda:1"))]
    with quick.counting() as tally:
        assert [tensor.tolist() for tensor in fetched(*there)] == [[1, 2], [0.5]]
    assert tally.waits == 1
