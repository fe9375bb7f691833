"""Engines in EleutherAI's harness (`pip install 'scone[lm-eval]'`): its command line, with a model called scone.

    python -m scone.tools.harness --model scone --model_args verifier=embedded:sentiment,target=positive --tasks TASK

What is generated is steered. What is scored without being generated (multiple choice, perplexity) is scored by the LM as
it is: a verifier judges finished texts and gives no likelihood of a given one.
"""

from __future__ import annotations

from dataclasses import fields
from functools import cache
from typing import Any

import torch

from scone.config import SconeConfig
from scone.decode import Scone
from scone.errors import InputError
from scone.settings import PRESETS

__all__ = ["main", "model_class"]

_CONFIG = {field.name for field in fields(SconeConfig)} - {"lookahead"}


@cache
def model_class() -> Any:
    """The model class, registered with lm-eval as "scone".

    Its arguments: `engine`, a ready one; or `lm`, `masked_lm`, `verifier` and `target` as of `Scone.from_pretrained`,
    `preset` (default, fast, quality, paper or plain) and the plain options of SconeConfig. `seed` is the draws'. The rest is HFLM's.
    """
    try:
        from lm_eval.api.registry import register_model
        from lm_eval.models.huggingface import HFLM
    except ImportError as error:
        raise InputError("the harness needs lm-eval: pip install 'scone[lm-eval]'") from error

    class SconeLM(HFLM):
        """The harness's model of transformers, with our decoding loop."""

        def __init__(
            self,
            engine: Scone | None = None,
            *,
            lm: Any = "embedded",
            pretrained: Any = None,
            seed: int = 0,
            **options: Any,
        ) -> None:
            if engine is None:
                engine, options = _engine(lm if pretrained is None else pretrained, options)
            self.engine, self._seed = engine, seed
            super().__init__(pretrained=engine.lm, tokenizer=engine.lm_tokenizer, **options)

        def _model_generate(self, context: Any, max_length: int, stop: list[str], **options: Any) -> Any:
            return super()._model_generate(
                context, max_length, stop, custom_generate=self.engine.custom_generate, seed=self._seed, **options
            )

        def get_model_info(self) -> dict[str, Any]:
            """What the results file says of the model."""
            return {"model": type(self.engine.lm).__name__, "scone_config": repr(self.engine.config)}

    register_model("scone")(SconeLM)
    return SconeLM


def _engine(lm: Any, options: dict[str, Any]) -> tuple[Scone, dict[str, Any]]:
    """An engine from the arguments that are ours, and the arguments that are not."""
    preset = options.pop("preset", "default")
    if preset not in PRESETS:
        raise InputError(f"preset must be one of {', '.join(PRESETS)}, got {preset!r}")
    models = {name: options.pop(name) for name in ("masked_lm", "verifier", "target") if name in options}
    own = {name: options.pop(name) for name in list(options) if name in _CONFIG}
    device = options.pop("device", None)
    if str(device).startswith("cuda") and not torch.cuda.is_available():
        device = None  # the harness asks for CUDA where nobody has said what to take, and makes do with the CPU
    return Scone.from_pretrained(lm, config=PRESETS[preset]().replace(**own), device=device, **models), options


def main() -> None:
    """The command line of lm-eval, which then knows `--model scone`."""
    model_class()
    from lm_eval.__main__ import cli_evaluate

    cli_evaluate()


if __name__ == "__main__":
    main()
