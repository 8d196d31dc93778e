"""A random allocation that fills the budgets: what any choice at all would gain."""

from dataclasses import dataclass

import torch
from torch import Tensor

from idn_torch.baselines.static import StaticPolicy, StaticState, batch_shape, repositories
from idn_torch.infida import free_room
from idn_torch.philox import uniforms
from idn_torch.problem import Problem

__all__ = ["RandomFeasible", "random_feasible"]


@torch.no_grad()
def random_feasible(problem: Problem, numbers: Tensor) -> Tensor:
    """Each node goes through its models in random order and loads each one that still fits.

    Args:
        problem: the network.
        numbers: the order: smallest first, ties to the lower model index, `(..., V, M)`.

    Returns:
        `(..., V, M)` of 0 and 1, feasible; no node has room for another of its models.
    """
    x = repositories(problem, tuple(numbers.shape[:-2]))
    free = problem.feasible.free.expand(x.shape)
    size = problem.sizes.expand(x.shape)
    for model in numbers.argsort(stable=True, dim=-1).unbind(-1):
        at = model[..., None]
        fits = (size.gather(-1, at) <= free_room(problem, x)[..., None]) & free.gather(-1, at)
        x = x.scatter(-1, at, torch.where(fits, 1.0, x.gather(-1, at)))
    return x


@dataclass(frozen=True, eq=False)
class RandomFeasible(StaticPolicy):
    """An allocation drawn once and kept; another for every seed."""

    def init(self, problem: Problem, seed: Tensor | int = 0, batch: tuple[int, ...] = ()) -> StaticState:
        """Draw the allocation of each seed `(...)`; the same whatever the batch, the device or the padding."""
        shape = batch_shape(problem, seed, batch)
        key = torch.as_tensor(seed, dtype=torch.int64, device=problem.device)
        x = random_feasible(problem, uniforms(key, *problem.shape, dtype=problem.dtype))
        return StaticState(x.expand(*shape, *problem.shape).contiguous())
