"""A model in eval mode while its owner has it in training: other modules around the same parameters.

Dropout and checkpointing look at a flag of each module, and that flag is the owner's: switching it for the length of a
pass would reach whoever trains meanwhile.
"""

from __future__ import annotations

import copy
from functools import partial
from types import MethodType
from typing import Any

from torch import nn

__all__ = ["at_rest"]

_BOUND = (nn.Module, MethodType, partial)  # what leads to a module


def at_rest(model: nn.Module) -> nn.Module:
    """The model in eval mode: modules of our own with the very parameters, buffers, hooks and config of the given ones.

    Values and hooks are shared and may change; other layers or attributes do not show. What `torch.compile` has made is
    left out, for it has the owner's modules inside.

    >>> model = nn.Sequential(nn.Linear(2, 2), nn.Dropout())
    >>> resting = at_rest(model)
    >>> resting.training, model.training, resting[0].weight is model[0].weight
    (False, True, True)
    """
    memo: dict[int, Any] = {}
    for module in model.modules():
        for name, value in vars(module).items():
            if name in ("_parameters", "_buffers") or "_hooks" in name or not _leads_to_a_module(value):
                memo[id(value)] = value
    # Innermost first: what is compiled stands for what it was made of.
    for module in reversed(list(model.modules())):
        original = vars(module)["_modules"].get("_orig_mod")
        if original is not None:
            memo[id(module)] = copy.deepcopy(original, memo)
    resting: nn.Module = copy.deepcopy(model, memo)
    for module in resting.modules():
        vars(module).update(training=False, _compiled_call_impl=None)
    return resting


def _leads_to_a_module(value: Any) -> bool:
    if isinstance(value, dict):
        return any(isinstance(part, _BOUND) for part in value.values())
    return isinstance(value, _BOUND) or (isinstance(value, list | tuple) and any(isinstance(v, _BOUND) for v in value))
