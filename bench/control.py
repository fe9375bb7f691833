"""Control and fluency of the default against `paper()`: the same prompts, the same seeds, no clock."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field

import torch
from torch import Tensor

from bench.tables import markdown
from scone.decode import Scone, SconeConfig
from scone.evaluate.fluency import negative_log_likelihood
from scone.evaluate.judges import load_judge
from scone.evaluate.tasks import TASKS, builtin_prompts

__all__ = ["control", "difference", "mean_and_error"]

STRENGTHS = (12, 6, 3)


@dataclass
class Written:
    """The texts of one preset."""

    texts: list[str] = field(default_factory=list)
    nll: list[float] = field(default_factory=list)  # a token, of each continuation under the LM


def control(engine: Scone, prompts: int, tokens: int) -> str:
    """A text of each preset for each of so many prompts of the sentiment task, evenly spread over it."""
    known = [prompt.text for prompt in builtin_prompts(TASKS["sentiment"])]
    chosen = [known[i * len(known) // prompts] for i in range(prompts)]
    presets = {"plain": SconeConfig.plain(), "paper": SconeConfig.paper(), "default": SconeConfig()}
    presets |= {f"default, strength {strength}": SconeConfig(strength=strength) for strength in STRENGTHS}
    found = {name: Written() for name in presets}
    for i, prompt in enumerate(chosen):
        for name, config in presets.items():
            out = engine.with_config(config).generate([prompt], max_new_tokens=tokens, seed=i)
            nll, count = negative_log_likelihood(engine.parts.lm, prompt, out.continuations)
            found[name].texts.append(out.texts[0])
            found[name].nll.append(float(nll[0]) / int(count[0]))
        print(f"{i + 1} of {prompts} prompts", file=sys.stderr, flush=True)
    judge = load_judge("sentiment")
    measures = {
        name: (
            engine.verifier.score(written.texts),
            torch.from_numpy(judge.score(written.texts, "positive")).float(),
            torch.tensor(written.nll),
        )
        for name, written in found.items()
    }
    rows = [[name, *map(mean_and_error, own)] for name, own in measures.items()]
    rows += [
        [f"{name} less paper", *map(difference, own, measures["paper"])]
        for name, own in measures.items()
        if name.startswith("default")
    ]
    return markdown(["preset", "φ", "independent judge", "log-perplexity"], rows) + (
        f"\nOne text of {tokens} tokens after each of {prompts} prompts of the sentiment task, with the standard error over the texts;\n"
        "differences are taken text by text. Log-perplexity: mean over texts, under the LM itself. The lower strengths show what\n"
        "the default's lookahead does where it steers no harder than `paper()`.\n"
    )


def difference(first: Tensor, second: Tensor) -> str:
    """The mean of first - second and its standard error.

    >>> difference(torch.tensor([2.0, 4.0]), torch.tensor([1.0, 1.0]))
    '+2.000 ± 1.000'
    """
    return mean_and_error(first - second, "+")


def mean_and_error(values: Tensor, sign: str = "") -> str:
    """The mean and its standard error.

    >>> mean_and_error(torch.tensor([1.0, 3.0]))
    '2.000 ± 1.000'
    """
    error = float(values.std()) / len(values) ** 0.5 if len(values) > 1 else float("nan")
    return f"{float(values.mean()):{sign}.3f} ± {error:.3f}"
