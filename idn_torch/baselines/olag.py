"""OLAG: every node loads, greedily, the models that would have saved most on the requests that reached it."""

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from idn_torch import kernels
from idn_torch.baselines.static import batch_shape, check_discipline, repositories
from idn_torch.batching import flat_batch, flat_tables
from idn_torch.errors import InputError
from idn_torch.feasible import budget_slack
from idn_torch.hops import hop_of_rank
from idn_torch.infida import Slot
from idn_torch.problem import Problem
from idn_torch.projection import look_period
from idn_torch.serving import serve_kernel

__all__ = ["Olag", "OlagState"]

REFERENCES = ("repository", "actual")


class OlagState(NamedTuple):
    """State before a slot.

    Attributes:
        x: allocation in use, `(..., V, M)`.
    """

    x: Tensor


@dataclass(frozen=True, eq=False)
class Olag:
    """Online load-aware greedy (this project's definition, not the paper's).

    At the end of a slot each node looks at the phi requests of each type that reached it, those it served and those it
    forwarded. With a model they would save `sum phi * relu(reference - gamma)`; if those that save anything are more
    than its capacity L, the share `L / sum phi` of each counts. The model of most saving per size that fits is loaded,
    the requests it takes are taken off, and so on until nothing fits or saves. The first slot runs on the repositories.

    Attributes:
        reference: what a request costs otherwise. "repository": its repository's cost. "actual": what it was served at
            where the node forwarded it, and the repository's cost where the node served it itself: all its models are
            up for choice again, and measured against its own cost a model in use would be worth nothing.
        discipline: how requests contend, "fcfs" or "fair".
    """

    reference: Literal["repository", "actual"] = "repository"
    discipline: Literal["fcfs", "fair"] = "fcfs"

    def __post_init__(self) -> None:
        if self.reference not in REFERENCES:
            raise InputError(f"reference is {self.reference!r}; use one of {', '.join(REFERENCES)}")
        check_discipline(self.discipline)

    def init(self, problem: Problem, seed: Tensor | int = 0, batch: tuple[int, ...] = ()) -> OlagState:
        """The repositories alone. The rule draws nothing: the seed only gives its batch dims."""
        return OlagState(repositories(problem, batch_shape(problem, seed, batch)))

    def step(
        self, problem: Problem, state: OlagState, r: Tensor, order: Tensor | None = None, rounds: int | None = None
    ) -> tuple[OlagState, Slot]:
        """Serve a slot under x_t, and load the models of the next slot.

        Args:
            problem, state, r, order: as in `Infida.step`.
            rounds: bound on the rounds of serving and on the models that a node loads, for a device that the host must
                never wait for.
        """
        served = serve_kernel(problem, r, state.x, self.discipline, order, rounds)
        return OlagState(self._place(problem, served.served, rounds)), Slot(served)

    def _place(self, problem: Problem, served: Tensor, rounds: int | None) -> Tensor:
        nodes, models = problem.shape
        where = problem.feasible
        usable = problem.ranked.mask & ~problem.ranked.repository
        batch, (served, hop, usable) = flat_batch(problem, (served, 2), (hop_of_rank(problem), 2), (usable, 2))
        cost, option, first = flat_tables(problem, batch)
        left, saving = self._savings(problem, served, hop, usable, cost, first)
        x = repositories(problem, (batch.numel(),)).flatten(1)
        room = where.budgets.repeat(batch.numel(), 1)
        slack = budget_slack(problem.budgets)
        # Every model that a node loads takes another look at its tables.
        if rounds is None and kernels.compiled_for(served, saving.numel() * models):
            _compiled(problem, option, hop, saving, left, room, slack, x)
        else:
            x = _torch(problem, option, hop, saving, left, room, slack, x, rounds)
        return x.view(*batch, nodes, models)

    def _savings(
        self, problem: Problem, served: Tensor, hop: Tensor, usable: Tensor, cost: Tensor, first: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Requests that reached each path position `(B, R, J)`, and what an option saves on one of them `(B, R, K)`."""
        nothing = served.new_zeros(*served.shape[:-1], problem.paths.shape[1])
        here = nothing.scatter_add(-1, hop, served)
        reached = _sum_from(here)
        reference = cost.gather(-1, first[..., None])
        if self.reference == "actual":
            paid = _sum_from(nothing.scatter_add(-1, hop, served * cost))
            forwarded = torch.nn.functional.pad(paid[..., 1:], (0, 1))
            mean = (here * reference + forwarded) / reached.where(reached > 0, 1.0)
            reference = mean.gather(-1, hop)
        return reached, torch.where(usable, (reference - cost).relu(), 0.0)


def _sum_from(values: Tensor) -> Tensor:
    """The sum from each place on: of positive terms only, so that nothing left is exactly 0."""
    return values.flip(-1).cumsum(-1).flip(-1)


def _torch(
    problem: Problem,
    option: Tensor,
    hop: Tensor,
    saving: Tensor,
    left: Tensor,
    room: Tensor,
    slack: Tensor,
    x: Tensor,
    rounds: int | None,
) -> Tensor:
    """All nodes load one model each, then look again."""
    size = x.shape[0]
    nodes, models = problem.shape
    saves = saving > 0
    index = option.flatten(1).long().expand(size, -1)
    sizes, capacity, free = problem.sizes, problem.capacity.flatten(), problem.feasible.free
    for done in range(1, (models if rounds is None else rounds) + 1):
        amount = torch.where(saves, left.gather(-1, hop), 0.0)
        volume = torch.zeros_like(x).scatter_add_(-1, index, amount.flatten(1))
        worth = torch.zeros_like(x).scatter_add_(-1, index, (amount * saving).flatten(1))
        share = (capacity / volume.where(volume > 0, 1.0)).clamp(max=1)
        density = (worth * share).view(size, nodes, models) / sizes
        fits = free & (sizes <= (room + slack)[..., None]) & (x.view_as(density) < 0.5)
        best, model = torch.where(fits, density, 0.0).max(-1, keepdim=True)
        if rounds is None and done % look_period(x) == 0 and not (best > 0).any():
            break
        chosen = torch.zeros_like(density).scatter_(-1, model, (best > 0).to(x.dtype))
        room = room - (sizes * chosen).sum(-1)
        x = torch.maximum(x, chosen.flatten(1))
        # A node loads one model at a time, so at most one rank of a position adds to this sum.
        taken = (chosen.flatten(1) * share).gather(-1, index).view_as(saving) * saves
        left = left * (1 - torch.zeros_like(left).scatter_add_(-1, hop, taken))
    return x


def _compiled(
    problem: Problem,
    option: Tensor,
    hop: Tensor,
    saving: Tensor,
    left: Tensor,
    room: Tensor,
    slack: Tensor,
    x: Tensor,
) -> None:
    from idn_torch.kernels import olag as olag_kernels

    kernels.use_threads()
    olag_kernels.place(
        kernels.rows(option),
        kernels.rows(hop),
        *(tensor.contiguous().numpy() for tensor in (saving, left, problem.capacity.flatten(), problem.sizes)),
        problem.feasible.free.numpy(),
        room.numpy(),
        slack.numpy(),
        problem.model_task.numpy(),
        x.view(-1, *problem.shape).numpy(),
    )
