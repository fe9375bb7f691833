"""What a model has now, asked anew each time: its owner may replace, resize, move or train any of it."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import torch
from torch import Tensor, nn

from scone.errors import ModelError
from scone_kernels.inference import accelerate, untouched

__all__ = ["Embeddings", "mark", "place_of", "rows_of"]


class Embeddings:
    """(V, D): what a model's input embeddings make of each token, which for some models is not their weight.

    >>> from scone.embedded import load_masked_lm
    >>> model, _ = load_masked_lm()
    >>> embeddings = Embeddings(model)
    >>> embeddings.now().data_ptr() == model.get_input_embeddings().weight.data_ptr()
    True
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        self._made: tuple[list[Any], list[Tensor], Tensor] | None = None  # of these, holding their memory

    def now(self) -> Tensor:
        """The table, without a gradient."""
        layer = self._model.get_input_embeddings()
        if type(layer) is nn.Embedding and untouched(layer):
            return layer.weight.detach()
        tensors = [tensor.detach() for tensor in (*layer.parameters(), *layer.buffers())]
        now = [*map(mark, tensors), *_attributes(layer)]
        if self._made is None or self._made[0] != now:
            self._made = (now, tensors, self._of_all(layer))
        return self._made[2]

    @property
    def rows(self) -> int:
        """V, the tokens that the model was given embeddings for."""
        layer = self._model.get_input_embeddings()
        return layer.weight.shape[0] if type(layer) is nn.Embedding else len(self.now())

    @torch.no_grad()
    def _of_all(self, layer: nn.Module) -> Tensor:
        weight = getattr(layer, "weight", None)
        rows = weight.shape[0] if isinstance(weight, Tensor) else self._model.config.get_text_config().vocab_size
        table = accelerate(layer, evaluating=True)(torch.arange(rows, device=place_of(layer)))
        if not isinstance(table, Tensor) or table.dim() != 2:
            raise ModelError(f"input embeddings must give a row for each token, got {type(layer).__name__}")
        return table.detach()


def _attributes(layer: nn.Module) -> list[Any]:
    """Everything plain that the modules have, their hooks, and who they are."""
    plain = (int, float, str, bool, type(None))
    found: list[Any] = []
    for module in layer.modules():
        found += [module, {name: value for name, value in vars(module).items() if isinstance(value, plain)}]
        found += [list(value.values()) for name, value in vars(module).items() if name.endswith("_hooks")]
    return found


def mark(tensor: Tensor) -> Hashable:
    """Changes when the tensor does, or when it is another one. Hold the tensor, so that its memory is not given away.

    >>> x = torch.zeros(3)
    >>> before = mark(x)
    >>> mark(x) == before, mark(x.add_(1)) == before
    (True, False)
    """
    version = None if tensor.is_inference() else tensor._version
    return tensor.data_ptr(), version, tensor.dtype, tensor.shape, tensor.stride(), tensor.device


def place_of(module: Any) -> torch.device:
    """Where a module takes its inputs: the device of its weights, or where it puts them to work.

    >>> place_of(nn.Linear(2, 2))
    device(type='cpu')
    """
    for part in module.modules():
        device = getattr(getattr(part, "_hf_hook", None), "execution_device", None)
        if device is not None:
            return torch.device(device)
    tensor = next((t for t in (*module.parameters(), *module.buffers())), None)
    return torch.device("cpu") if tensor is None else tensor.device


def rows_of(model: Any) -> int:
    """Rows of the output head: of the logits.

    >>> from scone.embedded import load_masked_lm
    >>> rows_of(load_masked_lm()[0])
    30522
    """
    head = model.get_output_embeddings()
    rows, weight = getattr(head, "out_features", None), getattr(head, "weight", None)
    # What was resized while tied may say its former size; what was quantised has a weight of another shape.
    if isinstance(rows, int) and type(head) is not nn.Linear:
        return rows
    return weight.shape[0] if isinstance(weight, Tensor) else model.config.get_text_config().vocab_size
