"""Models and tokenizers by name: a Hub id, a local folder, or one of those that come with scone."""

from __future__ import annotations

import logging
import os
from typing import Any

import torch
from safetensors import SafetensorError

from scone.errors import DeviceError, InputError, ModelError

__all__ = ["EMBEDDED", "check_placement", "load_causal_lm", "load_classifier", "load_masked_lm"]

_log = logging.getLogger(__name__)

EMBEDDED = "embedded"
GEMMA = f"{EMBEDDED}:gemma-3-270m"
_CLASSIFIERS = ("sentiment", "toxicity", "topic")


def load_causal_lm(name: str, **options: Any) -> tuple[Any, Any]:
    """A causal LM and its tokenizer, ready for use; options: device, dtype, device_map, trust_remote_code.

    >>> load_causal_lm("embedded")[0].config.model_type
    'llama'
    """
    check_placement(**options)
    _log.info("loading the LM %r", name)
    if name == EMBEDDED or name.startswith(EMBEDDED + ":"):
        from scone import embedded

        if name not in (EMBEDDED, GEMMA):
            raise InputError(f"lm must be {EMBEDDED!r}, {GEMMA!r}, a folder or an id of the Hub, got {name!r}")
        return _placed(embedded.load_lm() if name == EMBEDDED else embedded.load_gemma(), **options)
    from transformers import AutoModelForCausalLM

    return _from_hub(AutoModelForCausalLM, "lm", name, **options)


def load_masked_lm(name: str, **options: Any) -> tuple[Any, Any]:
    """A masked LM and its tokenizer.

    >>> load_masked_lm("embedded")[0].config.model_type
    'bert'
    """
    check_placement(**options)
    _log.info("loading the masked LM %r", name)
    if name == EMBEDDED:
        from scone import embedded

        return _placed(embedded.load_masked_lm(), **options)
    from transformers import AutoModelForMaskedLM

    return _from_hub(AutoModelForMaskedLM, "masked_lm", name, **options)


def load_classifier(name: str, **options: Any) -> tuple[Any, Any]:
    """A sequence classifier and its tokenizer; "embedded:sentiment", "embedded:toxicity" and "embedded:topic" are ours.

    >>> load_classifier("embedded:mood")
    Traceback (most recent call last):
    scone.errors.InputError: verifier must be one of embedded:sentiment, embedded:toxicity, embedded:topic, got 'embedded:mood'
    """
    check_placement(**options)
    _log.info("loading the verifier %r", name)
    if name == EMBEDDED or name.startswith(EMBEDDED + ":"):
        kind = name.partition(":")[2] or "sentiment"
        if kind not in _CLASSIFIERS:
            known = ", ".join(f"{EMBEDDED}:{c}" for c in _CLASSIFIERS)
            raise InputError(f"verifier must be one of {known}, got {name!r}")
        from scone import embedded

        return _placed(embedded.load_classifier(kind), **options)
    from transformers import AutoModelForSequenceClassification

    return _from_hub(AutoModelForSequenceClassification, "verifier", name, **options)


def check_placement(
    device: str | torch.device | None = None, dtype: torch.dtype | str | None = None, **others: Any
) -> None:
    """Raise before anything is loaded where it could not be put in place.

    >>> check_placement(dtype="float128")
    Traceback (most recent call last):
    scone.errors.InputError: dtype must be 'auto' or a dtype of torch such as 'bfloat16', got 'float128'
    """
    try:
        kind = torch.device("cpu" if device is None else device).type
    except RuntimeError as error:
        raise InputError(f"device must be a device of torch such as 'cpu' or 'cuda:0', got {device!r}") from error
    if kind == "cuda" and not torch.cuda.is_available():
        raise DeviceError(f"device must be one that torch can use here, got {str(device)!r} without CUDA")
    named = dtype is None or dtype == "auto" or isinstance(getattr(torch, str(dtype), dtype), torch.dtype)
    if not named:
        raise InputError(f"dtype must be 'auto' or a dtype of torch such as 'bfloat16', got {dtype!r}")


def _from_hub(
    auto: Any,
    argument: str,
    name: str,
    *,
    device: str | torch.device | None = None,
    dtype: torch.dtype | str | None = None,
    device_map: Any = None,
    trust_remote_code: bool = False,
) -> tuple[Any, Any]:
    from transformers import AutoTokenizer

    options: dict[str, Any] = {"use_safetensors": True, "trust_remote_code": trust_remote_code}
    if dtype is not None:
        options["dtype"] = dtype
    if device_map is not None:
        options["device_map"] = device_map
    expected = f"{argument} must be {EMBEDDED!r}, a folder or an id of the Hub, got {name!r}"
    if name.startswith(("/", ".", "~")) and not os.path.isdir(name):
        raise InputError(f"{expected}: there is no such folder")
    try:
        model, found = auto.from_pretrained(name, output_loading_info=True, ignore_mismatched_sizes=True, **options)
        _check_whole(argument, name, model, found)
        tokenizer = AutoTokenizer.from_pretrained(name, trust_remote_code=trust_remote_code)
    except (OSError, ValueError, SafetensorError) as error:
        first_line = str(error).strip().partition("\n")[0]
        raise InputError(f"{expected}: {first_line}") from error
    return (model if device is None or device_map is not None else model.to(device)), tokenizer


def _check_whole(argument: str, name: str, model: Any, found: dict[str, Any]) -> None:
    """Raise where a weight was not in the files, or of another shape: it would be random, another one at each load."""
    of = f"{argument} must hold all weights of a {type(model).__name__}, got {name!r}"
    missing, others = sorted(found.get("missing_keys", ())), sorted(found.get("mismatched_keys", ()))
    if missing:
        raise ModelError(f"{of} without {missing[0]}" + (f" and {len(missing) - 1} more" if missing[1:] else ""))
    if others:
        key, given, expected = others[0]
        raise ModelError(f"{of} with {key} of shape {tuple(given)}, expected {tuple(expected)}")


def _placed(
    loaded: tuple[Any, Any],
    *,
    device: str | torch.device | None = None,
    dtype: torch.dtype | str | None = None,
    device_map: Any = None,
    trust_remote_code: bool = False,
) -> tuple[Any, Any]:
    model, tokenizer = loaded
    wanted = getattr(torch, dtype) if isinstance(dtype, str) and dtype != "auto" else dtype
    if isinstance(wanted, torch.dtype):
        model = model.to(wanted)
    return (model if device is None else model.to(device)), tokenizer
