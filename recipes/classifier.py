"""Train a verifier: low-rank adapters on MiniLM's encoder, its pooler, and a classifier calibrated on held-out text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer

from recipes.adapters import add_adapters
from recipes.loop import Run
from scone.embedded.encoders import fresh_classifier
from scone.embedded.packages import MINILM

LONGEST = 96


@dataclass(frozen=True)
class Example:
    """A text and what should be said of it: the probability of each class."""

    text: str
    target: tuple[float, ...]

    @property
    def label(self) -> int:
        """The likeliest class."""
        return int(np.argmax(self.target))


@dataclass(frozen=True)
class Task:
    """What a verifier is trained for."""

    name: str
    labels: tuple[str, ...]
    groups: dict[str, list[Example]]
    """Training texts by group; a batch takes equally from each."""
    validation: list[Example]
    rank: int = 24


def word_pieces() -> Tokenizer:
    """MiniLM's tokenizer, cutting at `LONGEST` tokens and never padding."""
    tokenizer = Tokenizer.from_file(str(MINILM.locate() / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(LONGEST)
    return tokenizer


def stored_whole(name: str) -> bool:
    """Whether a parameter is trained and stored as it is: classifier, pooler, and the encoder's layer norms."""
    return name.startswith("classifier") or ".pooler." in name or (".LayerNorm." in name and ".encoder." in name)


def break_off(text: str, random: np.random.Generator, chance: float = 0.4, shortest: int = 6) -> str:
    """The text, or with this chance its beginning only: verifiers judge texts that stop in mid-sentence."""
    words = text.split()
    if len(words) <= shortest or random.random() >= chance:
        return text
    return " ".join(words[: random.integers(shortest, len(words))])


def prepare(
    task: Task, folder: Path, minutes: float, rate: float = 1.5e-3, rows: int = 16, workers: int = 2, seed: int = 0
) -> Run:
    """A run of so many minutes; the model that it returns still carries its adapters."""
    tokenizer = word_pieces()
    model = fresh_classifier(task.labels).requires_grad_(False)
    torch.manual_seed(seed)
    add_adapters(model, task.rank)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name.endswith((".down", ".up")) or stored_whole(name))
    pools = list(task.groups.values())
    glance = task.validation[:: max(1, len(task.validation) // 250)]

    def loss(replica: torch.nn.Module, random: np.random.Generator) -> tuple[torch.Tensor, int]:
        # many are drawn and neighbours in length are kept, so that hardly any padding is computed
        drawn = [pool[random.integers(len(pool))] for pool in pools for _ in range(4 * rows // len(pools))]
        cut = [(break_off(example.text, random), example.target) for example in drawn]
        cut.sort(key=lambda pair: len(pair[0]))
        begin = random.integers(0, len(cut) - rows + 1)
        chosen = cut[begin : begin + rows]
        ids, mask = padded(tokenizer, [text for text, _ in chosen])
        logits = replica(input_ids=ids, attention_mask=mask).logits
        target = torch.tensor([target for _, target in chosen])
        return torch.nn.functional.cross_entropy(logits, target), ids.numel()

    def report(snapshot: torch.nn.Module, state: dict) -> None:
        probability = predict(snapshot, tokenizer, [example.text for example in glance])
        right = probability.argmax(-1) == np.array([example.label for example in glance])
        print(
            f"{task.name}: {state['spent'] / 60:.1f} min, step {state['step']}, loss {state['loss']:.3f}, "
            f"validation {right.mean():.4f}",
            flush=True,
        )

    def scale(name: str) -> float:
        # a full matrix moves its output by as many steps as it has columns, a thin factor by its rank only
        return 1.0 if name.endswith((".down", ".up")) else 0.5 if name.startswith("classifier") else 0.1

    return Run(
        model, loss, report, folder, minutes, rate, every=2.0, workers=workers, seed=seed, decay=0.98, scale=scale
    )


def padded(tokenizer: Tokenizer, texts: Sequence[str]) -> tuple[torch.Tensor, torch.Tensor]:
    """(N, T) ids and attention mask."""
    rows = [encoding.ids for encoding in tokenizer.encode_batch(list(texts))]
    longest = max(map(len, rows))
    ids = torch.tensor([row + [0] * (longest - len(row)) for row in rows])
    return ids, (ids != 0).long()


@torch.no_grad()
def predict(model: torch.nn.Module, tokenizer: Tokenizer, texts: Sequence[str]) -> np.ndarray:
    """(N, classes): the model's probabilities."""
    order = sorted(range(len(texts)), key=lambda index: len(texts[index]))
    found: np.ndarray | None = None
    for begin in range(0, len(order), 64):
        rows = order[begin : begin + 64]
        ids, mask = padded(tokenizer, [texts[index] for index in rows])
        probability = model(input_ids=ids, attention_mask=mask).logits.softmax(-1).numpy()
        if found is None:
            found = np.empty((len(texts), probability.shape[1]), dtype=np.float32)
        found[rows] = probability
    assert found is not None
    return found


def calibration_error(probability: np.ndarray, label: np.ndarray, bins: int = 10) -> float:
    """Expected calibration error of the predicted class: how far confidence is from accuracy, over equal-width bins."""
    confidence = probability.max(-1)
    right = probability.argmax(-1) == label
    where = np.minimum((confidence * bins).astype(int), bins - 1)
    gaps = [
        abs(right[where == b].mean() - confidence[where == b].mean()) * (where == b).mean() for b in np.unique(where)
    ]
    return float(np.sum(gaps))


@torch.no_grad()
def calibrate(model: torch.nn.Module, tokenizer: Tokenizer, examples: Sequence[Example]) -> float:
    """Divide the classifier's logits by the temperature that makes held-out text likeliest; returns it."""
    log_probability = torch.from_numpy(np.log(predict(model, tokenizer, [example.text for example in examples])))
    label = torch.tensor([example.label for example in examples])
    temperatures = np.geomspace(0.4, 4.0, 93)
    losses = [float(torch.nn.functional.cross_entropy(log_probability / t, label)) for t in temperatures]
    best = float(temperatures[int(np.argmin(losses))])
    for parameter in model.get_submodule("classifier").parameters():
        parameter.div_(best)
    return best
