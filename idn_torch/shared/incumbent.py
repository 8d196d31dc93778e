"""The incumbent: one allocation, refined by local search on the requests of every slot."""

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from idn_torch.errors import InputError
from idn_torch.infida import Slot, drop_overshoot
from idn_torch.mirror import first_allocation
from idn_torch.philox import uniforms
from idn_torch.problem import Problem
from idn_torch.rounding import depround_kernel
from idn_torch.serving import DISCIPLINES, serve_kernel
from idn_torch.shapes import broadcast_shapes
from idn_torch.shared.local_search import Levels, evaluate, fill, find_levels, most_models, pick, ruin_and_recreate

__all__ = ["Incumbent", "IncumbentState"]

# Rounds of the greedy start: more load fewer models at a time, on fresher marginals.
_GREEDY_ROUNDS = 16


class IncumbentState(NamedTuple):
    """State before a slot.

    Attributes:
        slot: number of slots done.
        x: allocation in use, `(..., V, M)`.
        seed: `(...)` int64.
        levels: nodes that move together.
        greedy: models a node loads in a round of the greedy start.
    """

    slot: int
    x: Tensor
    seed: Tensor
    levels: Levels
    greedy: int


@dataclass(frozen=True)
class Incumbent:
    """Ruin and recreate on the requests of the slot just seen: in every move each node tries to swap a model.

    The first slot's requests build an allocation greedily; from then on it only changes where the gain on the last
    slot's requests rises. It follows slow changes well, by small steps, and has no guarantee of its own: an expert for
    `Master`, or a fair opponent.

    Attributes:
        moves: a slot, >= 0.
        discipline: how requests contend, "fcfs" or "fair".

    Source: this project's own.
    """

    moves: int = 1
    discipline: Literal["fcfs", "fair"] = "fcfs"

    def __post_init__(self) -> None:
        if self.discipline not in DISCIPLINES:
            raise InputError(f"discipline is {self.discipline!r}; use one of {', '.join(DISCIPLINES)}")
        if self.moves < 0:
            raise InputError(f"moves is {self.moves}; it must be at least 0")

    def init(self, problem: Problem, seed: Tensor | int = 0, batch: tuple[int, ...] = ()) -> IncumbentState:
        """x_1, a rounding of an even allocation: nothing is known of the requests yet. As `Infida.init`."""
        key = torch.as_tensor(seed, dtype=torch.int64, device=problem.device)
        shape = broadcast_shapes(batch, key.shape, problem.ranked.cost.shape[:-2])
        key = key.expand(shape).contiguous()
        y = first_allocation(problem.sizes, problem.feasible, "negentropy")
        rounded = depround_kernel(y, problem.sizes, uniforms(key, *problem.shape, dtype=problem.dtype))
        several = -(-most_models(problem) // _GREEDY_ROUNDS)
        return IncumbentState(0, drop_overshoot(problem, *rounded), key, find_levels(problem), several)

    def step(
        self, problem: Problem, state: IncumbentState, r: Tensor, order: Tensor | None = None, rounds: int | None = None
    ) -> tuple[IncumbentState, Slot]:
        """Serve a slot's requests under x_t and improve it for them; as `Infida.step`."""
        served = serve_kernel(problem, r, state.x, self.discipline, order, rounds)
        return self.improve(problem, state, r, state.x, order, rounds)[0], Slot(served)

    def improve(
        self,
        problem: Problem,
        state: IncumbentState,
        r: Tensor,
        start: Tensor,
        order: Tensor | None = None,
        rounds: int | None = None,
    ) -> tuple[IncumbentState, Tensor]:
        """The search of one slot, from any allocation `(..., V, M)`; also what it gains on these requests, `(...)`."""
        how = (self.discipline, order, rounds)
        standing = evaluate(problem, r, start, *how)
        if state.slot == 0:
            bare = problem.repository | (problem.feasible.free & problem.feasible.holds_all[:, None])
            built = evaluate(problem, r, bare.to(start.dtype).expand(start.shape).contiguous(), *how)
            for _ in range(_GREEDY_ROUNDS):
                x = fill(problem, built.x, built.marginals.add, None, state.greedy)
                built = evaluate(problem, r, x, *how)
        else:
            x = fill(problem, standing.x, standing.marginals.add)
            built = evaluate(problem, r, x, *how)
        standing = pick(built.gain > standing.gain, built, standing)
        numbers = uniforms(state.seed, problem.shape[0], max(1, self.moves), state.slot, problem.dtype)
        x, gain = standing.x, standing.gain
        for move in range(self.moves):
            if move > 0:
                standing = evaluate(problem, r, x, *how)
            x, gain = ruin_and_recreate(problem, state.levels, r, standing, numbers[..., move], *how)
        return state._replace(slot=state.slot + 1, x=x), gain
