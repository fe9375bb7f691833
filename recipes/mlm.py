"""Train the masked LM: MiniLM's encoder learns to fill gaps, its word embeddings stay as they are.

The decoder is the word-embedding table itself plus a bias, after a transform that begins as the identity. Only masked
positions go through it.
"""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer

from recipes import text
from recipes.loop import Run
from recipes.tokens import MASK, UNK, TokenStore, Windows, corrupt, hide, tokenise
from scone.embedded.cache import cache_folder
from scone.embedded.encoders import fresh_masked_lm, load_masked_lm
from scone.embedded.packages import MINILM
from scone_kernels.inference import accelerate

DOMAINS = {"wikipedia": 0.6, "reviews": 0.4}  # and their parts of a batch: the harder one has more
TOKENS_PER_STEP = 8192  # a step of Muon costs as much as some 800 tokens, however many it is for
PIECES = 4  # of a step, one after the other, so that the logits stay small
LATE = {"scattered": 0.16, "spans": 0.10}
"""Many gaps teach much at once; in the last two fifths of a run there are as few as a Gibbs update leaves."""
LENGTHS = ((32, 0.3), (64, 0.5), (96, 0.2))


def stores(split: str) -> dict[str, TokenStore]:
    """The tokens of each domain in a split (`train`, which includes what the judges use, `validation`, `test`)."""
    tokenizer = Tokenizer.from_file(str(MINILM.locate() / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    wanted = ("train", "judge") if split == "train" else (split,)
    found = {}
    for domain in DOMAINS:
        path = cache_folder() / "text" / f"{domain}-{split}.npz"
        if not path.exists():
            store = tokenise((body for name, body in _documents(domain) if text.split_of(name) in wanted), tokenizer)
            with open(path.with_suffix(".new"), "wb") as handle:
                np.savez(handle, ids=store.ids, starts=store.starts, ends=store.ends)
            path.with_suffix(".new").replace(path)
        with np.load(path) as arrays:
            found[domain] = TokenStore(arrays["ids"], arrays["starts"], arrays["ends"])
    return found


def _documents(domain: str) -> list[tuple[str, list[str]]]:
    if domain == "wikipedia":
        return [(article.title, list(article.paragraphs)) for article in text.wikipedia()]
    return [(review.text, [review.text]) for review in text.reviews()]


def masked_logits(model: Any, seen: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
    """(M, V): the logits at the chosen positions only; in the last layer the others are read and no more."""
    return model.cls(accelerate(model.bert).read(lambda hidden: hidden[chosen], input_ids=seen)).float()


def draw(windows: dict[str, Windows], random: np.random.Generator) -> np.ndarray:
    """One piece of a batch: of both domains, all of one length, in half of the pieces whole sentences."""
    length = int(random.choice([size for size, _ in LENGTHS], p=[chance for _, chance in LENGTHS]))
    whole = random.random() < 0.5
    if whole:
        length = int(random.integers(max(16, length - 31), length + 1))
    parts = []
    for domain, source in windows.items():
        rows = round(TOKENS_PER_STEP // PIECES // length * DOMAINS[domain])
        parts.append(source.whole_sentences(rows, length, random) if whole else source.cut_off(rows, length, random))
    return np.concatenate(parts)


@torch.no_grad()
def accuracy(
    model: torch.nn.Module, window: np.ndarray, rate: float = 0.15, seed: int = 0, hidden: float = 1.0
) -> tuple[float, float]:
    """(top-1, mean cross-entropy) over the tokens that are asked for in the windows, `rate` of all.

    A share of `hidden` of them is replaced by [MASK]; of the others half are another word and half are left. With 0.8
    this is how BERT's training chooses them, and what the usual scripts print as a masked LM's accuracy.
    """
    random = np.random.default_rng(seed)
    chosen = (random.random(window.shape) < rate) & (window > MASK) & (window != UNK)
    seen = hide(window, chosen, random, hidden=hidden, left=(1 - hidden) / 2)
    model.eval()
    right, loss, count = 0, 0.0, 0
    for begin in range(0, len(window), 64):
        rows = slice(begin, begin + 64)
        logits = masked_logits(model, torch.from_numpy(seen[rows]), torch.from_numpy(chosen[rows]))
        target = torch.from_numpy(window[rows][chosen[rows]])
        right += int((logits.argmax(-1) == target).sum())
        loss += float(torch.nn.functional.cross_entropy(logits, target, reduction="sum"))
        count += len(target)
    return right / count, loss / count


def evaluation_windows(split: str, rows: int, length: int = 64) -> dict[str, np.ndarray]:
    """Fixed windows of a held-out split, half of whole sentences."""
    random = np.random.default_rng(1)
    found = {}
    for domain, store in stores(split).items():
        windows = Windows(store)
        half = rows // 2
        parts = windows.whole_sentences(half, length, random), windows.cut_off(half, length, random)
        found[domain] = np.concatenate(parts)
    return found


def prepare(
    folder: Path,
    minutes: float,
    rate: float = 1e-3,
    every: float = 10.0,
    workers: int = 2,
    onwards: bool = False,
    precision: torch.dtype = torch.float32,
) -> Run:
    """A run of so many minutes that evaluates, notes the curve and writes a checkpoint every `every` minutes.

    It begins with MiniLM, or `onwards` with the masked LM that scone ships.
    """
    model = load_masked_lm()[0] if onwards else fresh_masked_lm()
    model.set_attn_implementation("eager")  # for windows this short sdpa's backward is slower (Zen 4, bfloat16)
    for table in (model.bert.embeddings.word_embeddings, model.bert.embeddings.token_type_embeddings):
        table.requires_grad_(False)
    windows = {domain: Windows(store) for domain, store in stores("train").items()}
    held_out = evaluation_windows("validation", 128)

    def loss(replica: torch.nn.Module, random: np.random.Generator) -> tuple[torch.Tensor, int]:
        window = draw(windows, random)
        seen, chosen = corrupt(window, random, **(LATE if run.clock.share > 0.6 else {}))
        logits = masked_logits(replica, torch.from_numpy(seen), torch.from_numpy(chosen))
        return torch.nn.functional.cross_entropy(logits, torch.from_numpy(window[chosen])), window.size

    def report(snapshot: torch.nn.Module, state: dict) -> None:
        scores = {domain: accuracy(snapshot, window) for domain, window in held_out.items()}
        _note(folder / "curve.csv", state, scores)

    def scale(name: str) -> float:
        # the bias must travel as far as the logarithms of word frequencies differ
        return 15.0 if name == "cls.predictions.bias" else 1.0

    run = Run(
        model, loss, report, folder, minutes, rate / 2, every=every, workers=workers, decay=0.98, scale=scale,
        matrix_rate=rate, pieces=PIECES, precision=precision,
    )  # fmt: skip
    return run


def _note(path: Path, state: dict, scores: dict[str, tuple[float, float]]) -> None:
    """Print a line of the curve and keep it."""
    row = {"minutes": round(state["spent"] / 60, 1), "step": state["step"], "tokens": state["tokens"]}
    row["train_loss"] = round(state["loss"], 3)
    for domain, (top1, loss) in scores.items():
        row |= {f"{domain}_top1": round(top1, 4), f"{domain}_loss": round(loss, 3)}
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = not path.exists()
    with open(path, "a", newline="") as handle:
        writer = csv.DictWriter(handle, list(row))
        if fresh:
            writer.writeheader()
        writer.writerow(row)
    print(" ".join(f"{key}={value}" for key, value in row.items()), flush=True)
