"""The language models: the causal LM with its cache, the masked LM with its head, and what is drawn from them."""

from scone.lm.masked import MaskedLM
from scone.lm.masks import attention_mask
from scone.lm.model import CausalLM, LMState
from scone.lm.reading import Reading, common_prefix, read_on
from scone.lm.sampling import Candidates, choose, propose, truncate
from scone.lm.tables import Embeddings, mark
from scone.lm.tokens import check_known, check_unicode, position_limit, same_vocabulary, special_frame
from scone.lm.transfer import check_finite, fetched, sent

__all__ = [
    "Candidates",
    "CausalLM",
    "Embeddings",
    "LMState",
    "MaskedLM",
    "Reading",
    "attention_mask",
    "check_finite",
    "check_known",
    "check_unicode",
    "choose",
    "common_prefix",
    "fetched",
    "mark",
    "position_limit",
    "propose",
    "read_on",
    "same_vocabulary",
    "sent",
    "special_frame",
    "truncate",
]
