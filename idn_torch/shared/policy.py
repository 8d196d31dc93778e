"""Mirror ascent on the shared-capacity gain, with or without what rounded states would really gain."""

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from idn_torch.errors import InputError
from idn_torch.infida import Slot, drop_overshoot, fill_budgets
from idn_torch.mirror import first_allocation, lift, mirror_step_kernel, slope_norm
from idn_torch.philox import uniforms
from idn_torch.problem import Problem
from idn_torch.rounding import depround_kernel
from idn_torch.serving import DISCIPLINES, serve_kernel
from idn_torch.shapes import broadcast_shapes
from idn_torch.shared.gain import Duals, shared_gain_kernel
from idn_torch.shared.marginals import serve_and_marginals

__all__ = ["Shared", "SharedMixed", "SharedState", "ascend"]


class SharedState(NamedTuple):
    """State before a slot.

    Attributes:
        slot: number of slots done.
        y: fractional allocation, `(..., V, M)`.
        x: allocation in use, `(..., V, M)`.
        slope_squares: `sum_t max_m (slope/s)^2` of each node so far, `(..., V)`.
        duals: prices and flows of the shared-capacity gain, the warm start of the next slot.
        seed: `(...)` int64.
        uniforms: of the rounding, `(..., V, M)`.
    """

    slot: int
    y: Tensor
    x: Tensor
    slope_squares: Tensor
    duals: Duals
    seed: Tensor
    uniforms: Tensor


def ascend(
    problem: Problem,
    y: Tensor,
    slope: Tensor,
    squares: Tensor,
    c: float | Tensor = 16.0,
    floor: float = 1e-3,
    rounds: int | None = None,
) -> tuple[Tensor, Tensor]:
    """One entropic mirror step along a slope: the next y, and each node's sum of squared slope norms with this one."""
    where, sizes = problem.feasible, problem.sizes
    squares = squares + slope_norm(slope, sizes, where, "negentropy").square()
    step = torch.as_tensor(c, dtype=squares.dtype, device=squares.device)[..., None]
    eta = torch.where(squares > 0, step * squares.clamp(min=torch.finfo(squares.dtype).tiny).rsqrt(), 0.0)
    y = mirror_step_kernel(y, slope, eta[..., None], sizes, where, "negentropy", rounds)
    return lift(y, sizes, where, floor), squares


@dataclass(frozen=True, eq=False)
class Shared:
    """Like INFIDA, on the gain that counts each model's capacity once: `init`, then `step` for every slot.

    The slope is `(1 - marginals) * g + marginals * h`: g a supergradient of the shared-capacity gain at y_t, h the mean
    of what each model would really gain or lose around `draws` independent roundings of y_t, served fairly. g knows the
    capacities but believes in fractions; h knows what rounding leaves of them, but only to first order.

    A slot's `slope` and `gain_fractional` are g and the dual bound on G*(y_t): their cuts (`Result.state.cuts`) are
    the certified bound for every policy, since nothing in them depends on the allocation in use.

    Attributes:
        marginals: weight of h in [0, 1]; several make a trajectory each, along a new first batch dim.
        draws: roundings a slot for h, >= 1.
        iterations: of the duals in every slot but the first, >= 0.
        first_iterations: in the first slot, which has no warm start, >= 0.
        c: step size: `c / sqrt(sum of the node's squared slope norms)`; a number > 0 or a tensor `(...)`.
        floor: delta in [0, 1): the share of an even allocation that is mixed in after each step.
        discipline: how requests contend, "fcfs" or "fair".

    Source: this project's own.
    """

    marginals: float | tuple[float, ...] = 0.0
    draws: int = 1
    iterations: int = 5
    first_iterations: int = 50
    c: float | Tensor = 16.0
    floor: float = 1e-3
    discipline: Literal["fcfs", "fair"] = "fcfs"

    def __post_init__(self) -> None:
        if self.discipline not in DISCIPLINES:
            raise InputError(f"discipline is {self.discipline!r}; use one of {', '.join(DISCIPLINES)}")
        steps = torch.as_tensor(self.c)
        if not (steps.isfinite() & (steps > 0)).all():
            raise InputError(f"c is {self.c}; the step size must be > 0 and finite")
        if not self._weights or not all(0 <= weight <= 1 for weight in self._weights):
            raise InputError(f"marginals is {self.marginals}; every weight must be in [0, 1]")
        if not 0 <= self.floor < 1:
            raise InputError(f"floor is {self.floor}; it must be in [0, 1)")
        for name, least in {"draws": 1, "iterations": 0, "first_iterations": 0}.items():
            if getattr(self, name) < least:
                raise InputError(f"{name} is {getattr(self, name)}; it must be at least {least}")

    @property
    def _weights(self) -> tuple[float, ...]:
        return self.marginals if isinstance(self.marginals, tuple) else (self.marginals,)

    def init(self, problem: Problem, seed: Tensor | int = 0, batch: tuple[int, ...] = ()) -> SharedState:
        """y_1, the minimiser of the mirror map, and x_1, its rounding; arguments as in `Infida.init`."""
        key = torch.as_tensor(seed, dtype=torch.int64, device=problem.device)
        shape = broadcast_shapes(batch, key.shape, problem.ranked.cost.shape[:-2], torch.as_tensor(self.c).shape)
        if isinstance(self.marginals, tuple):
            shape = torch.Size((len(self.marginals), *shape))
        key = key.expand(shape).contiguous()
        nodes, models = problem.shape
        numbers = uniforms(key, nodes, models, dtype=problem.dtype)
        y = first_allocation(problem.sizes, problem.feasible, "negentropy").expand(*shape, nodes, models).contiguous()
        x = drop_overshoot(problem, *depround_kernel(y, problem.sizes, numbers))
        return SharedState(0, y, x, y.new_zeros(*shape, nodes), Duals.zero(problem, tuple(shape)), key, numbers)

    def step(
        self, problem: Problem, state: SharedState, r: Tensor, order: Tensor | None = None, rounds: int | None = None
    ) -> tuple[SharedState, Slot]:
        """Serve a slot's requests under x_t, learn from them, and decide x_{t+1}; as `Infida.step`."""
        served = serve_kernel(problem, r, state.x, self.discipline, order, rounds)
        count = self.iterations if state.slot else self.first_iterations
        cut = shared_gain_kernel(problem, r, state.y, count, state.duals)
        slope = self._mix(problem, state, r, cut.supergradient, rounds)
        y, squares = ascend(problem, state.y, slope, state.slope_squares, self.c, self.floor, rounds)
        x = drop_overshoot(problem, *depround_kernel(y, problem.sizes, state.uniforms))
        x = fill_budgets(problem, x, r, served.capacity)
        following = SharedState(state.slot + 1, y, x, squares, cut.state, state.seed, state.uniforms)
        return following, Slot(served, cut.bound, cut.supergradient, state.y)

    def _mix(self, problem: Problem, state: SharedState, r: Tensor, slope: Tensor, rounds: int | None) -> Tensor:
        """The slopes with the sampled marginals' part in them, drawn for the trajectories that have one."""
        sampled = [i for i, weight in enumerate(self._weights) if weight > 0]
        if not sampled:
            return slope
        many = isinstance(self.marginals, tuple)
        y, seed, g = (t if many else t[None] for t in (state.y, state.seed, slope))
        y, seed = (torch.stack([t[i] for i in sampled]) for t in (y, seed))
        draws = range(state.slot * self.draws, (state.slot + 1) * self.draws)
        numbers = torch.stack([uniforms(seed, *problem.shape, slot=i, dtype=problem.dtype) for i in draws])
        x = drop_overshoot(problem, *depround_kernel(y, problem.sizes, numbers))
        _, around = serve_and_marginals(problem, r, x, "fair", None, rounds)
        h = (around.add + around.loss).mean(0)
        mixed = [
            (1 - weight) * g[i] + weight * h[sampled.index(i)] if weight > 0 else g[i]
            for i, weight in enumerate(self._weights)
        ]
        return torch.stack(mixed) if many else mixed[0]


@dataclass(frozen=True, eq=False)
class SharedMixed(Shared):
    """`Shared` with a quarter of the slope from what rounded states would really gain."""

    marginals: float | tuple[float, ...] = 0.25
