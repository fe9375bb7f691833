"""What a model is made of, and whether it still is: asked before every call, so that the answer must cost microseconds.

A fast path does what the modules of a model would do. It may do so only where those are the ones that it knows, and where
nobody listens or has put something else in their place: everything here is about noticing that.
"""

from __future__ import annotations

from itertools import chain
from typing import Any

from torch import nn
from torch.nn.modules import module as registry

__all__ = ["Structure", "Unfit", "is_from", "untouched"]

HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
EVERYWHERE = tuple(getattr(registry, f"_global{name}") for name in HOOKS)  # of all modules there are
_KNOWN = {nn.Linear, nn.Embedding, nn.LayerNorm, nn.Dropout, nn.ModuleList, nn.SiLU, nn.GELU, nn.Tanh}
_ACTIVATIONS = "transformers.activations"
_ATTENTION = ("eager", "sdpa")  # the others may do anything


class Unfit(Exception):
    """Why the model itself has to do it."""


def is_from(found: Any, module: str, name: str) -> bool:
    """Whether something is exactly of the class of that name, which need not be imported for it.

    >>> is_from(nn.ReLU(), "torch.nn.modules.activation", "ReLU")
    True
    """
    return type(found).__name__ == name and type(found).__module__ == module


def untouched(*modules: Any) -> bool:
    """Whether each does what its class was published to do, and nobody listens: such modules may be gone round.

    >>> part = nn.Linear(2, 2)
    >>> untouched(part), part.register_forward_hook(print) and untouched(part)
    (True, False)
    """
    return not any(EVERYWHERE) and all(
        isinstance(module, nn.Module) and not _has_own_forward(module) and not any(vars(module)[name] for name in HOOKS)
        for module in modules
    )


class Structure:
    """The modules of a model as they were found.

    >>> model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    >>> structure = Structure(model)
    >>> structure.stands(), structure.is_heard()
    (True, False)
    >>> handle = model[0].register_forward_hook(print)
    >>> structure.stands(), structure.is_heard()
    (True, True)
    >>> model[1] = nn.GELU()
    >>> structure.stands()
    False
    """

    def __init__(self, model: nn.Module) -> None:
        self.modules = list(model.modules())
        own = [vars(module) for module in self.modules]
        configs = {
            id(state["config"]): vars(state["config"]) for state in own if hasattr(state.get("config"), "__dict__")
        }
        # What a linear layer computes depends on its class, its hooks and its parameters; of others it may be any attribute.
        self._plain = [state for module, state in zip(self.modules, own) if type(module) is nn.Linear]
        self._states = [state for module, state in zip(self.modules, own) if type(module) is not nn.Linear]
        self._states += configs.values()
        # These show what is there now, also later.
        self._children = [state["_modules"].values() for state in own if state["_modules"]]
        self._hooks = [*EVERYWHERE, *(state[name] for state in own for name in HOOKS)]
        kinds: set[Any] = set(map(type, self.modules))
        self._forwards = [(kind, kind.forward) for kind in kinds]
        self._found = self._look(), list(map(dict, self._states))

    def _look(self) -> tuple[list[type], list[int], list[Any]]:
        return list(map(type, self.modules)), list(map(len, self._plain)), list(chain.from_iterable(self._children))

    def stands(self) -> bool:
        """Whether every module is the one that was there, of the same class and with the same attributes."""
        look, states = self._found
        try:
            same = self._look() == look and self._states == states
        except (RuntimeError, ValueError):  # an attribute is another tensor, or another array
            return False
        return same and all(kind.forward is forward for kind, forward in self._forwards)

    def is_training(self) -> bool:
        """Whether one of them is in training."""
        return any(module.training for module in self.modules)

    def is_heard(self) -> bool:
        """Whether somebody has a hook in one of them, or in all modules there are."""
        return any(self._hooks)

    def check(self, family: str) -> None:
        """Raise `Unfit` unless all are as transformers publishes them for that family, and do what they do at inference."""
        published = f"transformers.models.{family}.modeling_{family}"
        for module in self.modules:
            kind, state = type(module), vars(module)
            if kind not in _KNOWN and kind.__module__ not in (published, _ACTIVATIONS):
                raise Unfit(f"{kind.__module__}.{kind.__qualname__} is not known")
            if _has_own_forward(module):
                raise Unfit(f"a {kind.__qualname__} has a forward of its own")
            if "hf_device_map" in state:
                raise Unfit("its layers are placed by a device_map")
            if module.training and _acts_in_training(module):
                raise Unfit(f"a {kind.__qualname__} is in training")
            config: Any = state.get("config")
            if config is not None and getattr(config, "_attn_implementation", None) not in _ATTENTION:
                raise Unfit(f"its attention is {config._attn_implementation!r}")
            asked = ("output_attentions", "output_hidden_states")
            if config is not None and (any(getattr(config, a, False) for a in asked) or config.return_dict is False):
                raise Unfit("its config asks for more than the result, or for a tuple")


def _has_own_forward(module: nn.Module) -> bool:
    state = vars(module)
    return "forward" in state or state.get("_compiled_call_impl") is not None or not _is_original(type(module))


def _is_original(kind: Any) -> bool:
    """Whether the class has the forward that it was published with: a wrapper of somebody else's lives in another module."""
    source = getattr(kind.forward, "__globals__", {}).get("__name__", "")
    return source.partition(".")[0] in ("torch", "transformers")


def _acts_in_training(module: Any) -> bool:
    """Whether it does something else in training, or lets others do so."""
    dropout = module.p if isinstance(module, nn.Dropout) else getattr(module, "attention_dropout", 0.0)
    return bool(dropout) or bool(getattr(module, "gradient_checkpointing", False))
