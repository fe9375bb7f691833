"""A Potts chain that is small enough to enumerate: p(x) ∝ exp(Σ field[t, x_t] + coupling Σ [x_t = x_t+1])."""

import itertools
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Potts:
    field: Tensor  # (T, q)
    coupling: float

    @property
    def shape(self) -> tuple[int, int]:
        return self.field.shape[0], self.field.shape[1]

    def logits(self, tokens: Tensor, rows: Tensor, positions: Tensor) -> Tensor:
        """Exact conditionals, in the form that GibbsPool asks for: tokens (n, T), positions (n, m) -> (n * m, q)."""
        states = self.shape[1]
        same = torch.cat([torch.eye(states), torch.zeros(1, states)]) * self.coupling  # the last row: no neighbour
        framed = torch.nn.functional.pad(tokens, (1, 1), value=states)
        neighbours = same[framed.gather(1, positions)] + same[framed.gather(1, positions + 2)]  # (n, m, q)
        return (self.field[positions] + neighbours).flatten(0, 1)

    def exact(self) -> Tensor:
        """(T - 1, q, q) in float64: the joint distribution of each pair of neighbours, by enumeration."""
        positions, states = self.shape
        every = torch.tensor(list(itertools.product(range(states), repeat=positions)))  # (q^T, T)
        energy = self.field.double()[torch.arange(positions), every].sum(1)
        energy += self.coupling * (every[:, 1:] == every[:, :-1]).sum(1)
        return pairs(every, states, energy.softmax(0))

    def influence(self) -> Tensor:
        """(T, T): by how much the conditional at i can move, in total variation, when only position j changes."""
        positions, states = self.shape
        matrix = torch.zeros(positions, positions, dtype=torch.float64)
        contexts = torch.tensor(list(itertools.product(range(states), repeat=2)))  # left and right neighbour
        for i in range(positions):
            for j in (i - 1, i + 1):
                if 0 <= j < positions:
                    tokens = torch.zeros(len(contexts), positions, dtype=torch.int64)
                    for side, neighbour in enumerate((i - 1, i + 1)):
                        if 0 <= neighbour < positions:
                            tokens[:, neighbour] = contexts[:, side]
                    at = torch.full((len(tokens), 1), i)
                    p = self.logits(tokens, torch.arange(len(tokens)), at).double().softmax(1)
                    others = [t for t in range(positions) if t != j]
                    alike = (tokens[:, None, others] == tokens[None, :, others]).all(2)
                    distance = (p[:, None] - p[None]).abs().sum(2) / 2
                    matrix[i, j] = distance[alike].max()
        return matrix


def pairs(tokens: Tensor, states: int, weight: Tensor) -> Tensor:
    """(T - 1, q, q): how often each pair of states occurs at neighbouring positions of the rows (R, T)."""
    hot = torch.nn.functional.one_hot(tokens, states).double()
    return torch.einsum("r,rta,rtb->tab", weight, hot[:, :-1], hot[:, 1:])


def total_variation(p: Tensor, q: Tensor) -> Tensor:
    """(T - 1,)"""
    return (p - q).abs().sum((1, 2)) / 2


def bound(influence: Tensor, schedule, final_versions: Tensor) -> Tensor:
    """(T - 1,): how far the pairs of a recorded run can be from the exact ones (docs/hogwild.md derives it).

    Follows a perfect chain that makes the same updates, in the order of the schedule, without ever being stale:
    `apart[r, t]` bounds the probability that the run's last token there differs from the perfect chain's.
    """
    rows, positions = final_versions.shape
    apart = torch.ones(rows, positions, dtype=torch.float64)  # the run may have begun anywhere
    version = torch.zeros(rows, positions, dtype=torch.int64)  # of the perfect chain's last update of each position
    for update in schedule:
        part = slice(*update.rows)
        n = len(update.starts)
        assert update.block == 1, "the bound is for one position at a time"
        for start, wrote in zip(update.starts.unbind(1), update.wrote[..., 0].unbind(1)):
            own = torch.arange(n)
            unlike = torch.where(update.read == version[part], apart[part], 1.0)  # (n, T)
            moved = (influence[start] * unlike).sum(1).clamp(max=1)
            apart[part][own, start] = moved
            version[part][own, start] = wrote
    apart = torch.where(version == final_versions, apart, 1.0)
    return (apart[:, 1:] + apart[:, :-1]).clamp(max=1).mean(0)
