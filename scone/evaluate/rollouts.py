"""Real continuations of the LM for every candidate of some steps: the truth against which an estimate is audited.

A step is a prefix (prompt and some tokens of a text that the LM wrote) with its k likeliest next tokens. For each
candidate the LM finishes the text many times, drawing from the same truncated distribution that decoding draws from.
The tokens are stored, one safetensors file a step, and any verifier can score them later:

    folder/step-<key>.safetensors                 tokens (k, R, remaining), log_p (k,), and the step as metadata
    folder/step-<key>.phi-<verifier>.safetensors  phi (k, R)
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from scone.errors import InputError
from scone.evaluate.continuations import PAD, continue_batch, truncated
from scone.evaluate.progress import Progress
from scone.evaluate.records import key_of
from scone.lm import CausalLM
from scone.seeds import derive

__all__ = ["Prefix", "Rollouts", "Score", "collect", "load_rollouts", "plan_steps", "score_rollouts"]

POSITIONS = {"start": 0, "early": 6, "middle": 12, "end": 20}  # tokens already written, of 25


@dataclass(frozen=True)
class Prefix:
    """One decision of the decoder: which token comes after `prefix`, with `remaining` tokens to write in all."""

    prompt: str
    prefix: str
    place: str  # one of POSITIONS
    remaining: int
    prefix_ids: tuple[int, ...]
    candidates: tuple[int, ...]
    seed: int


Score = Callable[[Prefix, list[str]], np.ndarray]  # φ of finished texts; the step says which prompt, thus which target


@dataclass(frozen=True)
class Rollouts:
    """A step, the log-probabilities of its candidates and the continuations that the LM wrote for each."""

    step: Prefix
    log_p: np.ndarray  # (k,)
    tokens: np.ndarray  # (k, R, remaining) int32, the candidate first, PAD after the end
    path: Path

    def texts(self, lm: CausalLM) -> list[str]:
        """The k·R finished texts, prompt included, candidate by candidate."""
        rows = self.tokens.reshape(-1, self.tokens.shape[-1])
        return [lm.decode([*self.step.prefix_ids, *row[row != PAD].tolist()]) for row in rows]


def plan_steps(
    lm: CausalLM, prompts: Sequence[str], *, length: int = 25, places: Sequence[str] = tuple(POSITIONS),
    top_k: int = 10, seed: int = 0,
) -> Iterator[tuple[Prefix, np.ndarray]]:  # fmt: skip
    """For each prompt let the LM write one text, and cut it at the places: (step, log_p of its candidates)."""
    for prompt in prompts:
        prompt_ids = lm.encode(prompt)
        written = _longest_text(lm, prompt_ids, length, top_k, derive("text", seed, prompt))
        for place in places:
            position = min(POSITIONS[place], length - 1)
            prefix = lm.decode([*prompt_ids, *written[:position]])
            ids = lm.encode(prefix)  # as an engine would read the prefix
            candidates, log_p = truncated(lm.prefill([ids]).logits.cpu(), top_k)
            step = Prefix(prompt, prefix, place, length - position, tuple(ids), tuple(candidates[0].tolist()), seed)
            yield step, log_p[0].numpy()


def collect(
    lm: CausalLM, prompts: Sequence[str], folder: Path, *, rollouts: int = 72, length: int = 25,
    places: Sequence[str] = tuple(POSITIONS), top_k: int = 10, seed: int = 0, say: Callable[[str], None] = print,
) -> list[Rollouts]:  # fmt: skip
    """Draw what `folder` lacks, and return all of it. Killed at any moment, it goes on at the step it was at."""
    folder.mkdir(parents=True, exist_ok=True)
    progress = Progress(len(prompts) * len(places), "steps", say=say)
    stored = []
    steps = plan_steps(lm, prompts, length=length, places=places, top_k=top_k, seed=seed)
    for step, log_p in steps:
        path = folder / f"step-{key_of(asdict(step))}.safetensors"
        kept = _read(path) if path.exists() else None
        if kept is not None and kept.tokens.shape[1] >= rollouts:
            stored.append(kept)
            progress.skip()
            continue
        per_candidate = []
        for first in step.candidates:
            draw = derive("rollout", seed, step.prefix, first)
            drawn = continue_batch(lm, step.prefix_ids, rollouts, step.remaining, top_k=top_k, seed=draw, first=first)
            per_candidate.append(drawn.numpy().astype(np.int32))
        tokens = np.stack(per_candidate)  # (k, R, remaining)
        stored.append(Rollouts(step, log_p, tokens, path))
        for stale in folder.glob(f"{path.stem}.phi-*"):
            stale.unlink()
        _write(path, {"tokens": tokens, "log_p": log_p}, {"step": json.dumps(asdict(step))})
        progress.advance(f"{step.place:6s} {step.prefix!r}")
    return stored


def load_rollouts(folder: Path) -> list[Rollouts]:
    """Everything that `collect` stored in `folder`, in the order in which it was drawn."""
    paths = [path for path in folder.glob("step-*.safetensors") if ".phi-" not in path.name]
    paths.sort(key=lambda path: (path.stat().st_mtime_ns, path.name))
    if not paths:
        raise InputError(f"folder has no rollouts (step-*.safetensors): {folder}")
    return [_read(path) for path in paths]


def score_rollouts(
    stored: Sequence[Rollouts], lm: CausalLM, score: Score, name: str, *, say: Callable[[str], None] = print
) -> list[np.ndarray]:
    """φ of every rollout, (k, R) for each step; `name` must change whenever the verifier does."""
    progress = Progress(len(stored), "steps scored", say=say)
    phis = []
    for rollouts in stored:
        path = rollouts.path.with_name(f"{rollouts.path.stem}.phi-{name}.safetensors")
        phi = load_file(path)["phi"] if path.exists() else None
        if phi is None or phi.shape != rollouts.tokens.shape[:2]:
            values = score(rollouts.step, rollouts.texts(lm))
            phi = np.asarray(values, dtype=np.float64).reshape(rollouts.tokens.shape[:2])
            _write(path, {"phi": phi}, {})
            progress.advance()
        else:
            progress.skip()
        phis.append(phi)
    return phis


def _longest_text(lm: CausalLM, prompt: Sequence[int], length: int, top_k: int, seed: int) -> list[int]:
    """The tokens after the prompt of the longest of four drawn texts, without its end token."""
    drawn = continue_batch(lm, prompt, 4, length, top_k=top_k, seed=seed).tolist()
    return max(([token for token in row if token != PAD and token not in lm.stop_ids] for row in drawn), key=len)


def _read(path: Path) -> Rollouts:
    with safe_open(path, "np") as file:
        fields = json.loads(file.metadata()["step"])
        fields.update(prefix_ids=tuple(fields["prefix_ids"]), candidates=tuple(fields["candidates"]))
        return Rollouts(Prefix(**fields), file.get_tensor("log_p"), file.get_tensor("tokens"), path)


def _write(path: Path, tensors: dict[str, np.ndarray], metadata: dict[str, str]) -> None:
    """Under another name first: a file that is there is whole."""
    partial = path.with_suffix(f".partial-{os.getpid()}-{time.monotonic_ns()}")
    save_file({name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}, partial, metadata=metadata)
    os.replace(partial, path)
