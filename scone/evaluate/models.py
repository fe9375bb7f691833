"""The models of an experiment, loaded once in each process, and fingerprints that tell when they have changed."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch

from scone.config import SconeConfig
from scone.errors import ConfigError
from scone.lm import CausalLM
from scone.verifier import Expression, Verifier

__all__ = ["ModelNames", "Models", "fingerprint", "parse_config"]


@dataclass(frozen=True)
class ModelNames:
    """Hub ids or folders; None is the small model that comes with the package."""

    lm: str | None = None
    masked_lm: str | None = None
    verifier: str | None = None
    perplexity: str | None = None  # None: the LM itself


class Models:
    """The parts of the experiments on one attribute; each is loaded when it is first used."""

    def __init__(self, names: ModelNames, attribute: str) -> None:
        self.names, self.attribute = names, attribute
        self._verifiers: dict[tuple[str, bool], Expression] = {}
        self._engines: dict[tuple[str, bool, SconeConfig], Any] = {}

    @cached_property
    def lm(self) -> CausalLM:
        """The LM that writes."""
        from scone.embedded import load_lm

        return CausalLM(*(load_lm() if self.names.lm is None else _hub("AutoModelForCausalLM", self.names.lm)))

    @cached_property
    def perplexity_lm(self) -> CausalLM:
        """The LM that judges fluency."""
        if self.names.perplexity in (None, self.names.lm):
            return self.lm
        return CausalLM(*_hub("AutoModelForCausalLM", str(self.names.perplexity)))

    @cached_property
    def masked_lm(self) -> tuple[Any, Any]:
        """The masked LM and its tokenizer."""
        from scone.embedded import load_masked_lm

        return load_masked_lm() if self.names.masked_lm is None else _hub("AutoModelForMaskedLM", self.names.masked_lm)

    @cached_property
    def classifier(self) -> tuple[Any, Any]:
        """The classifier behind the verifier, and its tokenizer."""
        from scone.embedded import load_classifier

        if self.names.verifier is None:
            return load_classifier(self.attribute)
        return _hub("AutoModelForSequenceClassification", self.names.verifier)

    @cached_property
    def judge(self) -> Any:
        """The independent judge of the attribute."""
        from scone.evaluate.judges import load_judge

        return load_judge(self.attribute)

    def verifier(self, target: str, avoid: bool = False) -> Expression:
        """φ for a target; `avoid` turns it round."""
        key = (target, avoid)
        if key not in self._verifiers:
            leaf = Verifier(*self.classifier, target=target)
            self._verifiers[key] = ~leaf if avoid else leaf
        return self._verifiers[key]

    def score(self, target: str, avoid: bool = False) -> Callable[[list[str]], np.ndarray]:
        """φ of texts as a plain function: (n,) float64."""
        verifier = self.verifier(target, avoid)
        return lambda texts: verifier.score(texts).double().cpu().numpy()

    def engine(self, target: str, avoid: bool, config: SconeConfig) -> Any:
        """The decoder for a target and a configuration."""
        from scone.decode import Scone

        key = (target, avoid, config)
        if key not in self._engines:
            masked, masked_tokenizer = self.masked_lm
            self._engines[key] = Scone(
                lm=self.lm.model, lm_tokenizer=self.lm.tokenizer, masked_lm=masked,
                masked_lm_tokenizer=masked_tokenizer, verifier=self.verifier(target, avoid), config=config,
            )  # fmt: skip
        return self._engines[key]

    def identity(self) -> dict[str, str]:
        """Fingerprints of everything that a generated text depends on."""
        return {
            "lm": fingerprint(self.lm.model),
            "masked_lm": fingerprint(self.masked_lm[0]),
            "verifier": fingerprint(self.classifier[0]),
        }


def fingerprint(model: torch.nn.Module) -> str:
    """Twelve hex digits that change when the weights do: a hash of names, shapes and of values spread over all tensors.

    >>> one, other = torch.nn.Linear(3, 2), torch.nn.Linear(3, 2)
    >>> fingerprint(one) == fingerprint(one) != fingerprint(other)
    True
    """
    digest = hashlib.blake2b(digest_size=6)
    for name, tensor in sorted(model.state_dict().items()):
        flat = tensor.detach().cpu().reshape(-1)
        stride = max(1, flat.numel() // 4096)
        digest.update(f"{name} {tuple(tensor.shape)}".encode())
        digest.update(flat[::stride].double().numpy().tobytes())
    return digest.hexdigest()


def parse_config(text: str) -> SconeConfig:
    """A configuration from a preset and changes to it, separated by commas.

    >>> parse_config("strength=8,coupled=False").strength
    8.0
    >>> parse_config("paper,chains=1") == SconeConfig.paper(chains=1)
    True
    """
    presets: dict[str, Callable[[], SconeConfig]] = {
        "": SconeConfig, "default": SconeConfig, "paper": SconeConfig.paper, "fast": SconeConfig.fast,
    }  # fmt: skip
    first, _, rest = text.partition(",")
    if "=" in first:
        first, rest = "", text
    if first not in presets:
        raise ConfigError(f"preset must be one of {', '.join(filter(None, presets))}, got {first!r}")
    config = presets[first]()
    fields = asdict(config)
    changes = {}
    for change in filter(None, rest.split(",")):
        name, equals, value = change.partition("=")
        if not equals or name not in fields:
            raise ConfigError(f"a change must be option=value with an option of SconeConfig, got {change!r}")
        changes[name] = _value(value, fields[name])
    return config.replace(**changes)


def _value(text: str, current: Any) -> Any:
    """Read `text` as what the option is now; where that is None, as a number."""
    if text in ("None", "none"):
        return None
    if isinstance(current, bool):
        return {"True": True, "true": True, "False": False, "false": False}.get(text, text)
    for kind in (int, float):
        if isinstance(current, kind) or (current is None and kind is int):
            try:
                return kind(text)
            except ValueError:
                return text  # SconeConfig names what it expected
    return text


def _hub(auto: str, name: str) -> tuple[Any, Any]:
    import transformers

    model = getattr(transformers, auto).from_pretrained(name)
    return model.eval(), transformers.AutoTokenizer.from_pretrained(name)
