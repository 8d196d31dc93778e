"""Certified upper bounds on the gain of every static allocation, from cuts.

For any y_t, concavity gives `G_t(y) <= G_t(y_t) + <g_t, y - y_t>` for all y. Averaged over slots the right side is
linear in y, so its maximum over the budgets is one fractional knapsack a node, in closed form.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from idn_torch.batching import with_row_axis
from idn_torch.checks import check_tensors
from idn_torch.gain import gain_and_subgradient_kernel
from idn_torch.problem import Problem
from idn_torch.sums import steady_sum

__all__ = ["Cuts", "knapsack", "upper_bound"]


@torch.no_grad()
def upper_bound(problem: Problem, r: Tensor, lam: Tensor, y: Tensor) -> Tensor:
    """A bound on the best static allocation's mean gain over T slots, from one cut a slot, all taken at y.

    `mean_t (G_t(y) - <g_t, y>) + max { <mean_t g_t, y'> : y' feasible }`. The nearer y is to the optimum the tighter;
    cuts at the iterates of mirror ascent (`Cuts`) tighten as it runs, which one point cannot.

    Args:
        problem: the network.
        r: requests of T slots, `(..., T, R)`.
        lam: potential available capacity, `(..., T, R, K)`.
        y: where the cuts are taken, `(..., V, M)`; 1 at repository models.

    Returns:
        `(...)`, requests times latency units a slot; at least the mean gain of any feasible static allocation.

    Raises:
        InputError: naming the argument and the type, node or model that holds a wrong value.
    """
    y = y[..., None, :, :]
    by_slot = with_row_axis(problem)
    check_tensors(by_slot, r=r, lam=lam, y=y)
    value, slope = gain_and_subgradient_kernel(by_slot, r, lam, y)
    offset = value.double() - (slope.double() * y).sum((-2, -1))
    best = knapsack(problem, slope.double().mean(-3))
    return (offset.mean(-1) + best).to(y.dtype)


class Cuts(NamedTuple):
    """Cuts collected over slots, as sums in float64.

    Attributes:
        offset: `sum_t (G_t(y_t) - <g_t, y_t>)`, `(...)`.
        slope: `sum_t g_t`, `(..., V, M)`.
        slots: number of slots cut.
    """

    offset: Tensor
    slope: Tensor
    slots: int

    @classmethod
    def none(cls, problem: Problem, batch: tuple[int, ...] = ()) -> "Cuts":
        """No cut yet, for a batch of instances."""
        zeros = problem.sizes.new_zeros(*batch, *problem.shape, dtype=torch.float64)
        return cls(zeros[..., 0, 0], zeros, 0)

    def add(self, value: Tensor, slope: Tensor, y: Tensor) -> "Cuts":
        """With one more slot's cut: gain `(...)` and supergradient `(..., V, M)` at y."""
        slope = slope.double()
        offset = value.double() - steady_sum((slope * y).flatten(-2))
        return Cuts(self.offset + offset, self.slope + slope, self.slots + 1)

    def bound(self, problem: Problem) -> Tensor:
        """Bound on the mean gain of every static allocation over the slots so far, `(...)` float64; inf without any."""
        if self.slots == 0:
            return torch.full_like(self.offset, torch.inf)
        return (self.offset + knapsack(problem, self.slope)) / self.slots


def knapsack(problem: Problem, slope: Tensor) -> Tensor:
    """`max <slope, y>` over the fractional allocations, `(...)`: each node fills its budget by slope per size.

    Args:
        slope: >= 0, `(..., V, M)`.
    """
    where = problem.feasible
    sizes = problem.sizes.to(slope.dtype)
    value = torch.where(where.free, slope, 0.0).clamp(min=0)
    order = (value / sizes).argsort(stable=True, dim=-1, descending=True)
    value, taken = value.gather(-1, order), torch.where(where.free, sizes, 0.0).expand_as(value).gather(-1, order)
    budget = where.budgets.to(slope.dtype)[..., None]
    before = taken.cumsum(-1) - taken
    part = ((budget - before) / torch.where(taken > 0, taken, 1.0)).clamp(0, 1)
    fixed = torch.where(where.fixed, slope, 0.0)
    return steady_sum((value * part + fixed).flatten(-2))
