"""likely_rows: the mean rows of several tables over the likeliest tokens of a softmax, and a draw among these."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ... import _checks, _head
from ..._registry import Op
from . import reference

MOST = 64
"""The most tokens that a row can be asked for; Results::kMostAmong in csrc/cpu/likely_rows.cpp."""


class LikelyRows(NamedTuple):
    """Of each row the likeliest tokens, and what is expected under their softmax.

    `rows`: of each table (V, D) the mean row, (N, D) float32. `tokens` (N, among) int64, the likeliest first, with -1 where
    there are no more. `log_p` (N, among): their log-probabilities among each other, -inf where there is no token.
    `log_mass` (N,): the log of the share that they have of the whole vocabulary, so that `log_p + log_mass[:, None]` are
    log-probabilities over all kept tokens. `drawn` (N,) int64: one of the tokens, or None where no seed was given.
    """

    rows: list[Tensor]
    tokens: Tensor
    log_p: Tensor
    log_mass: Tensor
    drawn: Tensor | None


def _launch_fused():
    from .kernel import launch_fused

    return launch_fused


def _launch_from_logits():
    from .kernel import launch_from_logits

    return launch_from_logits


def _fake(x: Tensor, tables: Sequence[Tensor], among: int, seed: Tensor | None) -> list[Tensor]:
    count = x.shape[0]
    found = [
        x.new_empty((count, among), dtype=torch.int64),
        x.new_empty((count, among), dtype=torch.float32),
        x.new_empty((count,), dtype=torch.float32),
    ]
    if seed is not None:
        found.append(x.new_empty((count,), dtype=torch.int64))
    return found + [x.new_empty((count, table.shape[1]), dtype=torch.float32) for table in tables]


_fused = Op(
    "likely_rows(Tensor hidden, Tensor weight, Tensor[] tables, Tensor? bias, Tensor? keep, float temperature,"
    " SymInt vocabulary, int among, float min_p, Tensor? seed, Tensor? counter) -> Tensor[]",
    reference=reference.fused,
    launch=_launch_fused,
    fake=lambda hidden, weight, tables, bias, keep, temperature, vocabulary, among, min_p, seed, counter: _fake(
        hidden, tables, among, seed
    ),
)
_from_logits = Op(
    "likely_rows_from_logits(Tensor logits, Tensor[] tables, Tensor? keep, float temperature, int among, float min_p,"
    " Tensor? seed, Tensor? counter) -> Tensor[]",
    reference=reference.from_logits,
    launch=_launch_from_logits,
    fake=lambda logits, tables, keep, temperature, among, min_p, seed, counter: _fake(logits, tables, among, seed),
)


def likely_rows(
    hidden: Tensor,
    weight: Tensor,
    tables: Sequence[Tensor] = (),
    *,
    bias: Tensor | None = None,
    keep: Tensor | None = None,
    temperature: float = 1.0,
    among: int = 10,
    min_p: float = 0.0,
    seed: int | Tensor | None = None,
    counter: int | Tensor | None = None,
    width: int | None = None,
    backend: str | None = None,
    check: bool = True,
) -> LikelyRows:
    """The softmax of `(hidden @ weight.T + bias) / temperature` over its `among` likeliest tokens, without the (N, V) logits.

    hidden: (N, H)   weight: (V, H), or its panels from `to_panels`   tables: each (V, D), of any float type
    bias: (V,) or None   keep: (V,) bool or None   seed, counter: int or (N,) int64, for a draw
    returns rows: each (N, D) float32, tokens and log_p: (N, among), log_mass: (N,), drawn: (N,) or None

    The tokens are the likeliest of those that `keep` allows, at most 64, and of tokens with equal logits the lower ones.
    With `min_p` only those of them whose probability is at least `min_p` times the largest stay. The softmax is over what
    stays. A token whose logit is -inf is never among them. The draw is the one that `gibbs_sample_from_logits` makes from
    logits that are -inf everywhere else, with the same noise. Panels say too little about V: it is that of the tables, or
    `width` where there are none. With `check`, on the CPU, a row without a softmax raises ValueError; unchecked, and always
    on a GPU, its tokens and its draw are -1 and the rest is NaN.

    >>> import torch
    >>> weight, table = torch.tensor([[0.0], [1.0], [1.0]]), torch.tensor([[9.0], [2.0], [4.0]])
    >>> likely = likely_rows(torch.ones(1, 1), weight, [table], among=2)
    >>> likely.tokens.tolist(), likely.rows[0].item()
    ([[1, 2]], 3.0)
    """
    vocabulary = _vocabulary(hidden, weight, tables, bias, keep, temperature, width)
    given = _common(hidden, tables, vocabulary, among, min_p, seed, counter)
    found = _fused(backend, hidden, weight, list(tables), bias, keep, float(temperature), vocabulary, *given)
    likely = _named(found, len(tables))
    if _checks.wanted(check, hidden):

        def row_of(row: int) -> Tensor:
            return _head.row_of_logits(hidden, _head.rows_of(weight, vocabulary), bias, keep, row)

        _raise_bad(likely, row_of, tables)
    return likely


def likely_rows_from_logits(
    logits: Tensor,
    tables: Sequence[Tensor] = (),
    *,
    keep: Tensor | None = None,
    temperature: float = 1.0,
    among: int = 10,
    min_p: float = 0.0,
    seed: int | Tensor | None = None,
    counter: int | Tensor | None = None,
    backend: str | None = None,
    check: bool = True,
) -> LikelyRows:
    """The softmax of `logits / temperature` over its `among` likeliest tokens; see `likely_rows` for the options.

    logits: (N, V)   tables: each (V, D)   keep: (V,) bool or None   seed, counter: int or (N,) int64, for a draw

    >>> import torch
    >>> likely = likely_rows_from_logits(torch.tensor([[0.0, 9.0, 9.0]]), min_p=0.1, seed=1, counter=2)
    >>> likely.tokens[0, :3].tolist(), likely.drawn.item() in (1, 2)
    ([1, 2, -1], True)
    """
    _checks.ready_logits(logits, keep, temperature)
    given = _common(logits, tables, logits.shape[1], among, min_p, seed, counter)
    likely = _named(_from_logits(backend, logits, list(tables), keep, float(temperature), *given), len(tables))
    if _checks.wanted(check, logits):
        _raise_bad(likely, lambda row: _head.tempered(logits[row], keep, 1.0), tables)
    return likely


def _vocabulary(
    hidden: Tensor,
    weight: Tensor,
    tables: Sequence[Tensor],
    bias: Tensor | None,
    keep: Tensor | None,
    temperature: float,
    width: int | None,
) -> int:
    """V, once the head has been looked at."""
    if not isinstance(weight, Tensor) or weight.dim() != 3:
        _checks.head(hidden, weight, bias, keep, temperature)
        if width is not None and width != weight.shape[0]:
            raise ValueError(f"width must be the rows of weight, {weight.shape[0]}, got {width}")
        return weight.shape[0]
    if width is None:
        _check_list(tables)
        if not tables:
            raise ValueError("width must be given for a weight in panels without tables, got None")
        width = tables[0].shape[0]
    _checks.head_in_panels(hidden, weight, width, bias, keep, temperature)
    return width


def _common(
    x: Tensor,
    tables: Sequence[Tensor],
    vocabulary: int,
    among: int,
    min_p: float,
    seed: int | Tensor | None,
    counter: int | Tensor | None,
) -> tuple[int, float, Tensor | None, Tensor | None]:
    """The arguments that both ops end with, checked."""
    _check_list(tables)
    for i, table in enumerate(tables):
        _checks.floats(f"tables[{i}]", table, (vocabulary, None), x.device)
    if isinstance(among, bool) or not isinstance(among, int):
        raise TypeError(f"among must be an int, got {type(among).__name__}")
    if not 1 <= among <= MOST:
        raise ValueError(f"among must be from 1 to {MOST}, got {_checks.shown(among)}")
    if not (isinstance(min_p, (int, float)) and 0 <= min_p <= 1):
        raise ValueError(f"min_p must be a number from 0 to 1, got {_checks.shown(min_p)}")
    if (seed is None) != (counter is None):
        missing = "seed" if seed is None else "counter"
        raise ValueError(f"seed and counter must be given together, got no {missing}")
    if seed is None or counter is None:
        return among, float(min_p), None, None
    return among, float(min_p), _checks.per_row("seed", seed, x), _checks.per_row("counter", counter, x)


def _check_list(tables: Sequence[Tensor]) -> None:
    if not isinstance(tables, list | tuple):
        raise TypeError(f"tables must be a list of tensors, got {type(tables).__name__}")


def _named(found: list[Tensor], tables: int) -> LikelyRows:
    tokens, log_p, log_mass, *rest = found
    drawn = rest[0] if len(rest) > tables else None
    return LikelyRows(rest[len(rest) - tables :], tokens, log_p, log_mass, drawn)


def _raise_bad(likely: LikelyRows, row_of: Any, tables: Sequence[Tensor]) -> None:
    bad = likely.log_mass.isnan()
    for mean in likely.rows:
        bad = bad | mean.isnan().any(1)
    _checks.raise_bad_row(bad, row_of, {f"tables[{i}]": table for i, table in enumerate(tables)})
