"""CUDA graphs: what may not be captured raises, and our ops can be captured and replayed with other values."""

from __future__ import annotations

import pytest
import torch

from scone_kernels.testing import OPS, make_inputs


def captured(call):
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = call()
    return graph, result


@pytest.mark.parametrize(
    "call",
    [
        lambda x: x.sum().item(),
        lambda x: x.nonzero(),
        lambda x: x[x > 0],
        lambda x: x + torch.tensor([1.0], device="cuda"),
        lambda x: x.copy_(torch.ones(2)),
        lambda x: x.to("cpu", non_blocking=True),
        lambda x: torch.ones(2).pin_memory(),
        lambda x: torch.cuda.synchronize(),
    ],
)
def test_planted_waits_and_copies_are_refused(device, call):
    x = torch.ones(2, device="cuda")
    with pytest.raises(RuntimeError, match="not permitted when stream is capturing"):
        captured(lambda: call(x))
    assert device.recording is None


def test_a_replay_sees_the_values_of_its_time(device):
    x = torch.tensor([1.0, 2.0], device="cuda")
    graph, y = captured(lambda: (x * 2).view(2, 1).add_(1).sum(0))
    assert y.tolist() == [8.0]
    x.copy_(torch.tensor([3.0, 4.0]))
    graph.replay()
    assert y.tolist() == [16.0]


@pytest.mark.parametrize("op", OPS)
def test_our_ops_wait_for_nothing_and_bake_nothing_in(device, op):
    """Captured with some values, replayed with others: what comes out is what the op gives for those."""
    shape = {"rows": 3, "vocabulary": 70, "width": 8, "table_width": 5}
    first, second = (make_inputs(op, **shape, device="cuda", seed=seed) for seed in (0, 1))
    for seed, inputs in enumerate((first, second)):
        if "seed" in inputs.arguments:  # a number would be part of the graph
            inputs.arguments["seed"] = torch.full((3,), seed, device="cuda")
    expected = second.run()
    with device.counting() as tally:
        graph, found = captured(first.run)
    assert not tally.events, tally.events
    for name, value in first.arguments.items():
        for mine, other in zip(_tensors(value), _tensors(second.arguments[name]), strict=True):
            mine.copy_(other)
    graph.replay()
    for mine, other in zip(_tensors(found), _tensors(expected), strict=True):
        assert torch.equal(mine.cpu(), other.cpu())


def _tensors(value):
    if isinstance(value, torch.Tensor):
        return [value]
    return [tensor for part in value for tensor in _tensors(part)] if isinstance(value, list | tuple) else []
