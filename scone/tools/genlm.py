"""Engines as potentials of genlm-control (`pip install 'scone[genlm]'`): critics for its particle filters.

llm = PromptedLLM(AsyncTransformer(engine.lm, engine.lm_tokenizer), eos_byte_strings=[b"."])
llm.set_prompt_from_str("The movie was")
sequences = await direct_token_sampler(llm).smc(10, ess_threshold=0.5, max_tokens=25, critic=potential(engine, llm))
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from scone.decode import Scone
from scone.errors import InputError

__all__ = ["potential"]


def potential(engine: Scone, llm: Any, *, max_new_tokens: int = 25, seed: int = 0) -> Any:
    """A genlm Potential on the vocabulary of a PromptedLLM: log q of a prefix, log φ of a finished text.

    The prompt of `llm` counts as the beginning of the text. `engine.lm` and the model of `llm` share a tokenizer; as a rule
    they are the same model. A text is taken to go on for what is left of `max_new_tokens`. `potential(...) ** 3` steers
    harder.
    """
    try:
        from genlm.control import Potential
    except ImportError as error:
        raise InputError("a potential needs genlm-control: pip install 'scone[genlm]'") from error
    if len(llm.token_maps.decode) > engine.parts.lm.vocabulary:
        raise InputError(
            f"llm must have the tokenizer of engine.lm, of {engine.parts.lm.vocabulary} tokens, "
            f"got one of {len(llm.token_maps.decode)}"
        )

    class EnginePotential(Potential):
        """What the engine's lookahead says of prefixes."""

        def __init__(self) -> None:
            super().__init__(llm.vocab, tables=llm.token_maps.tables)

        async def prefix(self, context: Sequence[Any]) -> float:
            return float((await self.batch_prefix([context]))[0])

        async def complete(self, context: Sequence[Any]) -> float:
            return float((await self.batch_complete([context]))[0])

        async def batch_prefix(self, contexts: Sequence[Sequence[Any]]) -> Any:
            lengths = {len(context) for context in contexts}
            weights = torch.empty(len(contexts), dtype=torch.float64)
            for length in lengths:  # those of one length have equally much ahead of them
                rows = [i for i, context in enumerate(contexts) if len(context) == length]
                weights[rows] = _log_q([contexts[i] for i in rows], max(1, max_new_tokens - length))
            return weights.numpy()

        async def batch_complete(self, contexts: Sequence[Sequence[Any]]) -> Any:
            return _log_q(contexts, 0).numpy()

    def _log_q(contexts: Sequence[Sequence[Any]], remaining: int) -> torch.Tensor:
        prompt = list(llm.prompt_ids)
        ids = [[*prompt, *(token.token_id for token in context)] for context in contexts]
        if not all(ids):
            raise InputError("llm must have a prompt: llm.set_prompt_from_str(...), got none")
        return torch.nn.functional.logsigmoid(engine.value(ids, max_new_tokens=remaining, seed=seed).double())

    return EnginePotential()
