"""Safe texts are written without a look for a while: how long, which, and what becomes of them."""

from __future__ import annotations

import pytest
import tiny

from scone.decode import Output, Scone, SconeConfig, Verifier
from scone.errors import ConfigError
from scone.lookahead import Nothing

PROMPT = "the movie was"


def write(phi: object, *, tokens: int = 9, **options: object) -> Output:
    """A text of one particle under a verifier that says `phi(text)`."""
    judge = Verifier.from_callable(lambda texts: [phi(text) for text in texts])
    config = SconeConfig(lookahead=Nothing(), **{"particles": 1, "min_mass": 0, "strength": 0.5, **options})
    return Scone(tiny.llama(), None, judge, config).generate(PROMPT, max_new_tokens=tokens, seed=3)


def looked(out: Output) -> list[bool]:
    return [bool(step.judged.any()) for step in out.trace[0]]


def test_a_safe_text_rests_between_looks_and_its_end_is_judged():
    out = write(lambda text: 0.99)
    assert looked(out) == [True, False, False, True, False, False, True, False, True]
    assert out.cost.rested == 5
    at_rest = [step for step, seen in zip(out.trace[0], looked(out)) if not seen]
    assert all(step.log_p_star.allclose(step.log_p.log_softmax(-1), atol=1e-5) for step in at_rest)


@pytest.mark.parametrize("options", [{"rest": 0}, {"safe": 0.995}, {"safe": 1}])
def test_others_are_looked_at_for_every_token(options):
    out = write(lambda text: 0.99, **options)
    assert all(looked(out)) and out.cost.rested == 0


def test_how_long_is_an_option():
    assert looked(write(lambda text: 0.99, rest=3)) == [True, False, False, False, True, False, False, False, True]


def test_a_text_that_is_safe_no_more_is_looked_at_again():
    out = write(lambda text: 0.99 if len(text) < len(PROMPT) + 8 else 0.5)
    seen = looked(out)
    last_rest = len(seen) - 1 - seen[::-1].index(False)
    assert False in seen[:4] and all(seen[last_rest + 1 :]) and last_rest < len(seen) - 3


def test_each_text_rests_by_itself():
    judge = Verifier.from_callable(lambda texts: [0.99 if text.startswith(PROMPT) else 0.5 for text in texts])
    config = SconeConfig(lookahead=Nothing(), particles=2, min_mass=0, strength=0.5)
    both = Scone(tiny.llama(), None, judge, config).generate([PROMPT, "what a"], max_new_tokens=6, seed=3)
    first, second = ([bool(step.judged.any()) for step in steps] for steps in both.trace)
    assert first.count(False) >= 3 and all(second)
    alone = Scone(tiny.llama(), None, judge, config).generate(PROMPT, max_new_tokens=6, seed=3)
    assert alone.texts == both.texts[:1]


def test_the_options_are_checked_by_name():
    with pytest.raises(ConfigError, match=r"safe must be .* got 1.5"):
        SconeConfig(safe=1.5)
    with pytest.raises(ConfigError, match=r"rest must be .* got -1"):
        SconeConfig(rest=-1)
