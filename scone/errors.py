"""Everything that scone raises on purpose.

    SconeError
    ├── ConfigError     (ValueError)    an option is out of its range
    ├── InputError      (ValueError)    a prompt or an argument of a call cannot be used
    ├── LabelError      (ValueError)    a verifier has no such label
    ├── ModelError      (TypeError)     a model or tokenizer cannot play the part it was given
    ├── DeviceError     (RuntimeError)  parts that must share a device do not
    └── NumericalError  (RuntimeError)  a model returned NaN

>>> issubclass(ConfigError, SconeError) and issubclass(ConfigError, ValueError)
True
"""

from __future__ import annotations

__all__ = [
    "ConfigError",
    "DeviceError",
    "InputError",
    "LabelError",
    "ModelError",
    "NumericalError",
    "SconeError",
]


class SconeError(Exception):
    """The root: `except SconeError` catches whatever scone raises on purpose.

    >>> from scone.decode import SconeConfig
    >>> try:
    ...     SconeConfig(top_k=0)
    ... except SconeError as error:
    ...     print(type(error).__name__)
    ConfigError
    """


class ConfigError(SconeError, ValueError):
    """An option is out of its range; the message names the field, the value and what was expected.

    >>> from scone.decode import SconeConfig
    >>> SconeConfig(keep="worst")
    Traceback (most recent call last):
    scone.errors.ConfigError: keep must be one of 'best', 'sample', got 'worst'
    """


class InputError(SconeError, ValueError):
    """An argument of a call cannot be used; raised before any model runs.

    >>> from scone.decode import Scone
    >>> Scone.from_pretrained().generate([])
    Traceback (most recent call last):
    scone.errors.InputError: prompts must hold at least one prompt, got an empty list
    """


class LabelError(SconeError, ValueError):
    """A verifier has no such label; the message lists those that it has.

    >>> from scone.decode import Verifier
    >>> Verifier.from_pretrained("embedded:toxicity", target="rude")
    Traceback (most recent call last):
    scone.errors.LabelError: target must be one of 'clean' (0), 'toxic' (1), got 'rude'
    """


class ModelError(SconeError, TypeError):
    """A model or tokenizer cannot play the part it was given, such as a masked LM without a mask token.

    >>> from torch import nn
    >>> from scone.decode import Verifier
    >>> Verifier(nn.Linear(2, 2), tokenizer=None, target=0)
    Traceback (most recent call last):
    scone.errors.ModelError: verifier must have input embeddings, got Linear without
    """


class DeviceError(SconeError, RuntimeError):
    """A device that is not there, or parts that work on the same tensors and live on different devices.

    >>> import torch
    >>> from scone.decode import Scone, SconeConfig, Verifier
    >>> from scone.embedded import load_masked_lm
    >>> from scone.lookahead import Masked
    >>> far = torch.zeros(30522, 4, device="meta")
    >>> verifier = Verifier.from_module(lambda embeds, mask: embeds, load_masked_lm()[1], far)
    >>> Scone.from_pretrained(verifier=verifier, config=SconeConfig(lookahead=Masked()))
    Traceback (most recent call last):
    scone.errors.DeviceError: verifier function must be on the masked LM's device cpu, got meta
    """


class NumericalError(SconeError, RuntimeError):
    """A model returned NaN; the message names the model.

    >>> from scone.decode import Verifier
    >>> Verifier.from_callable(lambda texts: [float("nan")]).score("any")
    Traceback (most recent call last):
    scone.errors.NumericalError: the verifier <lambda> returned NaN in 1 of 1 values
    """
