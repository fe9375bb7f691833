"""For `kernels benchmark`: each op against the torch lines that it replaces, at the size of SmolLM2's head."""

from __future__ import annotations

import torch
from kernels.benchmark import Benchmark
from torch.nn.functional import linear

ROWS, VOCABULARY, WIDTH, TABLE = 56, 49152, 576, 384


class Head:
    """Hidden states, a head and a table; not a benchmark itself."""

    seed = 0

    def setup(self) -> None:
        dtype = torch.bfloat16 if self.device == "cuda" else torch.float32
        options = {"device": self.device, "dtype": dtype}
        self.hidden = torch.randn(ROWS, WIDTH, **options)
        self.weight = 3 * WIDTH**-0.5 * torch.randn(VOCABULARY, WIDTH, **options)
        self.table = torch.randn(VOCABULARY, TABLE, **options)

    def logits(self) -> torch.Tensor:
        return linear(self.hidden, self.weight).float()


class ExpectedEmbedding(Head, Benchmark):
    def benchmark_rows(self) -> None:
        self.out = self.kernel.expected_embedding(self.hidden, self.weight, self.table, check=False)

    def verify_rows(self) -> torch.Tensor:
        return torch.softmax(self.logits(), -1) @ self.table.float()


class LikelyRows(Head, Benchmark):
    def benchmark_rows(self) -> None:
        self.out = self.kernel.likely_rows(self.hidden, self.weight, [self.table], check=False).rows[0]

    def verify_rows(self) -> torch.Tensor:
        found, tokens = self.logits().topk(10)
        return (torch.softmax(found, -1)[..., None] * self.table[tokens].float()).sum(1)


class GibbsSample(Head, Benchmark):
    def benchmark_draw(self) -> None:
        counter = torch.arange(ROWS, device=self.device)
        draw = self.kernel.gibbs_sample(self.hidden, self.weight, seed=0, counter=counter, check=False)
        self.tokens, self.out = draw

    def verify_draw(self) -> torch.Tensor:
        return torch.log_softmax(self.logits(), -1).gather(1, self.tokens[:, None])[:, 0]
