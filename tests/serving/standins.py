"""What the plug-in sees of vLLM, made small: the same names and fields, checked against the real ones by `make test-vllm`."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from importlib.util import find_spec
from types import ModuleType, SimpleNamespace
from typing import Any

from scone.vllm.settings import Attribute, Settings

REAL = find_spec("vllm") is not None  # asked before there are stand-ins
V1 = "vllm.v1.sample.logits_processor"
V2 = "vllm.v1.worker.gpu.sample.logits_processor"


class MoveDirectionality(Enum):
    UNIDIRECTIONAL = auto()
    SWAP = auto()


@dataclass(frozen=True)
class BatchUpdate:
    batch_size: int
    removed: Sequence[int] = ()
    added: Sequence[tuple[int, Any, list[int] | None, list[int]]] = ()
    moved: Sequence[tuple[int, int, MoveDirectionality]] = ()


class FirstInterface(ABC):
    @classmethod
    def validate_params(cls, sampling_params: Any) -> None:
        return None

    @abstractmethod
    def __init__(self, vllm_config: Any, device: Any, is_pin_memory: bool) -> None: ...

    @abstractmethod
    def apply(self, logits: Any) -> Any: ...

    @abstractmethod
    def is_argmax_invariant(self) -> bool: ...

    @abstractmethod
    def update_state(self, batch_update: Any) -> None: ...


class SecondInterface(ABC):
    def __init__(self, vllm_config: Any, req_states: Any) -> None:
        super().__init__()

    @classmethod
    def validate_params(cls, sampling_params: Any) -> None:
        return None

    def add_request(self, req_idx: int, sampling_params: Any) -> bool:
        return True

    def apply_staged_writes(self) -> None:
        return None

    @abstractmethod
    def apply(self, logits: Any, ctx: Any) -> Any: ...


@dataclass(frozen=True)
class LogitsProcRequestState:
    device: Any
    max_num_reqs: int
    vocab_size: int
    all_token_ids: Any  # .gpu (slots, length)
    prompt_len: Any  # .np (slots,)
    prefill_len: Any
    total_len: Any


@dataclass(frozen=True)
class LogitsContext:
    expanded_idx_mapping: Any
    idx_mapping: Any
    idx_mapping_np: Any
    expanded_local_pos: Any
    input_ids: Any
    pos: Any
    seq_lens_upper_bound_np: Any


@dataclass
class SamplingParams:
    extra_args: dict[str, Any] | None = None
    max_tokens: int | None = 16
    stop: list[str] = field(default_factory=list)
    stop_token_ids: list[int] = field(default_factory=list)
    ignore_eos: bool = False


def install() -> None:
    """Put the stand-ins where the plug-in looks for vLLM."""
    inside = {
        V1: {"LogitsProcessor": FirstInterface, "BatchUpdate": BatchUpdate, "MoveDirectionality": MoveDirectionality},
        V2: {
            "LogitsProcessor": SecondInterface,
            "LogitsProcRequestState": LogitsProcRequestState,
            "LogitsContext": LogitsContext,
        },
    }
    for path, names in inside.items():
        parts = path.split(".")
        for i in range(1, len(parts) + 1):
            sys.modules.setdefault(".".join(parts[:i]), ModuleType(".".join(parts[:i])))
        vars(sys.modules[path]).update(names)


def remove() -> None:
    """Take them away again: the plug-in has seen what it looks for."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "vllm"]:
        del sys.modules[name]


def config_of(tokenizer: Any, vocabulary: int) -> Any:
    """What the plug-in reads of a VllmConfig."""
    model = SimpleNamespace(
        tokenizer=tokenizer, tokenizer_revision=None, trust_remote_code=False,
        try_get_generation_config=lambda: {"eos_token_id": 0}, get_vocab_size=lambda: vocabulary,
    )  # fmt: skip
    return SimpleNamespace(model_config=model)


SETTINGS = Settings(
    attributes={name: Attribute("tiny", name) for name in ("positive", "negative")},
    draft="tiny", masked_lm="tiny", tokens=2, strength=8.0, min_mass=0.0, top_k=4,
)  # fmt: skip
