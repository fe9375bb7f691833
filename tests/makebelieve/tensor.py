"""The tensor: metadata of a CUDA tensor around data on the CPU."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only


class DeviceTensor(Tensor):
    """Claims to be on a device; `inner` holds the data. Every operation on it goes to the accelerator's rules."""

    inner: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, inner: Tensor, device: torch.device) -> DeviceTensor:
        outer = Tensor._make_wrapper_subclass(
            cls,
            inner.shape,
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            device=device,
        )
        outer.inner = inner.detach()
        return outer

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        from tests.makebelieve.accelerator import Accelerator

        if Accelerator.active is None:
            raise RuntimeError("this tensor's make-believe device has been switched off")
        return Accelerator.active.run(func, args, kwargs or {})

    # What torch does in C++ for tensors of its own only.

    def tolist(self) -> Any:
        return self.cpu().tolist()

    def numpy(self, *, force: bool = False) -> Any:
        if force:
            return self.cpu().numpy()
        raise TypeError(
            f"can't convert {self.device} device type tensor to numpy. Use Tensor.cpu() to copy the tensor to host memory first."
        )

    def data_ptr(self) -> int:
        return self.inner.data_ptr()

    def __array__(self, dtype: Any = None) -> Any:
        return self.numpy()

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        return f"{repr(self.cpu())[:-1]}, device='{self.device}')"

    def __format__(self, spec: str) -> str:
        return format(self.item(), spec) if self.dim() == 0 else super().__format__(spec)

    def __deepcopy__(self, memo: Any) -> DeviceTensor:
        copied = DeviceTensor(self.inner.clone(), self.device)
        return copied.requires_grad_(self.requires_grad)


def unwrapped(tree: Any) -> Any:
    """The same with the data in place of every device tensor."""
    return tree_map_only(DeviceTensor, lambda tensor: tensor.inner, tree)
