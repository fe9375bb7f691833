"""Who looks ahead: one file a strategy, each a frozen object of the options that act in it.

SconeConfig(lookahead=Mix(Expectation(tokens=3), Nothing()))
"""

from scone.lookahead.base import Answer, Lookahead, Query, judge_apart
from scone.lookahead.draft import Draft
from scone.lookahead.expectation import Expectation
from scone.lookahead.gibbs import Gibbs
from scone.lookahead.masked import Masked
from scone.lookahead.mix import Mix
from scone.lookahead.nothing import Nothing
from scone.lookahead.parts import Parts
from scone.lookahead.paths import Paths
from scone.lookahead.pool import GibbsPool, draw_from_head
from scone.lookahead.start import Carried, Masks, Rollout
from scone.lookahead.taylor import AtMean, AtSample, Taylor

__all__ = [
    "Answer",
    "AtMean",
    "AtSample",
    "Carried",
    "Draft",
    "Expectation",
    "Gibbs",
    "GibbsPool",
    "Lookahead",
    "Masked",
    "Masks",
    "Mix",
    "Nothing",
    "Parts",
    "Paths",
    "Query",
    "Rollout",
    "Taylor",
    "draw_from_head",
    "judge_apart",
]
