"""Train the independent judges, bags of hashed words, on documents that no verifier learns from.

Sentiment and toxicity are learned by logistic regression. Topics are told by words too rare for that: there each word
counts by how much likelier it is in one topic than in the others (naive Bayes, all topics equally probable beforehand).
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from safetensors.numpy import save_file

from recipes.classifier import Example, break_off
from recipes.tasks import EXAMPLES
from scone.embedded.names import LABELS
from scone.evaluate.judges import BUCKETS, BagOfWords, buckets

STEPS, ROWS, RATE, DECAY = 3000, 64, 0.1, 2e-6
SMOOTHING, SHARPNESS = 0.5, 1.5  # of naive Bayes, chosen on validation text


def train(name: str, path: Path) -> tuple[BagOfWords, dict]:
    """Train the judge of an attribute and write it; returns it and what the card says of its training."""
    groups = list(EXAMPLES[name]("judge").values())
    judge, training = _naive_bayes(name, groups) if name == "topic" else _logistic_regression(name, groups)
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file({"weight": judge.weight.astype(np.float16), "bias": judge.bias.astype(np.float16)}, path)
    return judge, training


def _naive_bayes(name: str, groups: list[list[Example]]) -> tuple[BagOfWords, dict]:
    count = np.full((BUCKETS, len(LABELS[name])), SMOOTHING)
    for group in groups:
        for example in group:
            np.add.at(count[:, example.label], buckets(example.text), 1)
    weight = np.log(count / count.sum(0))
    weight = SHARPNESS * (weight - weight.mean(1, keepdims=True))
    judge = BagOfWords(LABELS[name], _rounded(weight), np.zeros(len(LABELS[name]), dtype=np.float32))
    return judge, {"texts": sum(map(len, groups))}


def _logistic_regression(name: str, groups: list[list[Example]]) -> tuple[BagOfWords, dict]:
    random = np.random.default_rng(0)
    examples = _balanced(groups, len(LABELS[name]))
    # each text whole, and once more as far as some word: judges, too, read texts that stop in mid-sentence
    bags = [torch.from_numpy(buckets(break_off(e.text, random, chance))) for chance in (0.0, 1.0) for e in examples]
    targets = torch.tensor([example.target for example in examples]).repeat(2, 1)
    weight = torch.nn.Parameter(torch.zeros(BUCKETS, len(LABELS[name])))
    bias = torch.nn.Parameter(torch.zeros(len(LABELS[name])))
    optimizer = torch.optim.Adagrad([weight, bias], lr=RATE, initial_accumulator_value=1e-4)
    for _ in range(STEPS):
        rows = random.integers(len(bags), size=ROWS)
        chosen = [bags[row] for row in rows]
        sizes = torch.tensor([max(1, len(bag)) for bag in chosen])
        offsets = torch.cumsum(torch.tensor([0, *map(len, chosen[:-1])]), 0)
        total = torch.nn.functional.embedding_bag(torch.cat(chosen), weight, offsets, mode="sum")
        loss = torch.nn.functional.cross_entropy(total / sizes[:, None] ** 0.5 + bias, targets[rows])
        optimizer.zero_grad(set_to_none=True)
        (loss + DECAY * weight.square().sum()).backward()
        optimizer.step()
    judge = BagOfWords(LABELS[name], _rounded(weight.detach().numpy()), _rounded(bias.detach().numpy()))
    return judge, {"texts": len(examples), "steps": STEPS}


def _rounded(values: np.ndarray) -> np.ndarray:
    """As they will be when they have been stored."""
    return values.astype(np.float16).astype(np.float32)


def _balanced(groups: list[list[Example]], classes: int) -> list[Example]:
    """All examples, the rarer classes repeated until none is rarer than half of the commonest."""
    by_label: list[list[Example]] = [[] for _ in range(classes)]
    for group in groups:
        for example in group:
            by_label[example.label].append(example)
    most = max(map(len, by_label))
    return [example for group in by_label for example in group * max(1, round(most / 2 / max(1, len(group))))]
