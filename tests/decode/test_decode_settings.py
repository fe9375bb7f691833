"""Settings as people type them, and the options that they are made from."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from typing import ClassVar

import pytest

from scone.config import SconeConfig
from scone.errors import ConfigError
from scone.lookahead import (
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
    Rollout,
    Taylor,
)
from scone.lookahead.start import Start
from scone.lookahead.taylor import Estimate
from scone.options import Options, choice, flag, integer, kinds_of, number, one_of, option
from scone.settings import PRESETS, flat_options, parse_settings, read_settings, strategies

KINDS = [SconeConfig, Expectation, Paths, Masked, Gibbs, Nothing, Rollout, Masks, Carried, AtSample, AtMean, Taylor]


def test_presets() -> None:
    assert list(PRESETS) == ["default", "fast", "quality", "paper", "plain"]
    for name, make in PRESETS.items():
        assert read_settings(name, {}) == make() == parse_settings(name)
    assert parse_settings("") == SconeConfig()
    with pytest.raises(ConfigError, match="preset must be one of default, fast, quality, paper, plain, got 'slow'"):
        read_settings("slow", {})


def test_what_the_presets_are() -> None:
    """Written out once more: a default that moves by accident is seen here."""
    default = SconeConfig()
    assert default.lookahead == Expectation(tokens=1, among=10)
    shared = (
        default.top_k,
        default.top_p,
        default.min_p,
        default.min_mass,
        default.temperature,
        default.context_window,
    )
    assert shared == (10, 1.0, 0.0, 0.03, 1.0, 64)
    assert (default.reweigh, default.strength, default.epsilon) == ("odds", 8.0, 1e-4)
    assert (default.safe, default.rest) == (0.95, 2)
    assert (default.particles, default.keep, default.resample) == (4, "best", 0.9)
    assert SconeConfig.fast() == default.replace(particles=2, min_mass=0.05)
    assert SconeConfig.plain() == default.replace(strength=0, particles=1)
    assert SconeConfig.quality() == default.replace(particles=12)
    chains = Gibbs(
        tokens=25, start=Rollout(tokens=None, top_p=0.9, min_p=0.1), schedule="uniform", block=1, iterations=20, thin=5,
        chains=2, coupled=False, temperature=1.0, workers=1, sync_every=1,
        estimate=Taylor(form="mean", linearise="prob", marginals="unmasked", clamp=False, scale=1.0),
    )  # fmt: skip
    paper = default.replace(
        rest=0, min_mass=0.0, context_window=None, reweigh="softmax", strength=1.0, particles=1, lookahead=chains
    )
    assert SconeConfig.paper() == paper and chains.samples == 8
    assert SconeConfig.paper(top_k=3).top_k == 3 and SconeConfig.fast(strength=1).strength == 1


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("strength=3", SconeConfig(strength=3.0)),
        ("default,strength=3,top_k=3", SconeConfig(strength=3.0, top_k=3)),
        ("context_window=none", SconeConfig(context_window=None)),
        ("fast,context_window=NONE", SconeConfig.fast(context_window=None)),
        ("reweigh=bayes", SconeConfig(reweigh="bayes")),
        ("temperature=0.5", SconeConfig(temperature=0.5)),
        ("tokens=2", SconeConfig(lookahead=Expectation(tokens=2))),
        ("fast,among=4", SconeConfig.fast(lookahead=Expectation(tokens=1, among=4))),
        ("lookahead=nothing", SconeConfig(lookahead=Nothing())),
        ("lookahead=Expectation", SconeConfig(lookahead=Expectation())),
        ("lookahead=paths,judged=drawn,coupled=off", SconeConfig(lookahead=Paths(judged="drawn", coupled=False))),
        ("lookahead=paths,lookahead_min_p=0.5,min_p=0.8", SconeConfig(min_p=0.8, lookahead=Paths(min_p=0.5))),
        ("lookahead=masked,lookahead_temperature=2", SconeConfig(lookahead=Masked(temperature=2.0))),
        ("lookahead=gibbs,thin=none,workers=2", SconeConfig(lookahead=Gibbs(workers=2))),
        (
            "lookahead=gibbs,start_warmup=2,start=carried,estimate_scale=0.5,estimate_clamp=false",
            SconeConfig(lookahead=Gibbs(start=Carried(warmup=2), estimate=Taylor(scale=0.5, clamp=False))),
        ),
        (
            "lookahead=gibbs,estimate_marginals=masked,estimate=atmean,start=rollout,start_tokens=3,start_min_p=0",
            SconeConfig(lookahead=Gibbs(start=Rollout(tokens=3, min_p=0.0), estimate=AtMean(marginals="masked"))),
        ),
        ("lookahead=expectation+nothing", SconeConfig(lookahead=Mix(Expectation(), Nothing()))),
        (
            "lookahead=paths+masked+nothing,tokens=2,count=3",
            SconeConfig(lookahead=Mix(Paths(tokens=2, count=3), Masked(tokens=2), Nothing())),
        ),
        ("paper,chains=1", SconeConfig.paper(lookahead=SconeConfig.paper().lookahead.replace(chains=1))),
        (
            "paper,estimate_form=position",
            SconeConfig.paper(
                lookahead=SconeConfig.paper().lookahead.replace(
                    estimate=Taylor(linearise="prob", marginals="unmasked", clamp=False)
                )
            ),
        ),
    ],
)
def test_flat_names(text: str, expected: SconeConfig) -> None:
    assert parse_settings(text) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("chains=2", "chains is an option of lookahead gibbs, and the lookahead is expectation"),
        ("fast,block=2", "block is an option of lookahead gibbs, and the lookahead is expectation"),
        (
            "lookahead=nothing,tokens=2",
            "tokens is an option of lookahead expectation and gibbs and masked and paths, and the lookahead is nothing",
        ),
        ("lookahead=masked,count=2", "count is an option of lookahead paths, and the lookahead is masked"),
        (
            "lookahead=gibbs,start_warmup=2",
            "start_warmup is an option of lookahead gibbs with start carried and gibbs with start masks, and the lookahead is gibbs",
        ),
        (
            "lookahead=gibbs,estimate=atsample,estimate_scale=2",
            "estimate_scale is an option of lookahead gibbs with estimate taylor, and",
        ),
        ("lookahead=gibbs,start=cold", "start must be one of rollout, masks, carried, got 'cold'"),
        ("lookahead=gibbs,estimate=taylor2", "estimate must be one of atsample, atmean, taylor, got 'taylor2'"),
        ("lookahead=dreams", "lookahead must be of draft, expectation, gibbs, masked, nothing, paths"),
        ("lookahead=nothing+dreams", "with + between several, got 'nothing+dreams'"),
        ("lookahead=nothing+", "with + between several, got 'nothing+'"),
        ("lookahead=mix", "with + between several, got 'mix'"),
        ("tokens=two", "tokens must be an integer of at least 1, got 'two'"),
        ("tokens=0", "tokens must be an integer of at least 1, got 0"),
        ("strength=lots", "strength must be a number in [0, inf), got 'lots'"),
        ("lookahead=paths,coupled=perhaps", "coupled must be True or False, got 'perhaps'"),
        ("lookahead=paths,judged=read", "judged must be one of 'expected', 'drawn', got 'read'"),
        ("strength", "preset must be one of default, fast, quality, paper, plain, got 'strength'"),
        ("default,strength", "a change must be option=value, got 'strength'"),
        ("strenght=2", "an option must be one of "),
        ("init=warm", "init is no option any more: write lookahead=Expectation(...), Masked(...), or Gibbs(start="),
        ("blend=0.5", "blend is no option any more: write lookahead=Mix("),
        (
            "taylor_scale=1",
            "taylor_scale is no option any more: write lookahead=Gibbs(estimate=Taylor(scale=...)), or AtSample()",
        ),
    ],
)
def test_refusals(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_settings(text)
    assert message in str(caught.value)


def test_former_names_that_no_strategy_has_are_explained() -> None:
    """Those that one has, such as `chains`, are that strategy's."""
    known = {flat.name for flat in flat_options()}
    for name, way in SconeConfig.retired.items():
        if name not in known:
            with pytest.raises(ConfigError) as caught:
                parse_settings(f"{name}=1")
            assert str(caught.value) == f"{name} is no option any more: {way}"


def test_every_option_can_be_typed_and_has_help() -> None:
    flats = flat_options()
    assert all(flat.help.strip() and flat.help == flat.help.strip() for flat in flats)
    assert all(flat.rule.allows(flat.default) and flat.rule.expected for flat in flats)
    for kind in (cls for cls in KINDS if cls is not SconeConfig):
        names = {flat.name for flat in flats if kind.__name__.lower() in flat.owner.split()}
        for field in dataclasses.fields(kind):
            assert any(name == field.name or name.endswith(f"_{field.name}") for name in names), (kind, field.name)
    shared = [flat.name for flat in flats if not flat.owner]
    assert shared == [field.name for field in dataclasses.fields(SconeConfig)]
    for flat in flats:  # one name, one way to read it
        others = [other for other in flats if other.name == flat.name]
        for word in ("3", "none", "true", "0.5"):
            assert len({_read(other.rule, word) for other in others} - {"no"}) <= 1, flat.name


def _read(rule: object, word: str) -> object:
    try:
        value = rule.read(word)
    except ValueError:
        return "no"
    return repr(value) if rule.allows(value) else "no"


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_defaults_pass_their_own_rules(kind: type[Options]) -> None:
    made = kind()
    for field in dataclasses.fields(kind):
        rule = field.metadata["rule"]
        assert rule.allows(getattr(made, field.name)), field.name
        assert field.metadata["help"].strip() and rule.expected
        assert f"got {object!r}" not in rule.expected
    assert made.replace() == made == kind(**{f.name: getattr(made, f.name) for f in dataclasses.fields(kind)})
    assert pickle.loads(pickle.dumps(made)) == copy.deepcopy(made) == made and hash(made) == hash(made.replace())
    with pytest.raises(dataclasses.FrozenInstanceError):
        made.anything = 1
    plain = made.as_dict()
    assert plain["kind"] == kind.__name__ and len(plain) == 1 + len(dataclasses.fields(kind))


def test_options_within_options_are_plain_in_a_record() -> None:
    mixed = SconeConfig(lookahead=Mix(Gibbs(start=Masks(warmup=2)), Nothing(), weights=(3, 1)))
    found = mixed.as_dict()["lookahead"]
    assert found["kind"] == "Mix" and found["weights"] == [0.75, 0.25]
    assert found["parts"][0]["start"] == {"kind": "Masks", "warmup": 2} and found["parts"][1] == {"kind": "Nothing"}
    again = pickle.loads(pickle.dumps(mixed))
    assert again == mixed and hash(again) == hash(mixed)
    assert mixed.lookahead.replace(weights=(1, 1)) == Mix(Gibbs(start=Masks(warmup=2)), Nothing())
    assert mixed.lookahead.replace(parts=(Nothing(), Masked())) == Mix(Nothing(), Masked(), weights=(3, 1))


@pytest.mark.parametrize(
    ("rule", "yes", "no", "expected"),
    [
        (integer(1), [1, 10**9], [0, True, 1.0, "1", None], "an integer of at least 1"),
        (integer(0, 5), [0, 5], [-1, 6], "an integer from 0 to 5"),
        (integer(1, optional=True), [1, None], [0], "an integer of at least 1 or None"),
        (number(0, 1), [0, 1, 0.5], [-0.1, 1.1, True, "x", float("nan"), None], "a number in [0, 1]"),
        (number(0, above=True), [1e-9, 3], [0, -1, float("inf")], "a number in (0, inf)"),
        (choice("a", "b"), ["a", "b"], ["c", None, 1], "one of 'a', 'b'"),
        (flag(), [True, False], [0, 1, "true", None], "True or False"),
        (one_of(Start), [Masks(), Rollout()], ["masks", Masks, Taylor(), None], "one of Rollout(), Masks(), Carried()"),
    ],
)
def test_rules(rule: object, yes: list, no: list, expected: str) -> None:
    assert rule.expected == expected
    assert all(rule.allows(value) for value in yes) and not any(rule.allows(value) for value in no)


def test_rules_read_text() -> None:
    assert integer(1).read("3") == 3 and integer(1, optional=True).read("None") is None
    with pytest.raises(ValueError, match="invalid literal"):
        integer(1).read("none")
    assert number(0).read("1e-3") == 0.001
    assert [flag().read(word) for word in ("true", "ON", "False", "off", "yes")] == [True, True, False, False, "yes"]
    assert one_of(Estimate).read("TAYLOR") == Taylor() and one_of(Estimate).read("x") == "x"


def test_kinds() -> None:
    assert [cls.__name__ for cls in kinds_of(Start)] == ["Rollout", "Masks", "Carried"]
    assert [cls.__name__ for cls in kinds_of(Estimate)] == ["AtSample", "AtMean", "Taylor"]
    ours = [cls for cls in kinds_of(Lookahead) if cls.__module__.startswith("scone.")]
    assert kinds_of((Expectation, Paths)) == [Expectation, Paths]
    assert set(ours) == {Draft, Expectation, Gibbs, Masked, Mix, Nothing, Paths}
    assert {name for name, cls in strategies().items() if cls in ours} == {
        "draft", "expectation", "gibbs", "masked", "nothing", "paths",
    }  # fmt: skip


def test_options_of_ones_own() -> None:
    @dataclasses.dataclass(frozen=True)
    class Kettle(Options):
        retired: ClassVar[dict[str, str]] = {"gas": "write heat=..."}
        heat: int = option(3, integer(1, 5), "how hot")

    assert Kettle(heat=5).replace(heat=1) == Kettle(1)
    for act in (lambda: Kettle(gas=1), lambda: Kettle().replace(gas=1)):
        with pytest.raises(ConfigError, match=r"gas is no option of Kettle: write heat=\.\.\."):
            act()
    with pytest.raises(ConfigError, match="an option of Kettle must be one of heat, got 'size'"):
        Kettle(size=1)
    with pytest.raises(ConfigError, match="heat must be an integer from 1 to 5, got 6"):
        Kettle(6)
