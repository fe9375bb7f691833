"""Hogwild on streams: workers that share chains of tokens without waiting for each other, and how stale what they saw was."""

from __future__ import annotations

import time

import torch

from bench.gpu.part import Deadline, Found, Table, small
from scone.lookahead import GibbsPool, draw_from_head

STREAMS = (1, 2, 4, 8)


def hogwild(deadline: Deadline) -> Found:
    """1, 2, 4 and 8 workers; a recorded run replays to the same tokens, and one worker writes what the CPU writes."""
    found, rows = Found(), []
    alone = _run("cpu", 1)[0].tokens
    for workers in deadline.within(STREAMS, found):
        run, replayed, seconds = _run("cuda", workers)
        tokens = run.tokens.cpu()
        found.check(torch.equal(replayed.cpu(), tokens), f"{workers} streams: the replay is another")
        found.check(bool(((tokens >= 0) & (tokens < _sizes()[2])).all()), f"{workers} streams: tokens out of range")
        if workers == 1:
            found.check(torch.equal(tokens, alone), "1 stream: the tokens are not the CPU's")
        stats = run.stats
        most = len(stats.staleness) - 1
        speed = stats.updates / seconds
        rows.append([workers, stats.updates, f"{stats.mean_staleness:.2f}", most, stats.overwritten, f"{speed:.0f}"])
    header = ["streams", "blocks", "mean staleness", "most", "tokens overwritten unseen", "blocks a second"]
    found.tables.append(Table("Hogwild on streams", header, rows))
    return found


def _sizes() -> tuple[int, int, int, int]:
    """Rows, positions, tokens, iterations."""
    return (4, 12, 40, 6) if small() else (16, 64, 30522, 60)


def _run(place: str, workers: int):
    rows, positions, vocabulary, iterations = _sizes()
    generator = torch.Generator().manual_seed(0)
    table = torch.randn(vocabulary, 32, generator=generator).to(place)

    def conditionals(tokens, index, where):
        """What stands to the left and to the right of each position."""
        left = table[tokens.roll(1, 1).gather(1, where)]
        right = table[tokens.roll(-1, 1).gather(1, where)]
        return (left + right).flatten(0, 1).mul(0.3)

    draw = draw_from_head(table)
    pool = GibbsPool(
        conditionals, draw, workers=workers, iterations=iterations, block=4, batch=4 if workers > 1 else None
    )
    start = torch.zeros(rows, positions, dtype=torch.int64).to(place)
    begun = time.perf_counter()
    run = pool.run(start, seed=0, record=True)
    seconds = time.perf_counter() - begun
    return run, pool.replay(start, run.schedule, seed=0).tokens, seconds
