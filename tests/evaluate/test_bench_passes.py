"""What `python -m bench decode passes` counts is what the models are asked."""

from __future__ import annotations

from bench.chain import counted
from scone.decode import SconeConfig
from scone.evaluate.models import Models


def test_passes_are_counted(names):
    engine = Models(names, "sentiment").engine("positive", False, SconeConfig.plain())
    for steered in (engine, engine.with_config(SconeConfig.fast())):
        out = steered.generate(["the film was"], max_new_tokens=6, seed=0)
        written, finished = len(out.token_ids[0]), steered.config.particles
        lm_rows, lm_passes, verifier_rows, masked_rows, chain = counted(steered, "the film was", 6, seed=0)
        assert verifier_rows == (out.cost.verifier_rows + finished) / written  # and φ of what is finished
        assert masked_rows == 0 and lm_rows * written >= out.cost.lm_rows and chain > lm_passes >= 1
    assert not {"read", "value"} & {*vars(engine.parts.lm), *vars(engine.verifier)}  # nothing is left behind


def test_plain_sampling_is_a_pass_a_token(names):
    engine = Models(names, "sentiment").engine("positive", False, SconeConfig.plain())
    written = len(engine.generate(["the film was"], max_new_tokens=6, seed=0).token_ids[0])
    assert counted(engine, "the film was", 6, seed=0) == [1, 1, 1 / written, 0, 1 + 1 / written]
