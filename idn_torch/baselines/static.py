"""What policies share that choose one allocation before the first slot and keep it."""

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from idn_torch.errors import InputError
from idn_torch.infida import Slot
from idn_torch.problem import Problem
from idn_torch.serving import DISCIPLINES, serve_kernel
from idn_torch.shapes import broadcast_shapes

__all__ = ["StaticPolicy", "StaticState", "batch_shape", "check_discipline", "repositories"]


class StaticState(NamedTuple):
    """State before a slot.

    Attributes:
        x: allocation in use, `(..., V, M)`, the same in every slot.
    """

    x: Tensor


@dataclass(frozen=True, eq=False)
class StaticPolicy:
    """One allocation for all slots: `init` chooses it.

    Attributes:
        discipline: how requests contend, "fcfs" or "fair".
    """

    discipline: Literal["fcfs", "fair"] = "fcfs"

    def __post_init__(self) -> None:
        check_discipline(self.discipline)

    def init(self, problem: Problem, seed: Tensor | int = 0, batch: tuple[int, ...] = ()) -> Any:
        """The state, a NamedTuple such as `StaticState`, with the allocation x, `(..., V, M)`."""
        raise NotImplementedError

    def step(
        self, problem: Problem, state: Any, r: Tensor, order: Tensor | None = None, rounds: int | None = None
    ) -> tuple[Any, Slot]:
        """Serve a slot's requests, change nothing. As `Infida.step`."""
        return state, Slot(serve_kernel(problem, r, state.x, self.discipline, order, rounds))


def check_discipline(discipline: str) -> None:
    """Raise `InputError` unless it is one."""
    if discipline not in DISCIPLINES:
        raise InputError(f"discipline is {discipline!r}; use one of {', '.join(DISCIPLINES)}")


def batch_shape(problem: Problem, seed: Tensor | int, batch: tuple[int, ...]) -> torch.Size:
    """Batch dims of a run: those asked for, of the seed and of the cost tables."""
    return broadcast_shapes(batch, torch.as_tensor(seed).shape, problem.ranked.cost.shape[:-2])


def repositories(problem: Problem, shape: tuple[int, ...]) -> Tensor:
    """omega for a batch, `(..., V, M)` of 0 and 1."""
    return problem.repository.to(problem.dtype).expand(*shape, *problem.shape).contiguous()
