"""Grammars: JSON by a schema, a regular expression, EBNF; by xgrammar (`pip install 'scone[grammar]'`).

    grammar = Grammar(engine, json_schema={"type": "object", ...})
    engine.generate(prompts, logits_processor=[grammar])

A grammar says which tokens are legal, before the candidates are picked: the k candidates are legal ones, and the verifier
chooses among them. `JsonField` shows the verifier a single field.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from scone.errors import InputError
from scone.processors import PerText

if TYPE_CHECKING:
    from scone.decode import Scone

__all__ = ["Grammar", "JsonField"]


class Grammar(PerText):
    """Lets an engine's LM write only what a grammar allows; each text has its own place in the grammar.

    engine: whose LM and tokenizer the grammar is compiled for   json_schema: a dict, a string or a pydantic model
    regex, ebnf: strings; exactly one of the three is given
    whitespace: whether JSON may have any amount of it, on which small LMs like to go on for ever

    The grammar begins after the prompt. A text ends where it is complete; one that comes to `max_new_tokens` before that
    is cut. Compiled once, it serves any number of calls, in `engine.generate` as in transformers' own `generate`.

    >>> from scone.decode import Scone
    >>> engine = Scone.from_pretrained()
    >>> year = Grammar(engine, regex="(19|20)[0-9]{2}")
    >>> engine.generate(["The year was "], max_new_tokens=6, logits_processor=[year]).continuations[0].isdigit()
    True
    """

    def __init__(
        self,
        engine: Scone,
        *,
        json_schema: Any = None,
        regex: str | None = None,
        ebnf: str | None = None,
        whitespace: bool = False,
    ) -> None:
        given = {
            name: value
            for name, value in (("json_schema", json_schema), ("regex", regex), ("ebnf", ebnf))
            if value is not None
        }
        if len(given) != 1:
            raise InputError(f"one of json_schema, regex and ebnf must be given, got {', '.join(given) or 'none'}")
        ((kind, text),) = given.items()
        xgrammar, lm = _xgrammar(), engine.parts.lm
        if not lm.stop_ids:
            raise InputError("engine must have an LM with an end-of-text token for a grammar to end with, got none")
        info = xgrammar.TokenizerInfo.from_huggingface(
            lm.tokenizer, vocab_size=lm.vocabulary, stop_token_ids=sorted(lm.stop_ids)
        )
        compiler = xgrammar.GrammarCompiler(info)
        try:
            if kind == "json_schema":
                compiled = compiler.compile_json_schema(text, any_whitespace=whitespace)
            else:
                compiled = compiler.compile_regex(text) if kind == "regex" else compiler.compile_grammar(text)
        except (RuntimeError, ValueError, TypeError) as error:
            first_line = str(error).strip().partition("\n")[0]
            raise InputError(f"{kind} must be one that xgrammar can compile, got {text!r}: {first_line}") from error
        super().__init__(lambda: _Place(compiled, lm.vocabulary, sorted(lm.stop_ids)))


class _Place:
    """Where one text is in its grammar."""

    def __init__(self, compiled: Any, vocabulary: int, stop_ids: list[int]) -> None:
        xgrammar = _xgrammar()
        self._matcher = xgrammar.GrammarMatcher(compiled)
        self._mask = xgrammar.allocate_token_bitmask(1, vocabulary)  # (1, V / 32) int32
        self._stop_ids = stop_ids
        self._begun, self._inside = False, True

    def __call__(self, ids: Tensor, scores: Tensor) -> Tensor:
        """Scores (1, V) with -inf for what may not follow; a text that has left its grammar may only end."""
        if self._begun and self._inside:
            self._inside = self._matcher.accept_token(int(ids[0, -1])) and not self._matcher.is_terminated()
        self._begun = True
        if not self._inside:
            ends = torch.full_like(scores, -torch.inf)
            ends[:, self._stop_ids] = scores[:, self._stop_ids]
            return ends
        self._matcher.fill_next_token_bitmask(self._mask)
        shifts = torch.arange(32, dtype=torch.int32)
        legal = (self._mask[0][:, None] >> shifts & 1).bool().flatten()[: scores.shape[1]]
        return scores.masked_fill(~legal.to(scores.device), -torch.inf)


class JsonField:
    """What a JSON text says in one of its string fields, as far as it is written: for `verifier.reading(JsonField("review"))`.

    The last field of that name counts, at any depth, so that examples in the prompt are passed over. Nothing where it has
    not begun.

    >>> JsonField("review")('Here: {"stars": 5, "review": "A \\\\"gem')
    'A "gem'
    >>> JsonField("review")('{"stars": 5, "rev')
    ''
    """

    def __init__(self, name: str) -> None:
        if not isinstance(name, str) or not name:
            raise InputError(f"name must be that of a field, got {name!r}")
        self.name = name
        self._found = re.compile(re.escape(json.dumps(name)) + r'\s*:\s*"((?:[^"\\]|\\.)*)', re.DOTALL)

    def __call__(self, text: str) -> str:
        """The field's value, unescaped."""
        every = self._found.findall(text)
        if not every:
            return ""
        whole = re.sub(r"\\u[0-9a-fA-F]{0,3}$", "", every[-1])  # an escape of which the end is to come
        try:
            return str(json.loads(f'"{whole}"', strict=False))
        except ValueError:
            return whole  # no JSON after all


def _xgrammar() -> Any:
    try:
        import xgrammar
    except ImportError as error:
        raise InputError("a grammar needs xgrammar: pip install 'scone[grammar]'") from error
    return xgrammar
