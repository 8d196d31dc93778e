"""The feasible set of each node: which models it may choose from, and with how much budget.

Source: inference delivery networks paper, eqs. (1)-(3) and (17).
"""

from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["FeasibleSet", "feasible_set"]


class FeasibleSet(NamedTuple):
    """Per node: the entries it decides over and the budget left for them.

    Attributes:
        free: `(..., V, M)` bool, entries that are neither fixed at 1 nor excluded for being larger than the budget.
        fixed: `(..., V, M)` bool, entries held at 1 (repository models).
        budgets: b', `(..., V)`, the budget less the sizes of the fixed entries.
        holds_all: `(..., V)` bool, nodes where every free entry fits, so that y = 1 there.
    """

    free: Tensor
    fixed: Tensor
    budgets: Tensor
    holds_all: Tensor

    @property
    def choices(self) -> Tensor:
        """Entries that an allocation may or may not load, `(..., V, M)` bool: the free ones of nodes that choose."""
        return self.free & ~self.holds_all[..., None]

    def complete(self, y: Tensor) -> Tensor:
        """`y` on nodes that choose, 1 on free entries of nodes that hold everything and on fixed ones, else 0."""
        y = torch.where(self.free, y, 0.0)
        return torch.where(self.fixed | (self.free & self.holds_all[..., None]), 1.0, y)


def budget_slack(budgets: Tensor) -> Tensor:
    """Room that is none, `(..., V)`: decimal sizes that add up to a budget may miss it by roundings of this size."""
    return 8 * torch.finfo(budgets.dtype).eps * budgets


def feasible_set(sizes: Tensor, budgets: Tensor, fixed: Tensor | None) -> FeasibleSet:
    """Split each node's budget between fixed entries and the free choice; assumes b' >= 0.

    Args:
        sizes: s > 0, `(..., V, M)`.
        budgets: b, totals with the fixed entries included, `(..., V)`.
        fixed: omega, entries held at 1, `(..., V, M)` bool; None for none.
    """
    if fixed is None:
        fixed = torch.zeros_like(sizes, dtype=torch.bool)
    left = budgets - torch.where(fixed, sizes, 0.0).sum(-1)
    slack = budget_slack(budgets)  # 0.3 - 0.1 holds 0.2
    left = torch.where(left.abs() <= slack, 0.0, left)
    free = ~fixed & (sizes <= (left + slack)[..., None]) & (left > 0)[..., None]
    holds_all = torch.where(free, sizes, 0.0).sum(-1) <= left + slack
    return FeasibleSet(free, fixed, left, holds_all)
