"""The language models: the causal LM with its cache, the masked LM with its head, and what is drawn from them."""

from scone.lm.masked import MaskedLM
from scone.lm.model import CausalLM, LMState, check_finite
from scone.lm.sampling import Candidates, choose, propose, truncate
from scone.lm.tokens import position_limit, same_vocabulary, special_frame

__all__ = [
    "Candidates",
    "CausalLM",
    "LMState",
    "MaskedLM",
    "check_finite",
    "choose",
    "position_limit",
    "propose",
    "same_vocabulary",
    "special_frame",
    "truncate",
]
