"""HogwildState on the device reaches its CUDA kernels, and they do what the CPU does."""

from __future__ import annotations

import torch

from scone.lookahead import GibbsPool, draw_from_head
from scone_kernels import HogwildState


def test_the_state_reaches_its_cuda_kernels(quick):
    states = [HogwildState(torch.arange(12).view(2, 6).to(place)) for place in ("cpu", "cuda:0")]
    assert [state.backend for state in states] == ["cpu", "cuda"]
    found = []
    for state in states:
        seen = state.read()
        row, start, block = (torch.tensor(values, device=state.device) for values in ([0, 1], [1, 4], [[7, 8], [9, 9]]))
        first = state.write(row, start, block, seen)
        found.append(
            [first.tolist(), state.write(row, start, block, seen).tolist(), *(part.tolist() for part in state.read())]
        )
    assert found[0] == found[1]
    assert quick.tally.ops["hogwild_write"] == 2 and quick.tally.ops["hogwild_read"] == 2


def test_workers_on_streams_replay(quick):
    """Four workers whose order nobody knows, and the same tokens once more."""
    draw = draw_from_head(torch.randn(9, 4, generator=torch.Generator().manual_seed(0)).to("cuda:0"))

    def conditionals(tokens, rows, positions):
        return torch.ones(positions.numel(), 4, device=tokens.device) * tokens.gather(1, positions).view(-1, 1)

    pool = GibbsPool(conditionals, draw, workers=4, iterations=4, block=2, batch=1)
    start = torch.zeros(3, 6, dtype=torch.int64, device="cuda:0")
    run = pool.run(start, seed=0, record=True)
    assert run.tokens.device == start.device and run.stats.updates == 12
    assert torch.equal(pool.replay(start, run.schedule, seed=0).tokens, run.tokens)
