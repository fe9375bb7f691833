"""The make-believe device, tested with planted faults: what CUDA refuses is refused, what costs is counted."""

from __future__ import annotations

import threading

import pytest
import torch

from tests.makebelieve.accelerator import Accelerator
from tests.makebelieve.tensor import DeviceTensor


def on(*values, **options):
    return torch.tensor([*values], device="cuda:0", **options)


def test_where_it_claims_to_be(device):
    x = on(1.0, 2.0)
    assert (x.device, x.is_cuda, x.shape, x.dtype) == (torch.device("cuda:0"), True, (2,), torch.float32)
    assert x.cpu().tolist() == x.tolist() == [1.0, 2.0] and not isinstance(x.cpu(), DeviceTensor)
    assert torch.zeros(2, device="cuda").device == x.new_ones(3).device == torch.empty_like(x).device == x.device
    assert x.to("cuda:1").device == torch.device("cuda:1")
    assert repr(x) == "tensor([1., 2.], device='cuda:0')" and f"{x[0]:.1f}" == "1.0"


@pytest.mark.parametrize(
    "meet",
    [
        lambda x: x + torch.ones(2),
        lambda x: torch.cat([x, torch.ones(2)]),
        lambda x: torch.where(torch.tensor([True, False]), x, x),
        lambda x: x[None] @ torch.ones(2, 1),
        lambda x: torch.ones(2).add_(x),
        lambda x: x.index_select(0, torch.tensor([0])),
        lambda x: x.gather(0, torch.tensor([0])),
        lambda x: x + x.to("cuda:1"),
        lambda x: torch.nn.functional.linear(x, torch.ones(3, 2)),
    ],
)
def test_planted_mix_of_devices(device, meet):
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
        meet(on(1.0, 2.0))


def test_numbers_and_indices_may_come_from_the_host(device):
    x = on(1.0, 2.0)
    assert (x + torch.tensor(1.0)).tolist() == [2.0, 3.0]
    assert x[torch.tensor([1])].tolist() == [2.0]


def test_planted_index_of_the_device(device):
    with pytest.raises(RuntimeError, match="indices should be either on cpu or on the same device"):
        torch.ones(2)[torch.zeros(1, dtype=torch.long, device="cuda")]
    with pytest.raises(RuntimeError, match="as the indexed tensor"):
        torch.ones(2, device="cuda:1")[torch.zeros(1, dtype=torch.long, device="cuda:0")]


@pytest.mark.parametrize("read", [lambda x: x.numpy(), lambda x: __import__("numpy").asarray(x)])
def test_planted_numpy(device, read):
    with pytest.raises(TypeError, match="can't convert cuda:0 device type tensor to numpy"):
        read(on(1.0))


WAITS = {
    "item": lambda x: x[0].item(),
    "int": lambda x: int(x[0]),
    "tolist": lambda x: x.tolist(),
    "cpu": lambda x: x.cpu(),
    "bool": lambda x: bool((x > 0).all()),
    "if": lambda x: 1 if x.sum() else 0,
    "nonzero": lambda x: x.nonzero(),
    "where without values": lambda x: torch.where(x > 0),
    "boolean index": lambda x: x[x > 0],
    "masked_select": lambda x: x.masked_select(x > 0),
    "boolean write of several values": lambda x: x.__setitem__(x > 0, x + 1),
    "equal": lambda x: torch.equal(x, x),
    "allclose": lambda x: torch.allclose(x, x),
    "unique": lambda x: x.unique(),
    "bincount": lambda x: x.long().bincount(),
    "repeat_interleave by a tensor": lambda x: x.repeat_interleave(x.long()),
    "multinomial": lambda x: torch.multinomial(x, 1),
    "copy from pageable memory": lambda x: x.copy_(torch.ones(3)),
    "to the device": lambda x: torch.tensor([1, 2], device="cuda"),
    "index from the host": lambda x: x[torch.tensor([1])],
    "list as index": lambda x: x[[0, 1]],
    "synchronize": lambda x: torch.cuda.synchronize(),
    "stream": lambda x: torch.cuda.current_stream().synchronize(),
    "event": lambda x: torch.cuda.Event().synchronize(),
    "print": lambda x: repr(x),
}


@pytest.mark.parametrize("name", WAITS)
def test_planted_waits_are_counted(device, name):
    x = on(1.0, 2.0, 3.0)
    with device.counting() as tally:
        WAITS[name](x)
    assert tally.waits == 1, tally.events
    assert "test_device_itself.py" in tally.of("wait")[0].line


FREE = {
    "arithmetic": lambda x: (x * 2 + 1).softmax(-1).cumsum(0),
    "top-k": lambda x: x.topk(2),
    "views": lambda x: x[1:].view(1, -1).expand(3, -1).T,
    "mask filled with a number": lambda x: x.__setitem__(x > 1, 0.0),
    "masked_fill": lambda x: x.masked_fill(x > 1, 0.0),
    "indices of the device": lambda x: x[torch.zeros(1, dtype=torch.long, device="cuda")],
    "pinned memory": lambda x: torch.ones(3).pin_memory().to("cuda", non_blocking=True),
    "to pinned memory": lambda x: x.to("cpu", non_blocking=True),
    "repeat_interleave by a number": lambda x: x.repeat_interleave(2),
    "between devices": lambda x: x.to("cuda:1"),
    "another stream": lambda x: torch.cuda.Stream().wait_stream(torch.cuda.current_stream()),
    "recorded event": lambda x: torch.cuda.Event(enable_timing=True).record(),
}


@pytest.mark.parametrize("name", FREE)
def test_what_does_not_wait_is_not_counted(device, name):
    x = on(1.0, 2.0, 3.0)
    with device.counting() as tally:
        FREE[name](x)
    assert tally.waits == 0, tally.events


def test_copies_and_launches_are_counted(device):
    x = on(1.0, 2.0)
    with device.counting() as tally:
        y = x.view(2, 1).expand(2, 2) * 2  # one kernel: views and empty memory are none
        torch.empty_like(y)
        y.cpu()
        torch.ones(2).to("cuda")
    assert tally.launches == 1 and tally.ops == {"aten.mul.Tensor": 1}
    assert [event.kind for event in tally.events] == ["to host", "wait", "to device", "wait"]


def test_what_was_not_waited_for_is_not_there(device):
    x, mask, n = on(1.0), on(True), on(7)
    there = [tensor.to("cpu", non_blocking=True) for tensor in (x, mask, n)]
    assert there[0].isnan().all() and not there[1].any() and there[2] != 7
    torch.cuda.current_stream().synchronize()
    assert [tensor.item() for tensor in there] == [1.0, True, 7]


def test_writing_in_place_reaches_all_views(device):
    x = torch.zeros(2, 2, device="cuda")
    row = x[1]
    row.add_(1)
    x[0, 0] = 5
    torch.add(row, row, out=row)
    assert x.tolist() == [[5.0, 0.0], [2.0, 2.0]] and row.tolist() == [2.0, 2.0]


def test_gradients(device):
    x = on(1.0, 2.0).requires_grad_()
    (grad,) = torch.autograd.grad((x * x).sum(), x)
    assert grad.device == x.device and grad.tolist() == [2.0, 4.0]


def test_modules_move(device):
    layer = torch.nn.Linear(2, 3)
    x = torch.ones(1, 2)
    expected = layer(x)
    layer.to("cuda:0")
    assert layer.weight.device == torch.device("cuda:0") and isinstance(layer.weight, torch.nn.Parameter)
    with pytest.raises(RuntimeError, match="same device"):
        layer(x)
    assert torch.equal(layer(x.to("cuda:0")).cpu(), expected)


def test_threads_see_the_device(device):
    found = []
    thread = threading.Thread(target=lambda: found.append(torch.arange(2, device="cuda").device))
    thread.start()
    thread.join()
    assert found == [torch.device("cuda:0")]


def test_streams_and_devices_by_name(device):
    own = torch.cuda.Stream()
    with torch.cuda.stream(own):
        assert torch.cuda.current_stream() is own
    assert torch.cuda.current_stream() is torch.cuda.default_stream()
    with torch.cuda.device(1):
        assert torch.zeros(1, device="cuda").device == torch.device("cuda:1")
    assert torch.cuda.device_count() == 2 and torch.cuda.is_available()
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    with pytest.raises(RuntimeError, match="must be recorded"):
        start.elapsed_time(end)
    start.record()
    end.record()
    assert start.elapsed_time(end) >= 0


def test_nothing_is_left_when_it_is_off():
    with Accelerator():
        x = on(1.0)
    assert not torch.cuda.is_available()
    with pytest.raises(RuntimeError, match="switched off"):
        x + 1
