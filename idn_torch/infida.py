"""INFIDA: online mirror ascent on fractional allocations, rounded to models on nodes.

Source: inference delivery networks paper, Sec. IV, Algorithm 1.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from idn_torch.errors import InputError
from idn_torch.feasible import budget_slack
from idn_torch.gain import gain_and_subgradient_kernel
from idn_torch.marginal import marginal_gains
from idn_torch.mirror import first_allocation, lift, mirror_step_kernel, slope_norm
from idn_torch.philox import uniforms
from idn_torch.problem import Problem
from idn_torch.projection import MIRROR_MAPS
from idn_torch.rounding import depround_kernel
from idn_torch.serving import DISCIPLINES, Served, serve_kernel
from idn_torch.shapes import broadcast_shapes

__all__ = ["Infida", "InfidaState", "Slot"]

STEP_SIZES = ("scale_free", "sqrt", "constant")
RESIDUALS = ("strict", "draw")

# Keeps the numbers of the noise apart from those that round: "noise" in ASCII.
_NOISE_KEY = 0x6E6F697365
COUPLINGS = ("fixed", "fresh")


class Slot(NamedTuple):
    """What one slot showed.

    Attributes:
        served: who was served where under x_t.
        gain_fractional: G(r_t, l_t, y_t), `(...)`; None for policies without a fractional state.
        slope: the supergradient there, `(..., V, M)`; None likewise.
        y: where it was taken; None likewise.
    """

    served: Served
    gain_fractional: Tensor | None = None
    slope: Tensor | None = None
    y: Tensor | None = None


class InfidaState(NamedTuple):
    """State before a slot.

    Attributes:
        slot: number of slots done.
        y: fractional allocation, `(..., V, M)`.
        x: allocation in use, `(..., V, M)`.
        slope_squares: `sum_t max_m (g/s)^2` of each node so far, `(..., V)`.
        seed: `(...)` int64.
        uniforms: `(..., V, M)` when the coupling is fixed, else `(..., 0, 0)`.
    """

    slot: int
    y: Tensor
    x: Tensor
    slope_squares: Tensor
    seed: Tensor
    uniforms: Tensor


@dataclass(frozen=True, eq=False)
class Infida:
    """The INFIDA policy and its options: `init`, then `step` for every slot.

    Attributes:
        c: step size, a number or a tensor that broadcasts with the batch `(...)`.
        step_size: "scale_free": `c / sqrt(sum of the node's squared slope norms)`, per node, nodes without any
            slope yet do not move; "sqrt": `c / sqrt(t)`; "constant": c.
        mirror_map: "negentropy" or "euclidean".
        floor: delta in [0, 1): the share of an even allocation that is mixed in after each step.
        refresh: slots between two roundings, >= 1.
        coupling: "fixed" rounds every slot with the same uniforms, so that x follows y with few reloads; "fresh"
            draws new ones. Given capacities that no draw has influenced, both give x_t the same law in every slot;
            under contention y_t itself depends on the earlier draws, which "fixed" reuses.
        residual: "strict" never exceeds a budget and fills what is left by exact marginal gain; "draw" leaves the
            last fraction of a node to chance, as the paper does.
        discipline: how requests contend, "fcfs" or "fair".
        noise: standard deviation of what is added to each entry of the slope before the step, per size, in units of
            its node's largest slope per size; >= 0. Independent, uniform, of mean 0: the guarantee keeps to it (paper,
            Sec. IV-B, last remark). At 1 even the best model of a node is hard to tell from the rest.
    """

    c: float | Tensor = 16.0
    step_size: Literal["scale_free", "sqrt", "constant"] = "scale_free"
    mirror_map: Literal["negentropy", "euclidean"] = "negentropy"
    floor: float = 1e-3
    refresh: int = 1
    coupling: Literal["fixed", "fresh"] = "fixed"
    residual: Literal["strict", "draw"] = "strict"
    discipline: Literal["fcfs", "fair"] = "fcfs"
    noise: float = 0.0

    def __post_init__(self) -> None:
        for name, allowed in {
            "step_size": STEP_SIZES,
            "mirror_map": MIRROR_MAPS,
            "coupling": COUPLINGS,
            "residual": RESIDUALS,
            "discipline": DISCIPLINES,
        }.items():
            if getattr(self, name) not in allowed:
                raise InputError(f"{name} is {getattr(self, name)!r}; use one of {', '.join(allowed)}")
        steps = torch.as_tensor(self.c)
        if not (steps.isfinite() & (steps > 0)).all():
            raise InputError(f"c is {self.c}; the step size must be > 0 and finite")
        if not 0 <= self.floor < 1:
            raise InputError(f"floor is {self.floor}; it must be in [0, 1)")
        if self.refresh < 1:
            raise InputError(f"refresh is {self.refresh}; it must be at least 1 slot")
        if not 0 <= self.noise < float("inf"):
            raise InputError(f"noise is {self.noise}; it must be >= 0 and finite")

    def init(self, problem: Problem, seed: Tensor | int = 0, batch: tuple[int, ...] = ()) -> InfidaState:
        """y_1, the minimiser of the mirror map, and x_1, its rounding.

        Args:
            problem: the network, possibly with a batch of cost tables.
            seed: `(...)` int64 or a number.
            batch: batch dims of the run beyond those of the seed, the tables and c.
        """
        key = torch.as_tensor(seed, dtype=torch.int64, device=problem.device)
        steps = torch.as_tensor(self.c).shape
        shape = broadcast_shapes(batch, key.shape, problem.ranked.cost.shape[:-2], steps)
        key = key.expand(shape).contiguous()
        nodes, models = problem.shape
        fixed = self.coupling == "fixed"
        numbers = uniforms(key, *((nodes, models) if fixed else (0, 0)), dtype=problem.dtype)
        y = first_allocation(problem.sizes, problem.feasible, self.mirror_map).expand(*shape, nodes, models)
        squares = y.new_zeros(*shape, nodes)
        state = InfidaState(0, y.contiguous(), y, squares, key, numbers)
        return state._replace(x=self._round(problem, state))

    def step(
        self, problem: Problem, state: InfidaState, r: Tensor, order: Tensor | None = None, rounds: int | None = None
    ) -> tuple[InfidaState, Slot]:
        """Serve a slot's requests under x_t, learn from it, and decide x_{t+1}. Checks nothing, waits for nothing.

        Args:
            problem: the network; another `with_cost` every slot for costs that vary in time.
            state: from `init` or the step before.
            r: requests, `(..., R)`.
            order: order of arrival for "fcfs", `(..., R)`.
            rounds: bound on the rounds of serving and the passes of the projection, for a device that the host must
                never wait for; None runs them to the end.

        Returns:
            The state before the next slot, and what this slot showed.
        """
        served = serve_kernel(problem, r, state.x, self.discipline, order, rounds)
        value, slope = gain_and_subgradient_kernel(problem, r, served.capacity, state.y)
        where = problem.feasible
        seen = self._blur(problem, state, slope) if self.noise > 0 else slope
        squares = state.slope_squares + slope_norm(seen, problem.sizes, where, self.mirror_map).square()
        slot = state.slot + 1
        eta = self._eta(slot, squares)
        y = mirror_step_kernel(state.y, seen, eta[..., None], problem.sizes, where, self.mirror_map, rounds)
        y = lift(y, problem.sizes, where, self.floor)
        following = state._replace(slot=slot, y=y, slope_squares=squares)
        if slot % self.refresh == 0:
            following = following._replace(x=self._round(problem, following, r, served.capacity))
        return following, Slot(served, value, slope, state.y)

    def _blur(self, problem: Problem, state: InfidaState, slope: Tensor) -> Tensor:
        """The slope with noise, which the cuts of the slot do not see: a function of the seed and the slot."""
        numbers = uniforms(state.seed ^ _NOISE_KEY, *problem.shape, slot=state.slot, dtype=problem.dtype)
        unit = 12**0.5 * (numbers - 0.5)  # mean 0, variance 1
        scale = self.noise * slope_norm(slope, problem.sizes, problem.feasible, "negentropy")
        return slope + scale[..., None] * problem.sizes * unit

    def _eta(self, slot: int, squares: Tensor) -> Tensor:
        """Step size of each node, `(..., V)`."""
        c = torch.as_tensor(self.c, dtype=squares.dtype, device=squares.device)[..., None]
        if self.step_size == "scale_free":
            return torch.where(squares > 0, c * squares.clamp(min=torch.finfo(squares.dtype).tiny).rsqrt(), 0.0)
        return (c / slot**0.5 if self.step_size == "sqrt" else c).expand_as(squares)

    def _round(
        self, problem: Problem, state: InfidaState, r: Tensor | None = None, lam: Tensor | None = None
    ) -> Tensor:
        """x from y; `strict` ranks what still fits by its marginal gain under the last observation, if there is one."""
        numbers = state.uniforms
        if self.coupling == "fresh":
            numbers = uniforms(state.seed, *problem.shape, slot=state.slot, dtype=problem.dtype)
        x, residual = depround_kernel(state.y, problem.sizes, numbers)
        if self.residual == "draw":
            return x
        x = drop_overshoot(problem, x, residual)
        return x if r is None or lam is None else fill_budgets(problem, x, r, lam)


def free_room(problem: Problem, x: Tensor) -> Tensor:
    """Budget that allocation x leaves at each node, `(..., V)`; negative where it exceeds it by more than rounding."""
    used = (problem.sizes * x).sum(-1, dtype=torch.float64)
    room = problem.budgets.double() - used
    slack = budget_slack(problem.budgets).double()
    return torch.where(room.abs() <= slack, 0.0, room)


def drop_overshoot(problem: Problem, x: Tensor, residual: Tensor) -> Tensor:
    """Unload the residual model of every node that exceeds its budget."""
    over = (free_room(problem, x) < 0) & (residual >= 0)
    at = residual.clamp(min=0)[..., None]
    return x.scatter(-1, at, torch.where(over[..., None], 0.0, x.gather(-1, at)))


def fill_budgets(problem: Problem, x: Tensor, r: Tensor, lam: Tensor) -> Tensor:
    """Load into every node's free budget the model of best marginal gain that fits, while one gains anything.

    All nodes load at once, then the marginals are taken again: where a node just loaded a model, as marginals only
    fall when others load.
    """
    where = problem.feasible
    free = where.choices
    for _ in range(problem.fill_rounds):
        fits = free & (problem.sizes <= free_room(problem, x)[..., None])
        best, model = marginal_gains(problem, r, lam, x, fits).max(-1, keepdim=True)
        x = x.scatter(-1, model, torch.where(best > 0, 1.0, x.gather(-1, model)))
        free = free & (best > 0)
    return x
