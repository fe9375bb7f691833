"""Train the independent judges: logistic regression on hashed words, on documents that no verifier learns from."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import torch
from safetensors.numpy import save_file

from scone.embedded.names import LABELS
from scone.embedded.train.classifier import Example, break_off
from scone.embedded.train.tasks import EXAMPLES
from scone.evaluate.judges import BUCKETS, BagOfWords, buckets

EPOCHS, ROWS, RATE = 6, 64, 0.1


def train(name: str, path: Path) -> tuple[BagOfWords, dict]:
    """Train the judge of an attribute and write it; returns it and what the card says of its training."""
    begin = time.monotonic()
    random = np.random.default_rng(0)
    torch.manual_seed(0)
    groups = EXAMPLES[name]("judge")
    examples = _balanced(list(groups.values()), len(LABELS[name]))
    weight = torch.nn.Parameter(torch.zeros(BUCKETS, len(LABELS[name])))
    bias = torch.nn.Parameter(torch.zeros(len(LABELS[name])))
    optimizer = torch.optim.Adagrad([weight, bias], lr=RATE, initial_accumulator_value=1e-4)
    steps = EPOCHS * len(examples) // ROWS
    for _ in range(steps):
        chosen = [examples[index] for index in random.integers(len(examples), size=ROWS)]
        bags = [torch.from_numpy(buckets(break_off(example.text, random))) for example in chosen]
        sizes = torch.tensor([max(1, len(bag)) for bag in bags])
        offsets = torch.cumsum(torch.tensor([0, *map(len, bags[:-1])]), 0)
        total = torch.nn.functional.embedding_bag(torch.cat(bags), weight, offsets, mode="sum")
        logits = total / sizes[:, None] ** 0.5 + bias
        target = torch.tensor([example.target for example in chosen])
        loss = torch.nn.functional.cross_entropy(logits, target) + 2e-6 * weight.square().sum()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
    judge = BagOfWords(LABELS[name], weight.detach().half().float().numpy(), bias.detach().half().float().numpy())
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file({"weight": judge.weight.astype(np.float16), "bias": judge.bias.astype(np.float16)}, path)
    seconds = round(time.monotonic() - begin)
    return judge, {"documents": len(examples), "steps": steps, "seconds": seconds}


def _balanced(groups: list[list[Example]], classes: int) -> list[Example]:
    """All examples, the rarer classes repeated until none is rarer than half of the commonest."""
    by_label: list[list[Example]] = [[] for _ in range(classes)]
    for group in groups:
        for example in group:
            by_label[example.label].append(example)
    most = max(map(len, by_label))
    return [example for group in by_label for example in group * max(1, round(most / 2 / max(1, len(group))))]
