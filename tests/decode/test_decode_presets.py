"""Settings give the tokens that they gave before the decoder was made of strategies.

`preset_tokens.json` holds what the embedded models wrote after twenty prompts of the sentiment task at commit 845307a,
whose options were flat: `Scone.from_pretrained(target="positive").with_config(preset).generate(prompts,
max_new_tokens=25, seed=3)` for what SconeConfig() and SconeConfig.fast() were then (the first twelve tokens of each text are kept),
max_new_tokens=2 for SconeConfig.paper(), and q of the first step. `before` are settings of that commit without a
preset of their own, by what they are called now: q of `next_token(prompt, max_new_tokens=25, seed=3)` for the first
four prompts.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from scone.config import SconeConfig
from scone.decode import Scone
from scone.lookahead import Expectation, Gibbs, Lookahead, Masked, Mix, Nothing, Taylor
from scone.loop import prefill

STORED: dict[str, Any] = json.loads((Path(__file__).parent / "preset_tokens.json").read_text(encoding="utf-8"))
PROMPTS: list[str] = STORED["prompts"]
BEFORE_PARTICLES = SconeConfig(particles=1, strength=24.0, min_mass=0.05, rest=0)
PRESETS = {
    "default": BEFORE_PARTICLES.replace(
        lookahead=Mix(Expectation(tokens=3), Nothing()), min_mass=0.02, context_window=None
    ),
    "fast": BEFORE_PARTICLES.replace(lookahead=Expectation(tokens=1, among=8), top_k=8),
    "paper": SconeConfig.paper(),
}
STEPS = {"default": 6, "fast": 12, "paper": 2}  # that are run: a step of the default takes some seconds


@pytest.fixture(scope="module")
def embedded() -> Scone:
    return Scone.from_pretrained(target="positive")


@pytest.fixture(autouse=True)
def _threads():
    """These models are large enough to share."""
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(1)


def test_what_is_stored() -> None:
    assert len(PROMPTS) == 20
    lengths = {name: [len(ids) for ids in STORED[name]["tokens"]] for name in PRESETS}
    assert {name: (len(found), max(found)) for name, found in lengths.items()} == {
        "default": (20, 12), "fast": (20, 12), "paper": (20, 2),
    }  # fmt: skip


@pytest.mark.parametrize("name", PRESETS)
def test_presets_write_what_they_wrote(embedded: Scone, name: str) -> None:
    """Twenty prompts in one batch; the run is left where what is stored ends, so that horizons are those of 25 tokens."""
    stored = STORED[name]
    engine, length = embedded.with_config(PRESETS[name]), stored["max_new_tokens"]
    texts = engine.open(PROMPTS, max_new_tokens=length, seed=STORED["seed"])
    written: list[list[int]] = [text.new_ids for text in texts]
    for step, taken in enumerate(engine.loop().run(texts, prefill(engine.parts.lm, texts), length), 1):
        if step == 1:
            for found, expected in zip(taken.decision.q, stored["q"]):
                assert found.tolist() == pytest.approx(expected, abs=1e-3)
        if step == STEPS[name]:
            break
    assert written == [ids[: STEPS[name]] for ids in stored["tokens"]]


BEFORE: dict[str, Lookahead] = {
    "masked": Masked(tokens=6),
    "nothing": Nothing(),
    "chains": Gibbs(tokens=6, block=6, iterations=0, estimate=Taylor()),
    "chains, uniform": Mix(
        Gibbs(
            tokens=8, schedule="uniform", block=2, iterations=6, thin=2, chains=2,
            estimate=Taylor(scale=0.5, linearise="prob"),
        ),
        Nothing(),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BEFORE)
def test_strategies_estimate_what_they_estimated(embedded: Scone, name: str) -> None:
    engine = embedded.with_config(PRESETS["default"].replace(lookahead=BEFORE[name]))
    for prompt, expected in zip(PROMPTS, STORED["before"][name]):
        assert engine.next_token(prompt, max_new_tokens=25, seed=STORED["seed"]).q.tolist() == pytest.approx(
            expected, abs=1e-3
        )
