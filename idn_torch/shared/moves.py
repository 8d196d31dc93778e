"""Better integral allocations under contention, many nodes at a time: take over rows of others, ruin and recreate."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from idn_torch.problem import Problem
from idn_torch.shared.groups import Grouped, add_in_groups, saved_in_groups
from idn_torch.shared.local_search import Levels, Standing, fill, select
from idn_torch.shared.marginals import saved_by_type

__all__ = ["Realised", "adopt", "ruin_and_recreate"]

# Models that a move loads at most on a node, for the one that it unloads: each costs one more serving.
_REFILL = 2


class Realised(NamedTuple):
    """An integral allocation `(..., V, M)`, what a slot gains under it `(...)`, and each type's part `(..., R)`."""

    x: Tensor
    gain: Tensor
    saved: Tensor


def adopt(problem: Problem, levels: Levels, r: Tensor, standing: Realised, proposals: Tensor, *how: Any) -> Realised:
    """At every node, take over what one of the proposals loads there; keep what pays. Never gets worse.

    The levels are tried side by side, each with all others as they were: the types through two nodes of a level are
    different ones, so a node's change pays if their gain rises; the proposal that raises it most counts. Changes of
    different levels may get into each other's way. So all that pay are tried together, those of the even and those of
    the odd levels too, and the best of the three replaces the old allocation if its total gain is higher.

    Args:
        standing: the allocation to improve.
        proposals: allocations, `(P, ..., V, M)`.
        how: discipline, order and rounds of serving, as in `saved_by_type`.
    """
    x, gain, saved = standing
    nodes = problem.shape[0]
    ones = (1,) * (x.ndim - 2)
    grouped = Grouped(x, proposals, levels.level, len(levels.visited))
    change = saved_in_groups(problem, r, grouped, *how) - saved  # (G, P, ..., R)
    through = change.new_zeros(*change.shape[:-1], nodes + 1)
    through.scatter_add_(-1, levels.visited.view(-1, 1, *ones, r.shape[-1]).expand(change.shape), change)
    here = grouped.own().view(-1, 1, *ones, nodes)
    rise, which = torch.where(here, through[..., :-1], 0.0).sum(0).max(0)  # of every node in its own level
    rows = select(which, proposals)

    parity = levels.level % 2
    take = torch.stack((parity >= 0, parity == 0, parity == 1)).view(3, *ones, nodes) & (rise > 0)
    together = torch.where(take[..., None], rows, x)
    gains, parts = saved_by_type(problem, r, together, *how)
    best = gains.argmax(0)
    found = Realised(*(select(best, t) for t in (together, gains, parts)))
    better = (found.gain > gain).long()
    return Realised(*(select(better, pair) for pair in zip(standing, found, strict=True)))


def ruin_and_recreate(
    problem: Problem, levels: Levels, r: Tensor, standing: Standing, uniform: Tensor, *how: Any
) -> Realised:
    """At every node, unload one model and refill the room; `adopt` what pays.

    The model to go is the j-th in order of loss per size, with P(j) about 1/j: the least valuable one most often, each
    of them sooner or later.

    Args:
        standing: `evaluate` of the allocation to improve, under the same r.
        uniform: numbers in [0, 1), `(..., V)`.
        how: as in `adopt`.
    """
    x = standing.x
    able = problem.feasible.choices & (x > 0.5)
    price = torch.where(able, standing.marginals.loss / problem.sizes, torch.inf)
    count = able.sum(-1)
    rank = ((count + 1) ** uniform).long().clamp_(min=1) - 1
    out = price.argsort(stable=True, dim=-1).gather(-1, rank[..., None])
    rows = x.scatter(-1, out, torch.where((count > 0)[..., None], 0.0, x.gather(-1, out)))
    for _ in range(min(_REFILL, problem.fill_rounds)):
        # What a node may load only depends on what its own level tries.
        grouped = Grouped(x, rows[None], levels.level, len(levels.visited))
        rows = fill(problem, rows, add_in_groups(problem, r, grouped, *how))
    return adopt(problem, levels, r, Realised(x, standing.gain, standing.marginals.saved), rows[None], *how)
