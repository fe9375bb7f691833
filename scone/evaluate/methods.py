"""The methods that are compared. Each continues one prompt several times; settings are those of the paper's appendix B.

random       sampling with transformers' defaults              topk10       sampling from the ten likeliest tokens
beamsearch   5 beams, sampled at temperature 0.3               myopic       the verifier on prefix + candidate
bon          the best of 10, drawn with top_p 0.9, min_p 0.1   bon-matched  the best of as many as fit SConE's time
scone        the decoder; scone:paper and scone:fast are presets, scone:strength=8,lookahead=nothing are changes
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from scone.config import SconeConfig
from scone.errors import InputError
from scone.evaluate.continuations import PAD, continue_batch, truncated
from scone.evaluate.cost import note_sequences
from scone.evaluate.models import Models
from scone.lm import CausalLM
from scone.lookahead.parts import MASKED_LM
from scone.reweigh import reweigh
from scone.seeds import derive
from scone.settings import parse_settings

__all__ = ["METHODS", "Job", "Method", "generate", "parse_method"]

METHODS = ("random", "beamsearch", "bon", "topk10", "myopic", "bon-matched", "scone")

MYOPIC_STRENGTH = SconeConfig().strength  # equal strength: what remains is the difference that looking ahead makes


@dataclass(frozen=True)
class Method:
    """A method and the settings that determine what it writes."""

    name: str  # as it was asked for
    kind: str  # one of METHODS
    config: SconeConfig | None = None  # of scone
    tries: int | None = None  # of bon and bon-matched; None until it is known how many fit
    strength: float | None = None  # of myopic

    @property
    def settings(self) -> dict[str, Any]:
        """What determines what it writes, as records have it."""
        own = {"kind": self.kind, "tries": self.tries, "strength": self.strength}
        config = {} if self.config is None else {"config": self.config.as_dict()}
        return {name: value for name, value in own.items() if value is not None} | config

    @property
    def uses_masked_lm(self) -> bool:
        """Whether its lookahead needs one."""
        return self.config is not None and MASKED_LM in self.config.lookahead.needs


@dataclass(frozen=True)
class Job:
    """What to write: `samples` continuations of a prompt, for a target."""

    prompt: str
    target: str
    avoid: bool
    samples: int
    max_new_tokens: int
    seed: int
    verdict: str = "text"  # what is judged, as of SconeConfig

    @property
    def judged_prompt(self) -> str:
        """As much of the prompt as is judged."""
        return "" if self.verdict == "continuation" else self.prompt

    def judged(self, lm: CausalLM, continuations: Iterable[Sequence[int]]) -> list[str]:
        """What is judged of the prompt with each of some continuations."""
        prompt_ids = lm.encode(self.prompt)
        start = len(lm.decode(prompt_ids)) if self.verdict == "continuation" else 0
        return [lm.decode([*prompt_ids, *ids])[start:] for ids in continuations]


def parse_method(text: str) -> Method:
    """A method from its name and perhaps settings after a colon.

    >>> parse_method("scone:paper").config == SconeConfig.paper()
    True
    >>> parse_method("scone:lookahead=nothing").settings["config"]["lookahead"]
    {'kind': 'Nothing'}
    >>> parse_method("bon:20").tries, parse_method("myopic:8").strength
    (20, 8.0)
    """
    kind, colon, settings = text.partition(":")
    if kind not in METHODS or (colon and kind not in ("scone", "bon", "bon-matched", "myopic")):
        raise InputError(f"method must be one of {', '.join(METHODS)}, perhaps with settings, got {text!r}")
    if kind == "scone":
        return Method(text, kind, config=parse_settings(settings))
    try:
        if kind == "myopic":
            return Method(text, kind, strength=float(settings.removeprefix("strength=") or MYOPIC_STRENGTH))
        if kind in ("bon", "bon-matched"):
            return Method(text, kind, tries=int(settings) if settings else 10 if kind == "bon" else None)
    except ValueError:
        raise InputError(f"the settings of {kind} must be a number, got {settings!r}") from None
    return Method(text, kind)


def generate(method: Method, models: Models, job: Job) -> list[list[int]]:
    """Token ids of `job.samples` continuations, without what follows the end of a text."""
    writers: dict[str, Callable[[Method, Models, Job], list[list[int]]]] = {
        "random": lambda method, models, job: _sample(models, job, job.samples, top_k=50),
        "topk10": lambda method, models, job: _sample(models, job, job.samples, top_k=10),
        "beamsearch": _beamsearch,
        "bon": _best_of_n,
        "bon-matched": _best_of_n,
        "myopic": _myopic,
        "scone": _scone,
    }
    return writers[method.kind](method, models, job)


def _sample(models: Models, job: Job, rows: int, **settings: Any) -> list[list[int]]:
    """`rows` continuations on the same cache and linear layers as the decoder's, so that costs compare."""
    prompt, seed = models.lm.encode(job.prompt), derive(job.seed, job.prompt)
    drawn = continue_batch(models.lm, prompt, rows, job.max_new_tokens, seed=seed, **settings)
    return [_until_end([token for token in row if token != PAD], models.lm.stop_ids) for row in drawn.tolist()]


def _beamsearch(method: Method, models: Models, job: Job) -> list[list[int]]:
    """By transformers' own `generate`."""
    from transformers import GenerationConfig

    lm = models.lm
    pad = lm.tokenizer.pad_token_id if lm.tokenizer.pad_token_id is not None else min(lm.stop_ids, default=0)
    config = GenerationConfig(
        do_sample=True, num_beams=5, temperature=0.3, top_k=50, max_new_tokens=job.max_new_tokens,
        eos_token_id=sorted(lm.stop_ids), pad_token_id=pad,
    )  # fmt: skip
    prompt = torch.tensor([lm.encode(job.prompt)], device=lm.device).expand(job.samples, -1)

    def count(ids: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        note_sequences(lm, len(logits))
        return logits

    with torch.random.fork_rng(), torch.inference_mode():
        torch.manual_seed(derive(job.seed, job.prompt))
        out = lm.model.generate(
            prompt, attention_mask=torch.ones_like(prompt), generation_config=config, logits_processor=[count]
        )
    return [_until_end(row, lm.stop_ids) for row in out[:, prompt.shape[1] :].tolist()]


def _best_of_n(method: Method, models: Models, job: Job) -> list[list[int]]:
    """For each sample the best of `tries` by the verifier."""
    assert method.tries is not None  # the runner has measured it
    drawn = _sample(models, job, job.samples * method.tries, top_p=0.9, min_p=0.1, top_k=50)
    phi = models.score(job.target, job.avoid)(job.judged(models.lm, drawn)).reshape(job.samples, method.tries)
    return [drawn[sample * method.tries + int(phi[sample].argmax())] for sample in range(job.samples)]


@torch.inference_mode()
def _myopic(method: Method, models: Models, job: Job) -> list[list[int]]:
    """Candidates and reweighing as in SConE, with φ(prefix + candidate) in the place of q."""
    lm, score = models.lm, models.score(job.target, job.avoid)
    generator = torch.Generator().manual_seed(derive(job.seed, job.prompt))
    config = SconeConfig(strength=float(method.strength or 0))
    state = lm.select(lm.prefill([lm.encode(job.prompt)]), torch.zeros(job.samples, dtype=torch.int64))
    tokens = torch.full((job.samples, job.max_new_tokens), PAD)
    alive = torch.ones(job.samples, dtype=torch.bool)
    stops = torch.tensor(sorted(lm.stop_ids), dtype=torch.int64)
    for position in range(job.max_new_tokens):
        candidates, log_p = truncated(state.logits.cpu(), 10)  # (samples, 10)
        rows = [tokens[i, :position].tolist() if alive[i] else [] for i in range(job.samples)]
        texts = job.judged(lm, ([*row, c] for row, some in zip(rows, candidates.tolist()) for c in some))
        phi = torch.from_numpy(np.asarray(score(texts))).reshape(candidates.shape)
        p_star = reweigh(log_p.double(), phi[None], config.reweigh, strength=config.strength).exp()
        drawn = candidates.gather(1, torch.multinomial(p_star, 1, generator=generator))[:, 0]
        tokens[:, position] = torch.where(alive, drawn, PAD)
        alive &= ~torch.isin(drawn, stops)
        if not alive.any() or position == job.max_new_tokens - 1:
            break
        state = lm.step(state, drawn)
    return [_until_end([token for token in row if token != PAD], lm.stop_ids) for row in tokens.tolist()]


def _scone(method: Method, models: Models, job: Job) -> list[list[int]]:
    assert method.config is not None
    config = method.config.replace(verdict=job.verdict) if job.verdict != "text" else method.config
    engine = models.engine(job.target, job.avoid, config)
    out = engine.generate(
        [job.prompt], max_new_tokens=job.max_new_tokens, num_return_sequences=job.samples, seed=job.seed
    )
    return [_until_end(list(row), models.lm.stop_ids) for row in out.token_ids]


def _until_end(ids: list[int], stops: frozenset[int]) -> list[int]:
    """The tokens before the first end token."""
    return next((ids[:i] for i, token in enumerate(ids) if token in stops), ids)
