"""The incumbent: one allocation, refined by local search on the requests of every slot."""

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from idn_torch.errors import InputError
from idn_torch.infida import Slot
from idn_torch.philox import uniforms
from idn_torch.problem import Problem
from idn_torch.serving import DISCIPLINES, serve_kernel
from idn_torch.shapes import broadcast_shapes
from idn_torch.shared.local_search import Levels, build, evaluate, fill, find_levels, most_models, pick
from idn_torch.shared.marginals import saved_by_type
from idn_torch.shared.moves import Realised, adopt, ruin_and_recreate

__all__ = ["Incumbent", "IncumbentState", "even_requests"]

# Rounds of the greedy start: more load fewer models at a time, on fresher marginals.
_GREEDY_ROUNDS = 16
# Far beyond any capacity that could bind, and a count in every dtype.
_MOST_REQUESTS = 1e6
# A slot that no run reaches: the numbers of the taste are its own.
_TASTE = 2**31 - 1
# Models whose gains are nearer than this, relatively, count as equal.
_SPREAD = 1e-2


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

    It begins with an allocation built greedily for even requests; the first slot's requests build another; from then
    on it only changes where the gain on the last slot's requests rises. It follows slow changes well, by small steps,
    and has no guarantee of its own: an expert for `Master`, or a fair opponent.

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
        """x_1, built for `even_requests`: nothing is known of the real ones yet. As `Infida.init`."""
        key = torch.as_tensor(seed, dtype=torch.int64, device=problem.device)
        shape = broadcast_shapes(batch, key.shape, problem.ranked.cost.shape[:-2])
        key = key.expand(shape).contiguous()
        several = -(-most_models(problem) // _GREEDY_ROUNDS)
        x = _bare(problem, problem.sizes.expand(*shape, *problem.shape))
        x = build(problem, even_requests(problem), x, _GREEDY_ROUNDS, several, _taste(problem, key), self.discipline)
        return IncumbentState(0, x, key, find_levels(problem), several)

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
        proposals: Tensor | None = None,
    ) -> tuple[IncumbentState, Tensor]:
        """The search of one slot, from any allocation `(..., V, M)`; also what it gains on these requests, `(...)`.

        Args:
            proposals: allocations `(P, ..., V, M)` that nodes may take over first.
        """
        how = (self.discipline, order, rounds)
        if proposals is not None:
            begun = Realised(start, *saved_by_type(problem, r, start, *how))
            start = adopt(problem, state.levels, r, begun, proposals, *how).x
        standing = evaluate(problem, r, start, *how)
        if state.slot == 0:
            bare = _bare(problem, start)
            x = build(problem, r, bare, _GREEDY_ROUNDS, state.greedy, _taste(problem, state.seed), *how)
        else:
            x = fill(problem, start, standing.marginals.add)
        filled = evaluate(problem, r, x, *how)
        standing = pick(filled.gain > standing.gain, filled, standing)
        numbers = uniforms(state.seed, problem.shape[0], max(1, self.moves), state.slot, problem.dtype)
        x, gain = standing.x, standing.gain
        for move in range(self.moves):
            if move > 0:
                standing = evaluate(problem, r, x, *how)
            x, gain, _ = ruin_and_recreate(problem, state.levels, r, standing, numbers[..., move], *how)
        return state._replace(slot=state.slot + 1, x=x), gain


def even_requests(problem: Problem) -> Tensor:
    """A guess before anything is known, `(R,)`: every type asks for about what a model serves. Runs on the host.

    Few requests would leave capacities out of account, very many would leave all but the costs out.
    """
    able = problem.feasible.choices
    amount = float(problem.capacity[able].double().mean()) if bool(able.any()) else 0.0
    return problem.sizes.new_full((len(problem.type_ids),), round(min(amount, _MOST_REQUESTS)))


def _taste(problem: Problem, key: Tensor) -> Tensor:
    """What each node prefers among equals, `(..., V, M)`: a function of the seeds `(...)`."""
    return 1 + _SPREAD * uniforms(key, *problem.shape, _TASTE, problem.dtype)


def _bare(problem: Problem, like: Tensor) -> Tensor:
    """Nothing but what every allocation holds, `(..., V, M)`."""
    always = problem.repository | (problem.feasible.free & problem.feasible.holds_all[:, None])
    return always.to(like.dtype).expand(like.shape).contiguous()
