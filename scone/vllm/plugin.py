"""The logits processor that vLLM loads, by the entry point or by `--logits-processors scone.vllm:SconeLogitsProcessor`.

vLLM has two runners with an interface each, and which of them a server takes is not known when this is imported. The class
answers to both: V1 moves requests between rows of its batch, V2 keeps each in a slot and says anew at every step which row
is whose.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar
from weakref import WeakSet

from scone.vllm.asked import Asked
from scone.vllm.settings import VARIABLE, current

if TYPE_CHECKING:
    from scone.vllm.core import Controller, Served

__all__ = ["SconeLogitsProcessor"]

log = logging.getLogger("scone.vllm")


def _interfaces() -> tuple[type, ...]:
    """Those of the vLLM that is installed."""
    found: list[type] = []
    try:
        from vllm.v1.sample.logits_processor import LogitsProcessor as V1

        found.append(V1)
    except ImportError:
        pass
    try:
        from vllm.v1.worker.gpu.sample.logits_processor import LogitsProcessor as V2

        found.append(V2)
    except ImportError:
        pass
    if not found:
        raise ImportError("scone.vllm needs vLLM with logits processors (0.11 or newer): pip install 'scone[vllm]'")
    return tuple(found)


class SconeLogitsProcessor(*_interfaces()):  # type: ignore[misc]
    """Controls the requests that ask for it, all of a step in one batch of work, and touches no other."""

    made: ClassVar[WeakSet[SconeLogitsProcessor]] = WeakSet()

    def __init__(self, vllm_config: Any, *runner: Any) -> None:
        """`runner`: (device, is_pin_memory) from V1, or (req_states,) from V2."""
        self.is_v2 = len(runner) == 1
        self.states: Any = runner[0] if self.is_v2 else None
        self.served: dict[int, tuple[Served, Sequence[int]]] = {}  # by row (V1) or slot (V2): text, its output ids
        self.asked: dict[int, tuple[Asked, Any]] = {}  # V2: slots whose tokens have not been looked at yet
        self.config = vllm_config
        # Found by the entry point and named as well, it is made twice: the first one acts.
        self.acts = all(other.config is not vllm_config for other in self.made)
        settings = current()
        if settings is None:
            log.info("%s is not set: nothing is controlled", VARIABLE)
        self.controller: Controller | None = None
        if settings is not None and self.acts:
            device = runner[0].device if self.is_v2 else runner[0]
            self.controller = _controller(vllm_config, settings, device)
        self.made.add(self)

    @classmethod
    def validate_params(cls, sampling_params: Any) -> None:
        """Refuse a request whose arguments cannot be used; nothing is loaded for it."""
        Asked.of_params(sampling_params)

    def is_argmax_invariant(self) -> bool:
        """Greedy requests are controlled too."""
        return False

    # V1

    def update_state(self, batch_update: Any) -> None:
        """Requests that leave, come and move, in that order."""
        if batch_update is None or self.controller is None:
            return
        for row in batch_update.removed:
            self.served.pop(row, None)
        for row, params, prompt_ids, output_ids in batch_update.added:
            self.served.pop(row, None)
            asked = Asked.of_params(params)
            if asked is not None:
                self.served[row] = self.controller.serve(asked, prompt_ids or [], params), output_ids
        for one, other, direction in batch_update.moved:
            first, second = self.served.pop(one, None), self.served.pop(other, None)
            if first is not None:
                self.served[other] = first
            if second is not None and direction.name == "SWAP":
                self.served[one] = second

    # V2

    def add_request(self, req_idx: int, sampling_params: Any) -> bool:
        """A request enters a slot, perhaps after another."""
        self.served.pop(req_idx, None)
        self.asked.pop(req_idx, None)
        asked = Asked.of_params(sampling_params) if self.controller is not None else None
        if asked is not None:
            self.asked[req_idx] = asked, sampling_params
        return asked is not None

    # both

    def apply(self, logits: Any, ctx: Any = None) -> Any:
        """Logits (rows, V), in which the rows of controlled requests are replaced."""
        if self.controller is None or not (self.served or self.asked):
            return logits
        turns = self._turns_v1(len(logits)) if ctx is None else self._turns_v2(ctx)
        if turns:
            rows = [row for row, _, _ in turns]
            new = self.controller.steer([text for _, text, _ in turns], [ids for _, _, ids in turns], logits[rows])
            logits[rows] = new.to(logits.dtype)
        return logits

    def _turns_v1(self, rows: int) -> list[tuple[int, Served, Sequence[int]]]:
        return [(row, text, ids) for row, (text, ids) in sorted(self.served.items()) if row < rows]

    def _turns_v2(self, ctx: Any) -> list[tuple[int, Served, Sequence[int]]]:
        """Rows that are due: those whose prompt has been read. A draft of the runner's owns rows after its request's first."""
        slots, places = ctx.expanded_idx_mapping.tolist(), ctx.pos.tolist()
        offsets, fed = ctx.expanded_local_pos.tolist(), ctx.input_ids.tolist()
        turns: list[tuple[int, Served, Sequence[int]]] = []
        for row, slot in enumerate(slots):
            if slot not in self.asked:
                continue
            length, prompt = places[row] + 1 - offsets[row], int(self.states.prompt_len.np[slot])
            if length < prompt:
                continue
            ids = [*self.states.all_token_ids.gpu[slot, :length].tolist(), *fed[row + 1 - offsets[row] : row + 1]]
            text = self._text_v2(slot, ids[:prompt], first=offsets[row] == 0)
            turns.append((row, text, ids[prompt:]))
        return turns

    def _text_v2(self, slot: int, prompt: list[int], *, first: bool) -> Served:
        """The text of a slot, or for a row behind a draft one that is read anew."""
        assert self.controller is not None
        asked, params = self.asked[slot]
        if first and slot in self.served:
            return self.served[slot][0]
        text = self.controller.serve(asked, prompt, params)
        if first:
            self.served[slot] = text, ()
        return text


def _controller(vllm_config: Any, settings: Any, device: Any) -> Controller:
    """The models of the settings, beside the tokenizer of the server's LM."""
    from transformers import AutoTokenizer

    from scone.vllm.core import Controller
    from scone.vllm.models import Models, UnseenLM

    model = vllm_config.model_config
    tokenizer = AutoTokenizer.from_pretrained(
        model.tokenizer, revision=model.tokenizer_revision, trust_remote_code=model.trust_remote_code
    )
    generation = model.try_get_generation_config() or {}
    ends = generation.get("eos_token_id")
    stops = [*(ends if isinstance(ends, list) else [ends]), tokenizer.eos_token_id]
    lm = UnseenLM(
        tokenizer, stop_ids=[i for i in stops if i is not None], vocabulary=model.get_vocab_size(), device=device
    )
    return Controller(Models(settings, lm))
