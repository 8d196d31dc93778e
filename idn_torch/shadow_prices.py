"""What one more unit of budget would gain at each node: the capacity planner's answer."""

from typing import NamedTuple

import torch
from torch import Tensor

from idn_torch.bounds import Cuts
from idn_torch.errors import InputError
from idn_torch.feasible import budget_slack
from idn_torch.offline import OfflineResult
from idn_torch.problem import Problem

__all__ = ["ShadowPrices", "shadow_prices"]


class ShadowPrices(NamedTuple):
    """Gain per unit of budget, in requests times latency units per size unit, a slot.

    Attributes:
        left: what the last unit of each node's budget is worth, `(..., V)`: the loss of taking a little away.
        right: what the next unit would be worth, `(..., V)`, at most `left`; 0 at nodes that hold everything.
    """

    left: Tensor
    right: Tensor


@torch.no_grad()
def shadow_prices(problem: Problem, slope: Tensor | Cuts | OfflineResult) -> ShadowPrices:
    """The one-sided derivatives, in each node's budget, of a certified bound on the best static gain.

    A bound `constant + max <slope, y>` is a fractional knapsack at each node, which fills the budget by slope per size.
    Its derivative is the critical ratio: on the right that of the next model to fill, on the left of the last one
    filled. Where the bound is tight both lie between the optimum's own one-sided derivatives, which differ at a kink.
    Within a gap of eps the optimum falls by at least `left * h - eps` for h units less, and rises by at most
    `right * h + eps` for h more, as long as no further model fits.

    A model larger than a node's whole budget (less its repository models) is excluded there and enters no price: budget
    that would let it in may be worth more than `right` says, at the unit where it first fits. In particular a node
    whose budget holds no model at all has the price 0. Compare `offline` on the enlarged network for such a step.

    Args:
        problem: the network.
        slope: the result of `offline`, the `Cuts` of a run, or the mean supergradient itself, >= 0, `(..., V, M)`.

    Returns:
        `ShadowPrices`, `(..., V)` float64.

    Raises:
        InputError: cuts of no slot, or a slope of a wrong shape or with a negative or infinite entry (node and model
            are named).

    Example:
        >>> prices = shadow_prices(problem, offline(problem))  # doctest: +SKIP
        >>> problem.node_ids[int(prices.right.argmax())]  # where the next GPU pays most  # doctest: +SKIP
        'Berlin'
    """
    worth = _mean_slope(problem, slope)
    where = problem.feasible
    size = problem.sizes.double()
    budget = where.budgets.double()[..., None]
    # Sizes that add up to a budget in decimals may miss it by a rounding.
    slack = budget_slack(problem.budgets).double()[..., None]
    ratio = torch.where(where.free, worth / size, -1.0)
    ratio, order = ratio.sort(stable=True, descending=True, dim=-1)
    real = ratio >= 0
    filled = torch.where(real, size.expand(ratio.shape).gather(-1, order), 0.0).cumsum(-1)
    before = filled.roll(1, -1)
    before[..., 0] = 0
    ratio = ratio.clamp(min=0)
    # Falling ratios: the first model not filled whole has the largest of its side, the last one touched the least.
    right = torch.where(real & (filled > budget + slack), ratio, 0.0).amax(-1)
    touched = real & (before < budget - slack)
    left = torch.where(touched, ratio, torch.inf).amin(-1)
    # Budget left over after everything is loaded is worth nothing.
    spare = filled[..., -1] < budget[..., 0] - slack[..., 0]
    return ShadowPrices(torch.where(spare | ~touched.any(-1), 0.0, left), right)


def _mean_slope(problem: Problem, slope: Tensor | Cuts | OfflineResult) -> Tensor:
    if isinstance(slope, Cuts):
        if slope.slots == 0:
            raise InputError("the cuts are of no slot: give those of a policy with a fractional state, after a slot")
        return slope.slope / slope.slots
    worth = slope.slope if isinstance(slope, OfflineResult) else slope
    if tuple(worth.shape[-2:]) != problem.shape:
        raise InputError(
            f"slope is {tuple(worth.shape)}; expected (..., V, M) = (..., {problem.shape[0]}, {problem.shape[1]})"
        )
    good = (worth >= 0) & (worth < torch.inf)
    if not good.all():
        *_, v, m = (~good).nonzero()[0].tolist()
        raise InputError(
            f"slope: node {problem.node_ids[v]!r}, model {problem.model_ids[m]!r} holds {worth[~good][0].item():g}; "
            "must be >= 0 and finite"
        )
    return worth.double()
