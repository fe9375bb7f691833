"""Muon: momentum for weight matrices whose every step has all its singular values near one.

On this masked LM it needs fewer tokens than Adam for the same loss. One step costs some 15 matrix products of the
weight's size whatever the batch, so that batches should be large.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # of x, x³ and x⁵: steep at zero, bounded near one


def orthogonalise(matrix: Tensor, rounds: int = 4) -> Tensor:
    """A matrix with the same singular vectors, and singular values between about 0.7 and 1.2 unless they were tiny.

    The coefficients overshoot on purpose, so that bfloat16 is precise enough.

    >>> values = torch.linalg.svdvals(orthogonalise(torch.diag(torch.tensor([3.0, 2.0, 1.0])), rounds=5))
    >>> bool(((values > 0.6) & (values < 1.3)).all())
    True
    """
    a, b, c = COEFFICIENTS
    wide = matrix.T if matrix.shape[0] > matrix.shape[1] else matrix
    x = wide / (wide.norm() + 1e-7)
    for _ in range(rounds):
        gram = x @ x.T
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.T if matrix.shape[0] > matrix.shape[1] else x


class Muon(torch.optim.Optimizer):
    """Nesterov momentum, orthogonalised; a step is scaled to the size that Adam's would have at the same rate."""

    def __init__(
        self,
        params: Iterable,
        lr: float = 8e-4,
        momentum: float = 0.95,
        weight_decay: float = 0.01,
        precision: torch.dtype = torch.float32,
    ) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})
        self.precision = precision

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        """One update of every matrix that has a gradient."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                if "momentum" not in state:
                    state["momentum"] = torch.zeros_like(parameter)
                mean = state["momentum"].lerp_(parameter.grad, 1 - group["momentum"])
                update = orthogonalise(parameter.grad.lerp(mean, group["momentum"]).to(self.precision))
                parameter.mul_(1 - group["lr"] * group["weight_decay"])
                parameter.add_(update, alpha=-0.2 * group["lr"] * max(parameter.shape) ** 0.5)
