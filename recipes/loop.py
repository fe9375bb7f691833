"""What all recipes share: a learning rate that follows the clock, a weight average, and checkpoints to resume from."""

from __future__ import annotations

import copy
import json
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from recipes.muon import Muon


class Clock:
    """The run's share of its minutes: a run always finishes its schedule, however fast the machine is."""

    PAUSE = 60.0  # no step takes that long: the process was stopped meanwhile, or the machine asleep

    def __init__(self, minutes: float, spent: float = 0.0) -> None:
        self.budget = 60.0 * minutes
        self.spent = spent
        self.last = time.monotonic()

    def tick(self) -> None:
        """Count the seconds since the last call, and no more than PAUSE of them."""
        now = time.monotonic()
        self.spent += min(now - self.last, self.PAUSE)
        self.last = now

    @property
    def share(self) -> float:
        """The part of the budget that is used, at most 1."""
        return min(1.0, self.spent / self.budget) if self.budget else 1.0

    def end(self) -> None:
        """Let every worker stop after its present step."""
        self.budget = 0.0

    def rate(self, peak: float, warm_up: float = 0.02) -> float:
        """A short linear rise to `peak`, then a linear fall to zero."""
        return peak * min(self.share / warm_up, (1.0 - self.share) / (1.0 - warm_up))


class Average:
    """An exponential moving average of trainable parameters: what is evaluated and shipped."""

    def __init__(self, model: nn.Module, decay: float = 0.995) -> None:
        self.decay = decay
        self.names, self.live = zip(*[(name, p) for name, p in model.named_parameters() if p.requires_grad])
        self.mean = [parameter.detach().clone() for parameter in self.live]

    def update(self) -> None:
        """Take the current parameters in."""
        torch._foreach_lerp_(self.mean, [parameter.detach() for parameter in self.live], 1.0 - self.decay)

    def snapshot(self, model: nn.Module) -> nn.Module:
        """A copy of the model, in eval mode, that has the average for its parameters."""
        copied = copy.deepcopy(model).eval()
        parameters = dict(copied.named_parameters())
        for name, mean in zip(self.names, self.mean):
            parameters[name].data.copy_(mean)
        return copied


Moments = dict[torch.Tensor, dict[str, torch.Tensor]]
"""What the optimizers keep for each parameter."""


def save_checkpoint(folder: Path, moments: Moments, average: Average, state: dict) -> None:
    """Write the run's state; an interrupted write leaves the previous checkpoint whole."""
    tensors = {}
    for name, parameter, mean in zip(average.names, average.live, average.mean):
        tensors[f"live.{name}"], tensors[f"mean.{name}"] = parameter.detach(), mean
        for key, value in moments.get(parameter, {}).items():
            tensors[f"{key}.{name}"] = value
    folder.mkdir(parents=True, exist_ok=True)
    save_file(
        {name: value.contiguous() for name, value in tensors.items()}, folder / "state.new", {"run": json.dumps(state)}
    )
    os.replace(folder / "state.new", folder / "state.safetensors")


def load_checkpoint(folder: Path, average: Average) -> tuple[dict, Moments] | None:
    """Take up a run where its checkpoint left it: its state and the optimizers' moments; None when there is none."""
    from safetensors import safe_open

    path = folder / "state.safetensors"
    if not path.exists():
        return None
    tensors, moments = load_file(path), {}
    with torch.no_grad():
        for name, parameter, mean in zip(average.names, average.live, average.mean):
            parameter.copy_(tensors[f"live.{name}"])
            mean.copy_(tensors[f"mean.{name}"])
            keys = [key for key in ("step", "exp_avg", "exp_avg_sq", "momentum") if f"{key}.{name}" in tensors]
            moments[parameter] = {key: tensors[f"{key}.{name}"].clone() for key in keys}
    with safe_open(path, "pt") as opened:
        return json.loads(opened.metadata()["run"]), moments


@dataclass
class Run:
    """A training run: `workers` threads share the model's parameters and follow the clock to its end.

    A worker reads the parameters without a lock and takes the lock for its update only. None ever waits for another's
    matrix product, so that a busy machine slows the run no more than it must. With `precision=torch.bfloat16` workers
    compute with a copy in that precision, and updates go to the float32 parameters.
    """

    model: nn.Module
    loss: Callable[[nn.Module, np.random.Generator], tuple[torch.Tensor, int]]
    """(a replica of the model, the worker's randomness) → (loss, tokens that were read)"""
    report: Callable[[nn.Module, dict], None]
    """Gets a snapshot of the averaged model and the run's state, every `every` minutes and at the end."""
    folder: Path
    minutes: float
    rate: float
    every: float = 5.0
    workers: int = 2
    seed: int = 0
    decay: float = 0.995
    scale: Callable[[str], float] = lambda name: 1.0
    """A parameter's name → its part of the learning rate."""
    matrix_rate: float | None = None
    """The rate of Muon for weight matrices; without it AdamW moves them too."""
    pieces: int = 1
    """How often `loss` is called for one step; the gradients are averaged."""
    precision: torch.dtype = torch.float32
    state: dict = field(default_factory=lambda: {"step": 0, "spent": 0.0, "tokens": 0, "loss": 0.0})

    def __post_init__(self) -> None:
        named = [(name, value) for name, value in self.model.named_parameters() if value.requires_grad]
        self.trainable: list[torch.Tensor] = [value for _, value in named]
        groups: list[dict] = []
        matrices: list[dict] = []
        for name, value in named:
            group: dict = {"params": [value], "weight_decay": 0.01 if value.ndim > 1 else 0.0}
            if self.matrix_rate is not None and value.ndim == 2 and "embeddings" not in name:
                matrices.append(group | {"peak": self.matrix_rate})
            else:
                groups.append(group | {"peak": self.rate * self.scale(name)})
        self.optimizers: list[torch.optim.Optimizer] = [
            torch.optim.AdamW(groups, lr=self.rate, betas=(0.9, 0.98), eps=1e-6, fused=True)
        ]
        if matrices:
            self.optimizers.append(Muon(matrices, precision=self.precision))
        self.average = Average(self.model, self.decay)
        resumed = load_checkpoint(self.folder, self.average)
        if resumed is not None:
            self.state, moments = resumed
            for optimizer in self.optimizers:
                for group in optimizer.param_groups:
                    optimizer.state.update({value: moments[value] for value in group["params"]})
        self.read = self.model if self.precision == torch.float32 else copy.deepcopy(self.model).to(self.precision)
        self.readable: list[torch.Tensor] = [value for value in self.read.parameters() if value.requires_grad]
        self.clock = Clock(self.minutes, self.state["spent"])
        self.lock = threading.Lock()

    def finish(self) -> nn.Module:
        """Train to the end of the minutes and return the averaged model; a worker's error is raised here."""
        torch.set_num_threads(1)
        with ThreadPoolExecutor(self.workers) as pool:
            left = {pool.submit(self._work, worker) for worker in range(self.workers)}
            try:
                while left:
                    done, left = wait(left, 60 * self.every, FIRST_EXCEPTION)
                    for job in done:
                        job.result()
                    if left:
                        self._report()
            except BaseException:
                self.clock.end()
                raise
        self._report()
        return self.averaged()

    def averaged(self) -> nn.Module:
        """The averaged model as it stands."""
        return self.average.snapshot(self.model)

    def _report(self) -> None:
        with self.lock:
            self.state["spent"] = self.clock.spent
            state, snapshot = dict(self.state), self.average.snapshot(self.model)
            moments = {value: kept for optimizer in self.optimizers for value, kept in optimizer.state.items()}
            save_checkpoint(self.folder, moments, self.average, state)
        self.report(snapshot, state)

    def _work(self, worker: int) -> None:
        torch.set_num_threads(1)
        random = np.random.default_rng([self.seed, worker, self.state["step"]])
        replica = sharing_copy(self.read)
        parameters = [parameter for parameter in replica.parameters() if parameter.requires_grad]
        while self.clock.share < 1.0:
            losses, tokens = 0.0, 0
            for _ in range(self.pieces):
                loss, count = self.loss(replica, random)
                (loss / self.pieces).backward()
                losses, tokens = losses + loss.item() / self.pieces, tokens + count
            nn.utils.clip_grad_norm_(parameters, 1.0, foreach=True)
            with self.lock:
                self.clock.tick()
                for shared, mine in zip(self.trainable, parameters):
                    assert mine.grad is not None
                    shared.grad, mine.grad = mine.grad.to(shared.dtype), None
                for optimizer in self.optimizers:
                    for group in optimizer.param_groups:
                        group["lr"] = self.clock.rate(group["peak"])
                    optimizer.step()
                with torch.no_grad():
                    if self.read is not self.model:
                        torch._foreach_copy_(self.readable, self.trainable)
                    self.average.update()
                self.state["step"] += 1
                self.state["tokens"] += tokens
                self.state["loss"] += (losses - self.state["loss"]) / min(self.state["step"], 100)


def sharing_copy(model: nn.Module) -> nn.Module:
    """A copy with gradients of its own whose parameters are the same memory."""
    copied = copy.deepcopy(model)
    for mine, theirs in zip(copied.parameters(), model.parameters()):
        mine.data = theirs.data
    return copied
