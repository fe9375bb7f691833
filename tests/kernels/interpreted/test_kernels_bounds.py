"""Every address that a kernel reads or writes, in the interpreter, lies within a tensor that it was given."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl
from triton.runtime import interpreter

from scone_kernels.testing import OPS, make_inputs


class Watch:
    """The memory of the running kernel's tensors, and how many addresses were looked at."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.lawful: list[tuple[int, int]] = []  # (first byte, last byte + 1)
        self.seen = 0
        call, builder = interpreter.GridExecutor.__call__, interpreter.InterpreterBuilder
        load, store = builder.create_masked_load, builder.create_masked_store

        def launched(executor, *args, **kwargs):
            storages = [arg.untyped_storage() for arg in (*args, *kwargs.values()) if isinstance(arg, torch.Tensor)]
            self.lawful = [(storage.data_ptr(), storage.data_ptr() + storage.nbytes()) for storage in storages]
            return call(executor, *args, **kwargs)

        def loaded(own, ptrs, mask, *rest):
            self.check(ptrs, mask)
            return load(own, ptrs, mask, *rest)

        def stored(own, ptrs, value, mask, *rest):
            self.check(ptrs, mask)
            return store(own, ptrs, value, mask, *rest)

        monkeypatch.setattr(interpreter.GridExecutor, "__call__", launched)
        monkeypatch.setattr(builder, "create_masked_load", loaded)
        monkeypatch.setattr(builder, "create_masked_store", stored)

    def check(self, ptrs, mask) -> None:
        size = max(1, ptrs.get_element_ty().primitive_bitwidth // 8)
        found = torch.from_numpy(ptrs.data[mask.data].astype("int64"))
        inside = torch.zeros(found.shape, dtype=torch.bool)
        for first, end in self.lawful:
            inside |= (found >= first) & (found + size <= end)
        assert bool(inside.all()), f"{int((~inside).sum())} of {found.numel()} addresses lie in no tensor of the kernel"
        self.seen += found.numel()


@pytest.fixture
def watch(monkeypatch):
    return Watch(monkeypatch)


@triton.jit
def _copy(x, out, count, size: tl.constexpr):
    place = tl.arange(0, size)
    tl.store(out + place, tl.load(x + place, mask=place < count), mask=place < count)


@pytest.mark.parametrize("short", ["x", "out"])
def test_what_lies_outside_is_seen(watch, short):
    given = {"x": torch.ones(6), "out": torch.empty(6)}
    _copy[(1,)](**given, count=6, size=8)
    assert torch.equal(given["out"], given["x"]) and watch.seen == 12
    given[short] = torch.empty(5)
    with pytest.raises(Exception, match="1 of 6 addresses lie in no tensor"):
        _copy[(1,)](**given, count=6, size=8)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("rows, vocabulary, width", [(1, 1, 1), (3, 127, 17), (17, 130, 65)])
@pytest.mark.parametrize("op", OPS)
def test_nothing_outside_is_touched(watch, op, rows, vocabulary, width, dtype):
    sequences = 2 if "dot" in op or "taylor" in op else None
    inputs = make_inputs(
        op, rows=rows, vocabulary=vocabulary, width=width, table_width=width + 2, sequences=sequences, dtype=dtype
    )
    inputs.run("triton")
    assert watch.seen > 0
