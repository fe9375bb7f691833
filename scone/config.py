"""The options of the method, each with its range."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, get_args

from scone.errors import ConfigError

__all__ = ["MAX_LOOKAHEAD", "SconeConfig"]

MAX_LOOKAHEAD = 25
"""Tokens of lookahead where `lookahead` is None and more than that remain."""

Reweigh = Literal["bayes", "odds", "softmax", "logit"]
Taylor = Literal["position", "mean"]
Linearise = Literal["prob", "logit"]
Init = Literal["warm", "lm", "mask"]
Marginals = Literal["sweep", "masked", "unmasked"]
Schedule = Literal["systematic", "uniform"]
Expand = Literal["sample", "mean"]


@dataclass(frozen=True, kw_only=True)
class SconeConfig:
    """Options of the method; `docs/options.md` says what each does and what it was measured to do.

    >>> config = SconeConfig(strength=4, top_k=20)
    >>> config.replace(chains=2).chains
    2
    >>> SconeConfig(top_k=0)
    Traceback (most recent call last):
    scone.errors.ConfigError: top_k must be an integer of at least 1, got 0
    """

    # candidates
    top_k: int = 10
    top_p: float = 1.0
    min_p: float = 0.0
    min_mass: float = 0.02
    temperature: float = 1.0

    # reweighing
    reweigh: Reweigh = "odds"
    strength: float = 24.0
    epsilon: float = 1e-4

    # lookahead
    init: Init = "lm"
    lookahead: int | None = 3
    lm_lookahead: int | None = None
    lookahead_top_p: float = 0.9
    lookahead_min_p: float = 0.1
    context_window: int | None = None
    mlm_temperature: float = 1.0

    # Gibbs
    schedule: Schedule = "systematic"
    block: int = 6
    iterations: int = 1
    warmup: int = 4
    thin: int | None = None
    chains: int = 1
    workers: int = 1
    sync_every: int = 1
    coupled: bool = True

    # estimate
    blend: float = 0.5
    expand: Expand = "mean"
    marginals: Marginals = "sweep"
    taylor: Taylor = "position"
    linearise: Linearise = "logit"
    taylor_scale: float = 0.0

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            check, expected = _EXPECT[field.name]
            if not check(value):
                raise ConfigError(f"{field.name} must be {expected}, got {value!r}")

    def replace(self, **changes: Any) -> SconeConfig:
        """A copy with some options changed; an unknown name raises ConfigError.

        >>> SconeConfig().replace(strength=2.0).strength
        2.0
        """
        known = {field.name for field in dataclasses.fields(self)}
        unknown = sorted(set(changes) - known)
        if unknown:
            raise ConfigError(f"{unknown[0]} must be one of {', '.join(sorted(known))}, got an unknown option")
        return dataclasses.replace(self, **changes)

    @classmethod
    def paper(cls, **changes: Any) -> SconeConfig:
        """The paper to the letter: 10 candidates, 2 chains of 20 single-site updates, thinned by 5, softmax of sums.

        >>> SconeConfig.paper().iterations
        20
        """
        return cls(
            top_k=10,
            min_mass=0.0,
            reweigh="softmax",
            strength=1.0,
            init="lm",
            lookahead=25,
            lookahead_top_p=0.9,
            lookahead_min_p=0.1,
            schedule="uniform",
            block=1,
            iterations=20,
            warmup=0,
            thin=5,
            chains=2,
            coupled=False,
            blend=0.0,
            expand="sample",
            marginals="unmasked",
            taylor="mean",
            linearise="prob",
            taylor_scale=1.0,
        ).replace(**changes)

    @classmethod
    def fast(cls, **changes: Any) -> SconeConfig:
        """The cheapest useful setting: fewer candidates, one expected token of lookahead, a short context.

        >>> SconeConfig.fast().chains
        1
        """
        return cls(top_k=8, min_mass=0.05, lookahead=1, blend=0.0, context_window=64).replace(**changes)

    @property
    def uses_masked_lm(self) -> bool:
        """Whether the masked LM has a say in q of a differentiable verifier; the LM's expectations do without it.

        >>> SconeConfig().uses_masked_lm, SconeConfig.paper().uses_masked_lm
        (False, True)
        """
        return not (self.init == "lm" and self.expand == "mean")

    @property
    def samples(self) -> int:
        """States that each q is averaged over: those that every chain keeps, times the chains.

        >>> SconeConfig.paper().samples, SconeConfig().samples
        (8, 1)
        """
        kept = 1 if self.thin is None or not self.iterations else -(-self.iterations // self.thin)
        return self.chains * kept

    def horizon(self, remaining: int) -> int:
        """Tokens of lookahead when `remaining` tokens may still follow the candidate.

        >>> SconeConfig(lookahead=None).horizon(100), SconeConfig().horizon(1)
        (25, 1)
        """
        return max(0, min(MAX_LOOKAHEAD if self.lookahead is None else self.lookahead, remaining))


_Rule = tuple[Callable[[Any], bool], str]


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_real(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _integer(least: int, optional: bool = False) -> _Rule:
    expected = f"an integer of at least {least}" + (" or None" if optional else "")
    return lambda v: (optional and v is None) or (_is_int(v) and v >= least), expected


def _number(low: float, high: float = math.inf, *, open_low: bool = False) -> _Rule:
    expected = f"a number in {'(' if open_low else '['}{low:g}, {high:g}{')' if high == math.inf else ']'}"
    return lambda v: _is_real(v) and low <= v <= high and not (open_low and v == low), expected


def _choice(options: Any) -> _Rule:
    values = get_args(options)
    return lambda v: v in values, f"one of {', '.join(map(repr, values))}"


_EXPECT: dict[str, _Rule] = {
    "top_k": _integer(1),
    "top_p": _number(0, 1, open_low=True),
    "min_p": _number(0, 1),
    "min_mass": _number(0, 1),
    "temperature": _number(0, open_low=True),
    "reweigh": _choice(Reweigh),
    "strength": _number(0),
    "epsilon": _number(0, 0.5, open_low=True),
    "init": _choice(Init),
    "lookahead": _integer(0, optional=True),
    "lm_lookahead": _integer(1, optional=True),
    "lookahead_top_p": _number(0, 1, open_low=True),
    "lookahead_min_p": _number(0, 1),
    "context_window": _integer(1, optional=True),
    "mlm_temperature": _number(0, open_low=True),
    "schedule": _choice(Schedule),
    "block": _integer(1),
    "iterations": _integer(0),
    "warmup": _integer(0),
    "thin": _integer(1, optional=True),
    "chains": _integer(1),
    "workers": _integer(1),
    "sync_every": _integer(1),
    "coupled": (lambda v: isinstance(v, bool), "True or False"),
    "blend": _number(0, 1),
    "expand": _choice(Expand),
    "marginals": _choice(Marginals),
    "taylor": _choice(Taylor),
    "linearise": _choice(Linearise),
    "taylor_scale": _number(0),
}
