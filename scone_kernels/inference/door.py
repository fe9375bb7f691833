"""The one door: `accelerate(model)` is called as the model is, and never changes it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from .. import _extension, _ops
from . import heads
from .decoder import Decoder
from .encoder import Encoder, Pick
from .packed import Packed, Values
from .resting import at_rest
from .structure import Structure, Unfit

__all__ = ["Accelerated", "accelerate"]


def accelerate(model: Any, *, evaluating: bool = False) -> Accelerated:
    """An object that is called as a model of transformers is, and answers faster where it can.

    In one call of C++ it runs a step of a Llama, Mistral or Qwen2 LM (one new token for each text, on a CPU, with a plain
    cache), and BERT, RoBERTa, XLM-RoBERTa, CamemBERT and ELECTRA encoders and classifiers: in float32, also where the model
    is in bfloat16 or float16. Everything else goes to the model itself; `why_not` says why.

    With `evaluating` it answers as the model does in eval mode, also where its owner has it in training, and leaves it so.

    >>> from scone.embedded import load_lm
    >>> model, tokenizer = load_lm()
    >>> fast, ids = accelerate(model), tokenizer("One two three", return_tensors="pt")["input_ids"]
    >>> with torch.no_grad():
    ...     cache = fast(input_ids=ids[:, :-1], use_cache=True).past_key_values
    ...     logits = fast(input_ids=ids[:, -1:], past_key_values=cache).logits[:, -1]
    ...     bool(torch.allclose(logits, model(ids).logits[:, -1], atol=1e-3)), cache.get_seq_length()
    (True, 3)
    >>> with torch.no_grad():
    ...     fast.why_not(input_ids=ids)
    'it is not called with one token for each text, on the CPU'
    """
    return Accelerated(model, evaluating)


class Accelerated:
    """A model and what is kept beside it: copies of weights in 16 bits, and what is known of its structure.

    The model stays what it was. Before every call it is looked at again: other layers, other values, hooks and forwards of
    somebody's own are seen. What is written through `.data`, or by NumPy, is not: call `refresh()` then.
    """

    def __init__(self, model: Any, evaluating: bool = False) -> None:
        self.model = model
        self._evaluating = evaluating and isinstance(model, nn.Module)
        self._kind: Any = None
        if isinstance(model, nn.Module):
            self._kind = next((kind for kind in (Decoder, Encoder) if kind.family(model) is not None), None)
        if self._kind is Decoder and _extension.why_missing is not None:
            self._kind = None
        # The modules as they were found, those that are run, and a Decoder, an Encoder, or why there is none.
        self._found: tuple[Structure, Any, Any] | None = None
        self._packed: Packed | None = None  # the last there was, for the next to take what is still good of it

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or "model" not in vars(self):
            raise AttributeError(name)
        return getattr(self.model, name)

    def __reduce__(self) -> tuple[Any, ...]:
        return Accelerated, (self.model, self._evaluating)

    def __call__(self, *args: Any, **call: Any) -> Any:
        """What `model(...)` returns, or for a fast answer an object of the same class."""
        plan = "it is called by position" if args else self._plan(call)
        if isinstance(plan, Decoder):
            weights = _weights(plan)
            if not isinstance(weights, str):
                return plan(call, weights)
        elif isinstance(plan, Encoder) and plan.judges:
            return plan.judge(call)
        return self.running(*args, **call)

    def why_not(self, **call: Any) -> str | None:
        """Why such a call goes to the model itself, or None where it does not."""
        plan = self._plan(call)
        if isinstance(plan, Decoder):
            weights = _weights(plan)
            return weights if isinstance(weights, str) else None
        return plan if isinstance(plan, str) else None

    def refresh(self) -> None:
        """Look at everything anew: for changes that torch does not note, such as those through `.data`."""
        self._found = self._packed = None

    @property
    def running(self) -> Any:
        """The model, or where it is in training and eval mode was asked for, its modules at rest."""
        if not self._evaluating or torch.compiler.is_compiling():
            return self.model
        return self._looked()[1]

    @property
    def gives_hidden(self) -> bool:
        """Whether `hidden` can be called: the logits are a plain linear layer of the last hidden states."""
        return heads.is_plain(self.model)

    @property
    def head(self) -> tuple[Tensor, Tensor | None]:
        """weight (V, H) and bias (V,) that make logits of what `hidden` gives."""
        layer = self.model.get_output_embeddings()
        return layer.weight, layer.bias

    @property
    def packed_head(self) -> tuple[Tensor, Tensor | None]:
        """The same as kernels read it: the weight in panels of 16 bits where it is kept so."""
        plan = self._found[1] if self._found is not None else None
        weights = _weights(plan) if isinstance(plan, Decoder) else ""
        return self.head if isinstance(weights, str) else (weights[-2], weights[-1])  # type: ignore[return-value]

    def logits(self, states: Tensor) -> Tensor:
        """What the head makes of states (B, H) that `hidden` gave: (B, V)."""
        weight, bias = self.packed_head
        if weight.dim() == 2:
            return torch.nn.functional.linear(states, weight, bias)
        made: Tensor = _ops.ops.linear_half(states, weight, bias, self.head[0].shape[0])
        return made.to(states.dtype)

    def hidden(self, **call: Any) -> tuple[Tensor, Any]:
        """The states (B, H) that the head makes the last token's logits of, and the cache, for a call as of the model.

        >>> from scone.embedded import load_lm
        >>> model, tokenizer = load_lm()
        >>> fast, ids = accelerate(model), tokenizer("One two three", return_tensors="pt")["input_ids"]
        >>> with torch.no_grad():
        ...     states, cache = fast.hidden(input_ids=ids, use_cache=True)
        ...     logits = torch.nn.functional.linear(states, *fast.head)
        ...     bool(torch.allclose(logits, model(ids).logits[:, -1], atol=1e-3))
        True
        """
        plan = self._plan(call)
        if isinstance(plan, Decoder):
            weights = _weights(plan)
            if not isinstance(weights, str):
                return plan.states(call, weights).to(plan.dtype), call["past_key_values"]
        if not self.gives_hidden:
            raise ValueError(f"hidden must be asked only where gives_hidden is true, got {type(self.model).__name__}")
        call.pop("logits_to_keep", None)
        out = self.running.base_model(**call)
        return out.last_hidden_state[:, -1], getattr(out, "past_key_values", None)

    def read(self, pick: Pick, **call: Any) -> Tensor:
        """pick(last hidden states (R, T, H)) of a bare encoder: of its last layer only that is computed.

        >>> from scone.embedded import load_masked_lm
        >>> model, tokenizer = load_masked_lm()
        >>> ids = tokenizer("a nice day", return_tensors="pt")["input_ids"]
        >>> accelerate(model.bert).read(lambda states: states[:, 2:3], input_ids=ids).shape
        torch.Size([1, 1, 384])
        """
        plan = self._plan(call)
        return plan.read(pick, call) if isinstance(plan, Encoder) else pick(self.running(**call)[0])

    def _plan(self, call: dict[str, Any]) -> Any:
        """How this call is answered fast, or why it is not."""
        if self._kind is None:
            return "this kind of model is not known, or there is no C++ extension"
        if torch.compiler.is_compiling() or torch.jit.is_tracing() or torch.is_autocast_enabled("cpu"):
            return "it is traced, or under autocast"
        structure, _, plan = self._looked()
        if structure.is_heard():
            return "somebody has hooked into it"
        return plan if isinstance(plan, str) else plan.refuses(call) or plan

    def _looked(self) -> tuple[Structure, Any, Any]:
        """What was found when the model was looked at last; it is looked at again where it has changed since."""
        found = self._found
        if found is None or not found[0].stands():
            found = self._found = self._look()
        return found

    def _look(self) -> tuple[Structure, Any, Any]:
        structure, running, inner = Structure(self.model), self.model, None
        if self._evaluating and structure.is_training():
            running = _at_rest(self.model)
            inner = Structure(running)
        if self._kind is None:
            return structure, running, "this kind of model is not known, or there is no C++ extension"
        try:
            plan = self._kind(running, inner or structure, self._packed)
        except (Unfit, AttributeError) as reason:  # a part is missing
            return structure, running, str(reason)
        self._packed = plan.packed or self._packed
        return structure, running, plan


def _at_rest(model: nn.Module) -> nn.Module:
    try:
        return at_rest(model)
    except Exception as reason:  # somebody's module that cannot be copied
        raise TypeError(
            f"model must be in eval mode, for its modules cannot be copied, got {type(model).__name__} "
            f"in training: {reason}"
        ) from reason


def _weights(plan: Decoder) -> Values | str:
    try:
        return plan.packed.values()
    except Unfit as reason:
        return str(reason)
