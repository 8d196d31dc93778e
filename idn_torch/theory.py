"""Constants of the regret guarantee, for one problem and horizon.

Derived for the s-weighted entropy from the standard analysis of online mirror ascent; they are not the paper's own.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from idn_torch.errors import InputError
from idn_torch.problem import Problem

__all__ = ["PSI", "Theory", "theory"]

PSI = 1 - 1 / math.e
"""The factor of the guarantee: the rounded allocation keeps at least 1 - 1/e of the concave gain in expectation."""


class Theory(NamedTuple):
    """`E sum G(x_t) >= psi * sum G(x*) - psi * norm * sqrt(2 * D * T / theta)` with step size `eta`.

    It holds for l_t <= r_t independent of the draw of x_t (with contention l_t depends on it), without a floor and
    with the residual drawn.

    Attributes:
        theta: strong convexity of the mirror map, `1 / sum_v b'_v`.
        diameter: D, largest Bregman divergence from y_1.
        norm: a-priori bound on `max |g| / s`.
        eta: `sqrt(2 * theta * D / T) / norm`.
        regret: `psi * norm * sqrt(2 * D * T / theta)`.
    """

    theta: float
    diameter: float
    norm: float
    eta: float
    regret: float


@torch.no_grad()
def theory(problem: Problem, requests: Tensor) -> Theory:
    """The constants for a sequence of requests, `(T, R)`; only nodes that have a choice count.

    Raises:
        InputError: no node has a choice to make, or no request can gain anything.
    """
    where = problem.feasible
    choose = where.choices
    total = torch.where(choose, problem.sizes, 0.0).sum(-1).double()
    nodes = total > 0
    if not nodes.any():
        raise InputError("no node has a choice to make: every budget holds all models or none")
    budget = where.budgets.double()[nodes]
    theta = 1 / float(budget.sum())
    diameter = float((budget * (total[nodes] / budget).log()).sum())
    ranked = problem.ranked
    if ranked.cost.ndim > 2:
        raise InputError("theory takes one problem; this one has a batch of cost tables")
    peak = requests.amax(0)[:, None]
    limit = torch.minimum(problem.capacity.flatten()[ranked.option.long()], peak)
    saving = (ranked.cost.gather(-1, ranked.first_repository[:, None]) - ranked.cost).relu() * limit
    slope = torch.zeros_like(problem.sizes).flatten()
    slope.index_add_(0, ranked.option.flatten(), saving.masked_fill(~ranked.mask, 0).flatten())
    norm = float(torch.where(choose, slope.view_as(problem.sizes) / problem.sizes, 0.0).amax())
    if norm <= 0:
        raise InputError("no request can gain anything: every saving is 0")
    slots = requests.shape[0]
    eta = math.sqrt(2 * theta * diameter / slots) / norm
    return Theory(theta, diameter, norm, eta, PSI * norm * math.sqrt(2 * diameter * slots / theta))
