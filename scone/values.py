"""What unfinished texts are worth: log-odds that they will end well, for rerankers, tree searches and particle filters."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from scone.config import SconeConfig
from scone.errors import InputError
from scone.lookahead import Lookahead, Parts, Query
from scone.lookahead.parts import LM_STATES
from scone.prompts import check_counts, check_seed
from scone.reweigh import all_hold
from scone.seeds import text_seed
from scone.text import Text

__all__ = ["Prefix", "values"]

Prefix = str | Sequence[int]
"""A text, or tokens of the LM."""

_ROWS = 64  # prefixes that are judged at once
_LEAST = 1e-6


def values(
    parts: Parts,
    config: SconeConfig,
    lookahead: Lookahead,
    prefixes: Prefix | Iterable[Prefix],
    *,
    max_new_tokens: int,
    seed: int = 0,
) -> Tensor:
    """`engine.value`: (n,) log-odds of q, as the lookahead estimates it from the end of each prefix.

    >>> from scone.decode import Scone
    >>> engine = Scone.from_pretrained()
    >>> good, bad = values(engine.parts, engine.config, engine.lookahead, ["So good", "So dull"], max_new_tokens=3)
    >>> bool(good > bad)
    True
    """
    check_seed(seed)
    if max_new_tokens != 0:
        check_counts(max_new_tokens=max_new_tokens)
    lm, strengths = parts.lm, [term.strength for term in parts.verifier.terms]
    ids = [_tokens(parts, prefix) for prefix in _listed(prefixes)]
    _check_length(lm.max_length, ids, max_new_tokens)
    q = torch.empty(len(strengths), len(ids))
    finished = [i for i, row in enumerate(ids) if max_new_tokens == 0 or row[-1] in lm.stop_ids]
    goes_on = sorted(set(range(len(ids))) - set(finished))
    if finished:
        q[:, finished] = parts.score([_written(parts, ids[i], config.context_window) for i in finished])
    for start in range(0, len(goes_on), _ROWS):
        chunk = goes_on[start : start + _ROWS]
        rows = [ids[i] for i in chunk]
        query = Query(
            parts,
            texts=[Text("", row[:-1], text_seed(seed, 0, row)) for row in rows],
            tokens=torch.tensor([row[-1] for row in rows]),
            written=[_written(parts, row, config.context_window) for row in rows],
            remaining=max_new_tokens,
            rows=range(len(rows)),
        )
        if LM_STATES in lookahead.needs:
            query.__dict__["read"] = lm.prefill(rows)
        q[:, chunk] = lookahead.judge(query).q
    one = all_hold(q[..., None], strengths)[:, 0] if len(strengths) > 1 else q[0]
    return one.clamp(_LEAST, 1 - _LEAST).logit()


def _listed(prefixes: Any) -> list[Any]:
    if isinstance(prefixes, str):
        return [prefixes]
    if not isinstance(prefixes, Iterable):
        raise InputError(f"prefixes must be strings or lists of token ids, got {prefixes!r}")
    listed = list(prefixes)
    return [listed] if listed and all(isinstance(entry, int) for entry in listed) else listed


def _tokens(parts: Parts, prefix: Any) -> list[int]:
    ids = parts.lm.encode(prefix) if isinstance(prefix, str) else prefix
    if not isinstance(ids, list | tuple) or not all(isinstance(i, int) and 0 <= i < parts.lm.vocabulary for i in ids):
        raise InputError(f"prefixes must be strings or lists of token ids, got {prefix!r}")
    if not ids:
        raise InputError(f"prefixes must give at least one token each, got {prefix!r}")
    return list(ids)


def _check_length(limit: int | None, ids: Sequence[Sequence[int]], max_new_tokens: int) -> None:
    longest = max(map(len, ids), default=0)
    if limit is not None and longest + max_new_tokens > limit:
        raise InputError(
            f"prefixes must leave room for max_new_tokens={max_new_tokens} in the LM's context of {limit} tokens, "
            f"got one of {longest}"
        )


def _written(parts: Parts, ids: Sequence[int], window: int | None) -> str:
    """The text that is judged: all of it, or what the last tokens say."""
    if window is None or len(ids) <= window:
        return parts.lm.decode(ids)
    return parts.lm.decode(ids[-window:]).lstrip("\N{REPLACEMENT CHARACTER}")
