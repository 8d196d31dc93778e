"""The popularity rule: every node serves its most requested tasks first. The baseline people start from."""

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from idn_torch.errors import InputError
from idn_torch.infida import Slot
from idn_torch.problem import Problem
from idn_torch.serving import DISCIPLINES, serve_kernel
from idn_torch.shapes import broadcast_shapes

__all__ = ["Popularity", "PopularityState"]


class PopularityState(NamedTuple):
    """State before a slot.

    Attributes:
        slot: number of slots done.
        x: allocation in use, `(..., V, M)`.
        passing: mean requests a slot so far of each task whose path visits each node, `(..., V, N)`.
    """

    slot: int
    x: Tensor
    passing: Tensor


@dataclass(frozen=True)
class Popularity:
    """Each node ranks the tasks by the running mean of the requests whose path visits it.

    In that order each task gets the node's model of least `d + alpha * (1 - a)` that still fits; nothing is loaded
    where that is a repository model already there. Tasks that nobody asked for yet get none, so the first slot runs
    on the repositories.
    """

    discipline: Literal["fcfs", "fair"] = "fcfs"

    def __post_init__(self) -> None:
        if self.discipline not in DISCIPLINES:
            raise InputError(f"discipline is {self.discipline!r}; use one of {', '.join(DISCIPLINES)}")

    def init(self, problem: Problem, seed: Tensor | int = 0, batch: tuple[int, ...] = ()) -> PopularityState:
        """The repositories alone. The rule draws nothing: the seed only gives its batch dims.

        Raises:
            InputError: the problem has a general cost table, without the delay and accuracy that the rule compares.
        """
        if problem.delay is None:
            raise InputError("the popularity rule compares delay and accuracy; this problem has a general cost table")
        shape = broadcast_shapes(batch, torch.as_tensor(seed).shape, problem.ranked.cost.shape[:-2])
        x = problem.repository.to(problem.dtype).expand(*shape, *problem.shape).contiguous()
        return PopularityState(0, x, x.new_zeros(*shape, problem.shape[0], len(problem.task_ids)))

    def step(
        self,
        problem: Problem,
        state: PopularityState,
        r: Tensor,
        order: Tensor | None = None,
        rounds: int | None = None,
    ) -> tuple[PopularityState, Slot]:
        """Serve a slot under x_t, count who passed where, and load the models of the next slot. As `Infida.step`."""
        served = serve_kernel(problem, r, state.x, self.discipline, order, rounds)
        nodes, tasks = state.passing.shape[-2:]
        visit = (problem.paths.clamp(min=0) * tasks + problem.type_task[:, None]).flatten()
        amount = torch.where(problem.paths >= 0, r[..., None], 0.0).flatten(-2)
        count = amount.new_zeros(*amount.shape[:-1], nodes * tasks)
        count.scatter_add_(-1, visit.expand(amount.shape), amount)
        slot = state.slot + 1
        passing = state.passing + (count.unflatten(-1, (nodes, tasks)) - state.passing) / slot
        return PopularityState(slot, self._place(problem, passing), passing), Slot(served)

    def _place(self, problem: Problem, passing: Tensor) -> Tensor:
        assert problem.delay is not None
        assert problem.accuracy is not None
        assert problem.alpha is not None
        where = problem.feasible
        quality = problem.alpha[..., problem.model_task] * (1 - problem.accuracy)
        burden = problem.delay + quality[..., None, :]  # (..., V, M)
        x = problem.repository.to(problem.dtype).expand(*passing.shape[:-2], *problem.shape).contiguous()
        room = where.budgets.expand(passing.shape[:-1])
        for task in passing.argsort(stable=True, dim=-1, descending=True).unbind(-1):
            wanted = passing.gather(-1, task[..., None]) > 0
            fits = (where.free & (problem.sizes <= room[..., None])) | problem.repository
            fits = fits & (problem.model_task == task[..., None]) & wanted
            least, model = torch.where(fits, burden, torch.inf).min(-1, keepdim=True)
            load = (least < torch.inf).to(x.dtype) * (1 - x.gather(-1, model))
            x = x.scatter(-1, model, torch.maximum(load, x.gather(-1, model)))
            size = problem.sizes.expand(x.shape).gather(-1, model)
            room = room - (load * size)[..., 0]
        return x
