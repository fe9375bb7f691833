"""Everything that scone raises on purpose.

    SconeError
    ├── ConfigError     (ValueError)    an option is out of its range
    ├── InputError      (ValueError)    a prompt or an argument of a call cannot be used
    ├── LabelError      (ValueError)    a verifier has no such label
    ├── ModelError      (TypeError)     a model or tokenizer cannot play the part it was given
    ├── DeviceError     (RuntimeError)  parts that must share a device do not
    ├── ForkError       (RuntimeError)  a forked process lacks the threads of its parent
    └── ForwardError    (RuntimeError)  a model raised, or ran out of memory
        ├── NumericalError              a model returned NaN or infinity
        └── StallError  (TimeoutError)  a model did not answer in time

What leaves a call that was writing has the texts so far in `.partial`.

>>> issubclass(ConfigError, SconeError) and issubclass(ConfigError, ValueError)
True
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from scone.output import Output

__all__ = [
    "ConfigError",
    "DeviceError",
    "ForkError",
    "ForwardError",
    "InputError",
    "LabelError",
    "ModelError",
    "NumericalError",
    "SconeError",
    "StallError",
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

    partial: Output | None = None  # what was written when it was raised


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


class ForkError(SconeError, RuntimeError):
    """A process was forked after an engine had been used with several threads; without this it would hang.

    >>> print(ForkError("this process was forked"))
    this process was forked
    """


class ForwardError(SconeError, RuntimeError):
    """A model raised, ran out of memory or did not answer; the message names it and the token that was to be written.

    The texts as far as they were written are in `.partial`, an Output with NaN for scores; what the model raised is the
    `__cause__`. The engine can be used on.

    >>> from scone.decode import Verifier
    >>> Verifier.from_callable(lambda texts: 1 / 0).score("any")
    Traceback (most recent call last):
    scone.errors.ForwardError: the verifier <lambda> raised ZeroDivisionError: division by zero
    """


class NumericalError(ForwardError):
    """A model returned NaN or infinity; the message names the model.

    >>> from scone.decode import Verifier
    >>> Verifier.from_callable(lambda texts: [float("nan")]).score("any")
    Traceback (most recent call last):
    scone.errors.NumericalError: the verifier <lambda> returned NaN in 1 of 1 values
    """


class StallError(ForwardError, TimeoutError):
    """A model did not answer within the `timeout` of the call; the message names the model and the token.

    >>> import time
    >>> from scone.decode import Scone, Verifier
    >>> slow = Verifier.from_callable(lambda texts: time.sleep(8) or [1.0] * len(texts))
    >>> Scone.from_pretrained(verifier=slow).generate("The tea", max_new_tokens=3, timeout=4)
    Traceback (most recent call last):
    scone.errors.StallError: the verifier <lambda> did not answer within 4 s, at token 1
    """
