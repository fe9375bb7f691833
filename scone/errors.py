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
    """The root: `except SconeError` catches whatever scone raises on purpose."""


class ConfigError(SconeError, ValueError):
    """An option is out of its range; the message names the field, the value and what was expected."""


class InputError(SconeError, ValueError):
    """An argument of a call cannot be used; raised before any model runs."""


class LabelError(SconeError, ValueError):
    """A verifier has no such label; the message lists those that it has."""


class ModelError(SconeError, TypeError):
    """A model or tokenizer cannot play the part it was given, such as a masked LM without a mask token."""


class DeviceError(SconeError, RuntimeError):
    """Parts that work on the same tensors live on different devices."""


class NumericalError(SconeError, RuntimeError):
    """A model returned NaN; the message names the model."""
