"""Bridges between vocabularies: what each token looks like in a text, and where one tokenizer's tokens lie in another's.

The lookahead is in the masked LM's vocabulary, the verifier has its own. Where the two are the same, ids pass straight
through. Otherwise the lookahead is written out as text and read by the verifier's tokenizer, and each pair of tokens
that overlap in the text is aligned with the share of the verifier's token that it covers.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from scone.errors import ModelError
from scone.lm import check_finite, check_known, mark, same_vocabulary, sent
from scone.verifier.kinds import EmbeddingVerifier

__all__ = ["Bridge", "Surfaces", "View"]

_BYTE_FALLBACK = re.compile(r"^<0x([0-9A-Fa-f]{2})>$")


class Surfaces:
    """How each token of a tokenizer looks in the middle of a text, as bytes.

    >>> from scone.embedded import load_masked_lm
    >>> surfaces = Surfaces(load_masked_lm()[1])
    >>> surfaces.write(surfaces.tokenizer("playing chess", add_special_tokens=False)["input_ids"])
    (' playing chess', [(0, 8), (8, 14)])
    """

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        size = max(tokenizer.get_vocab().values()) + 1
        tokens = tokenizer.convert_ids_to_tokens(range(size))
        self._tokens: list[str] = [token or "" for token in tokens]  # some vocabularies have ids that no token uses
        self._special = frozenset(tokenizer.all_special_ids)
        self._byte_level = _has_byte_level_decoder(tokenizer)
        self._known: dict[int, bytes] = {}
        self._splits: list[tuple[Any, list[list[int]]]] = []

    def __len__(self) -> int:
        return len(self._tokens)

    def __getitem__(self, token: int) -> bytes:
        surface = self._known.get(token)
        if surface is None:
            surface = self._known[token] = self._surface(token)
        return surface

    def write(self, ids: Sequence[int]) -> tuple[str, list[tuple[int, int]]]:
        """The text of a run of tokens and each token's span in it.

        A character whose bytes are spread over several tokens belongs to the one that completes it; bytes that never
        become a character are left out.
        """
        decoder = codecs.getincrementaldecoder("utf-8")("ignore")
        pieces, spans, end = [], [], 0
        for token in ids:
            piece = decoder.decode(self[token])
            pieces.append(piece)
            spans.append((end, end + len(piece)))
            end += len(piece)
        return "".join(pieces), spans

    def split_by(self, tokenizer: Any) -> list[list[int]]:
        """For each token the tokens of another tokenizer that cover its text; found once for tokenizers that are alike."""
        for other, bags in self._splits:
            if same_vocabulary(other, tokenizer):
                return bags
        self._splits.append((tokenizer, split_surfaces(self, tokenizer)))
        return self._splits[-1][1]

    @cached_property
    def index(self) -> dict[bytes, int]:
        """Token of each surface; the lowest id where several look the same."""
        found: dict[bytes, int] = {}
        for token in range(len(self)):
            if token not in self._special and self[token]:
                found.setdefault(self[token], token)
        return found

    def _surface(self, token: int) -> bytes:
        if token in self._special or token >= len(self._tokens) or not self._tokens[token]:
            return b""
        text = self._tokens[token]
        if self._byte_level and all(c in _BYTE_OF for c in text):
            return bytes(_BYTE_OF[c] for c in text)
        if (match := _BYTE_FALLBACK.match(text)) is not None:
            return bytes([int(match[1], 16)])
        lead = self._decode([self._anchor])
        both = self._decode([self._anchor, token])
        return (both[len(lead) :] if both.startswith(lead) else self._decode([token])).encode()

    @cached_property
    def _anchor(self) -> int:
        """An ordinary word to put in front, so that a token shows the space that it brings."""
        usable = (i for i in range(len(self._tokens)) if i not in self._special and self._tokens[i])
        best = next((i for i in usable if self._decode([i]).strip().isalpha()), None)
        if best is None:
            raise ModelError(f"tokenizer {type(self.tokenizer).__name__} must have a token of letters, got none")
        return best

    def _decode(self, ids: list[int]) -> str:
        return self.tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)


@dataclass(frozen=True)
class View:
    """R lookaheads as a verifier reads them, and P pairs (entry of the marginals, verifier's position, share).

    `share` is the part of the verifier's token that the entry's token covers: 1 where vocabularies are the same.

    >>> ids, first = torch.tensor([[101, 7, 102]]), torch.tensor([0])
    >>> View(ids, ids > 0, entry=first, position=first + 1, share=torch.ones(1)).position
    tensor([1])
    """

    ids: Tensor  # (R, T)
    mask: Tensor  # (R, T)
    entry: Tensor  # (P,)
    position: Tensor  # (P,)
    share: Tensor  # (P,) float32


class Bridge:
    """From the masked LM's vocabulary to a verifier's.

    `table` (V of the masked LM, D) holds the verifier's embedding of each masked-LM token: its own row where the
    verifier has a token of the same surface, else the mean over the tokens that it splits the surface into.

    >>> from scone.embedded import load_classifier, load_masked_lm
    >>> from scone.verifier import Verifier
    >>> model, tokenizer = load_masked_lm()
    >>> verifier = Verifier(*load_classifier("sentiment"), target="positive")
    >>> bridge = Bridge(tokenizer, model.config.vocab_size, Surfaces(tokenizer), verifier)
    >>> bridge.identical, bridge.table.shape
    (True, torch.Size([30522, 384]))
    """

    def __init__(self, tokenizer: Any, size: int, surfaces: Surfaces, verifier: EmbeddingVerifier) -> None:
        self.size = size  # rows of the masked LM's head
        self.surfaces = surfaces
        self.verifier = verifier
        self._made: tuple[Tensor, Hashable, Tensor] | None = None  # of a table of the verifier's, as it was
        self.identical = not verifier.pads_left and same_vocabulary(tokenizer, verifier.tokenizer)
        if not self.identical and not getattr(verifier.tokenizer, "is_fast", False):
            raise ModelError(
                f"verifier {verifier.name} must have a fast tokenizer, which gives character offsets, "
                f"got {type(verifier.tokenizer).__name__}"
            )

    @property
    def table(self) -> Tensor:
        """(V of the masked LM, D), on the verifier's device; made anew where the verifier's embeddings have changed."""
        source = self.verifier.table
        made = self._made
        if made is None or made[1] != mark(source):
            made = self._made = source, mark(source), self._translated(source)
        return made[2]

    def _translated(self, source: Tensor) -> Tensor:
        check_finite(source, f"the embedding table of verifier {self.verifier.name}")
        if self.identical:
            rows = min(self.size, source.shape[0])
            return source if rows == source.shape[0] == self.size else _resized(source, self.size)
        bags = self.surfaces.split_by(self.verifier.tokenizer)[: self.size]
        bags = [[i for i in bag if i < source.shape[0]] for bag in bags]  # tokenizers may know more than the model has
        flat = torch.tensor([i for bag in bags for i in bag], dtype=torch.long)
        ends = torch.tensor([len(bag) for bag in bags]).cumsum(0)
        starts = torch.cat([torch.zeros(1, dtype=torch.long), ends[:-1]])
        means = torch.nn.functional.embedding_bag(
            sent(flat, source.device), source.float(), sent(starts, source.device)
        )
        return _resized(means.to(source.dtype), self.size)

    def view(self, ids: Tensor, mask: Tensor, offset: Tensor, row: Tensor, col: Tensor, texts: Sequence[str]) -> View:
        """Read lookaheads ids (R, T) as the verifier does and align the marginals' entries (row, col) with it.

        offset: (R, T), -1 where the text is fixed; texts: the fixed text of each row.
        """
        if self.identical:
            check_known(f"verifier {self.verifier.name}", len(self.surfaces) - 1, self.verifier.rows)
            entry = torch.arange(len(row), device=row.device)
            return View(ids, mask, entry, col, torch.ones(len(row), device=row.device))
        return self._aligned(ids, offset, row, col, texts)

    def _aligned(self, ids: Tensor, offset: Tensor, row: Tensor, col: Tensor, texts: Sequence[str]) -> View:
        verifier = self.verifier
        entry_at = torch.full(tuple(ids.shape), -1, dtype=torch.long)
        entry_at[row.cpu(), col.cpu()] = torch.arange(len(row))
        written = [
            self.surfaces.write([t for t, o in zip(tokens, offsets) if o >= 0])
            for tokens, offsets in zip(ids.tolist(), offset.tolist())
        ]
        entries = [
            [e for e, o in zip(line, offsets) if o >= 0] for line, offsets in zip(entry_at.tolist(), offset.tolist())
        ]
        read = verifier.tokenizer(
            [text + future for text, (future, _) in zip(texts, written)],
            add_special_tokens=False,
            return_offsets_mapping=True,
        )
        view_ids, view_mask = verifier.frame(read["input_ids"])
        room = verifier.max_length - len(verifier.opening) - len(verifier.closing)
        pairs: list[tuple[int, int, float]] = []
        for text, (_, spans), line, places in zip(texts, written, entries, read["offset_mapping"]):
            dropped = max(0, len(places) - room)
            first = len(verifier.opening) - dropped
            if verifier.pads_left:
                first += view_ids.shape[1] - (len(places) - dropped + len(verifier.opening) + len(verifier.closing))
            for i, position, share in overlaps([(a + len(text), b + len(text)) for a, b in spans], places):
                if line[i] >= 0 and position >= dropped:
                    pairs.append((line[i], first + position, share))
        packed = torch.tensor(pairs, dtype=torch.float64).reshape(-1, 3)
        packed = sent(packed, verifier.device)
        return View(view_ids, view_mask, packed[:, 0].long(), packed[:, 1].long(), packed[:, 2].float())


def overlaps(spans: Sequence[tuple[int, int]], places: Sequence[tuple[int, int]]) -> list[tuple[int, int, float]]:
    """(index into spans, index into places, part of the place that the span covers) for all that overlap.

    >>> overlaps([(0, 4), (4, 6)], [(0, 2), (2, 6)])
    [(0, 0, 1.0), (0, 1, 0.5), (1, 1, 0.5)]
    """
    found, first = [], 0
    for i, (a, b) in enumerate(spans):
        while first < len(places) and places[first][1] <= a:
            first += 1
        for j in range(first, len(places)):
            c, d = places[j]
            if c >= b:
                break
            if min(b, d) > max(a, c):
                found.append((i, j, (min(b, d) - max(a, c)) / (d - c)))
    return found


def split_surfaces(surfaces: Surfaces, tokenizer: Any) -> list[list[int]]:
    """For each token of `surfaces`, the tokens of another tokenizer that cover its text; none for special tokens."""
    index = Surfaces(tokenizer).index
    texts = [surfaces[i].decode("utf-8", "ignore") for i in range(len(surfaces))]
    exact = [index.get(surfaces[i], index.get(text.lower().encode())) for i, text in enumerate(texts)]
    rest = [i for i, found in enumerate(exact) if found is None and texts[i].strip()]
    split = tokenizer([texts[i] for i in rest], add_special_tokens=False)["input_ids"] if rest else []
    bags: list[list[int]] = [[] if found is None else [found] for found in exact]
    for i, ids in zip(rest, split):
        bags[i] = list(ids)
    return bags


def _resized(table: Tensor, rows: int) -> Tensor:
    """The table with that many rows: cut, or filled with zeros for ids that no token uses."""
    if table.shape[0] >= rows:
        return table[:rows].contiguous()
    return torch.cat([table, table.new_zeros(rows - table.shape[0], table.shape[1])])


def _has_byte_level_decoder(tokenizer: Any) -> bool:
    backend = getattr(tokenizer, "backend_tokenizer", None)
    return backend is not None and '"ByteLevel"' in json.dumps(json.loads(backend.to_str()).get("decoder"))


def _byte_alphabet() -> dict[str, int]:
    """Characters by which byte-level tokenizers write bytes: printable ones as themselves, the others from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in printable]
    return {chr(b): b for b in printable} | {chr(0x100 + i): b for i, b in enumerate(others)}


_BYTE_OF = _byte_alphabet()
