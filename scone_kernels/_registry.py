"""How an op is registered: one schema, a fake, and an implementation for each device.

The schemas live in Python so that they exist in installs without the extension; the C++ files register implementations
only (`TORCH_LIBRARY_IMPL(scone_kernels, CPU, m)`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from . import _backend, _extension, _gradients, _ops

_library = torch.library.Library(_ops.ops.name, "FRAGMENT")


class Op:
    """One custom op `torch.ops.scone_kernels.<name>` with its reference and its Triton launcher.

    `reference` defines the result. `launch` is a function without arguments that imports and returns the Triton
    launcher, so that triton is not imported before it is needed. CPU tensors take the C++ kernel (the reference where
    the extension is missing), CUDA and HIP tensors take Triton (the reference where triton is missing, or where
    `launch` is None because the library's own kernel is the best there).
    """

    def __init__(
        self,
        schema: str,
        *,
        reference: Callable[..., Any],
        launch: Callable[[], Callable[..., Any]] | None,
        fake: Callable[..., Any],
    ) -> None:
        name = schema.split("(", 1)[0]
        self.name = name
        self._reference = reference
        self._launch = launch
        _library.define(schema, tags=(torch.Tag.pt2_compliant_tag,))
        torch.library.register_fake(_ops.add_op_namespace_prefix(name), fake, lib=_library)
        if _extension.why_missing is not None:
            _library.impl(name, reference, "CPU")
        gpu = (lambda *args: launch()(*args)) if launch is not None and _backend.triton_found() else reference
        _library.impl(name, gpu, "CUDA")
        self._op = getattr(_ops.ops, name).default

    def __call__(self, backend: str | None, *args: Any) -> Any:
        """Run on `backend`. The ops are not differentiable: asked for a gradient, a result says so."""
        if not torch.is_grad_enabled():
            return self._run(backend, args)
        result = self._run(backend, _detached(args))
        return result if torch.compiler.is_compiling() else _gradients.refuse(self.name, result, args)

    def _run(self, backend: str | None, args: Any) -> Any:
        if backend is None:
            return self._op(*args)
        device = args[0].device  # every op has a tensor first
        _backend.require(backend, device)
        if backend == "reference":
            return self._reference(*args)
        if backend == "triton" and self._launch is None:
            raise ValueError(f"backend must be None, 'reference' or 'cpu' for {self.name}, got 'triton'")
        if backend == "triton" and device.type == "cpu":
            return self._launch()(*args)  # type: ignore[misc]
        return self._op(*args)


def _detached(value: Any) -> Any:
    """The same with every tensor in it, also those in lists, cut off from its graph."""
    if isinstance(value, list | tuple):
        return type(value)(map(_detached, value))
    return value.detach() if isinstance(value, torch.Tensor) else value
