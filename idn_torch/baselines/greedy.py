"""Static greedy (SG): with hindsight, model by model the best exact marginal gain per size."""

from dataclasses import dataclass

import torch
from torch import Tensor

from idn_torch.averaged import mean_marginals, merge_rows
from idn_torch.baselines.static import StaticPolicy, StaticState, batch_shape, repositories
from idn_torch.infida import free_room
from idn_torch.problem import Problem
from idn_torch.ranking import take_options
from idn_torch.shapes import broadcast_shapes

__all__ = ["StaticGreedy", "static_greedy"]


@torch.no_grad()
def static_greedy(problem: Problem, requests: Tensor | None = None) -> Tensor:
    """Load, one after the other, the model of best mean marginal gain per size that fits, anywhere in the network.

    The gain is that of the whole sequence with `l = min(L, r)`. Marginal gains only fall as models are added, so a
    model that no other can overtake is picked at once: one that is the best of its node, whose budget it shares, and
    of every request type that could use it, whose other options it makes worth less. A round picks all of these
    together; the allocation is that of one pick at a time, ties to the lower node and model index.

    Args:
        problem: the network.
        requests: `(..., T, R)`; the problem's own when None.

    Returns:
        `(..., V, M)` of 0 and 1, feasible.

    Raises:
        InputError: no requests, or a wrong count (the type is named).

    Example:
        >>> x = static_greedy(problem)  # doctest: +SKIP
    """
    rows = merge_rows(problem, requests)
    shape = broadcast_shapes(rows.requests.shape[:-2], problem.ranked.cost.shape[:-2])
    x = repositories(problem, tuple(shape))
    gains, stale = torch.zeros_like(x), torch.ones_like(x, dtype=torch.bool)
    while True:
        fits = problem.feasible.free & (problem.sizes <= free_room(problem, x)[..., None]) & (x < 0.5)
        # Models of different tasks never meet at a request: only the tasks just picked from have new marginals.
        gains = torch.where(stale, mean_marginals(problem, rows, x, fits & stale), gains)
        chosen = _next_picks(problem, torch.where(fits, gains / problem.sizes, 0.0))
        if not chosen.any():
            return x
        x = torch.where(chosen, 1.0, x)
        picked = chosen.any(-2).long()  # (..., M)
        task = problem.model_task.expand(picked.shape)
        touched = torch.zeros(*shape, len(problem.task_ids), dtype=torch.int64, device=x.device)
        stale = (touched.scatter_add_(-1, task, picked) > 0).gather(-1, task)[..., None, :]


def _next_picks(problem: Problem, ratio: Tensor) -> Tensor:
    """Entries to load next, at most one a node, `(..., V, M)` bool.

    Args:
        problem: the network.
        ratio: marginal gain per size, `(..., V, M)`; 0 where a model is loaded or does not fit.
    """
    ranked = problem.ranked
    # A place for each entry, the best first and ties to the lower index: no two are equal.
    order = ratio.flatten(-2).argsort(stable=True, dim=-1, descending=True)
    count = order.shape[-1]
    place = torch.empty_like(order).scatter_(-1, order, torch.arange(count, device=order.device).expand(order.shape))
    place = torch.where(ratio > 0, place.view(ratio.shape), count)
    at = take_options(place, ranked.option).masked_fill(~ranked.mask, count)  # (..., R, K)
    # The best entry of a type, as a rival of every entry that the type could use.
    rival = torch.where(at < count, at.amin(-1, keepdim=True), count)
    index = ranked.option.long().expand(at.shape).flatten(-2)
    best = torch.full_like(place, count).flatten(-2)
    best = best.scatter_reduce(-1, index, rival.flatten(-2), "amin").view(ratio.shape)
    return (ratio > 0) & (place == place.amin(-1, keepdim=True)) & (place <= best)


@dataclass(frozen=True, eq=False)
class StaticGreedy(StaticPolicy):
    """`static_greedy` on requests known in advance, kept for all slots.

    Attributes:
        requests: `(..., T, R)`: what it may look at; the problem's own when None.
        discipline: how requests contend, "fcfs" or "fair".
    """

    requests: Tensor | None = None

    def init(self, problem: Problem, seed: Tensor | int = 0, batch: tuple[int, ...] = ()) -> StaticState:
        """Choose the allocation. The seed only gives its batch dims.

        Raises:
            InputError: as `static_greedy`.
        """
        x = static_greedy(problem, self.requests)
        shape = broadcast_shapes(batch_shape(problem, seed, batch), x.shape[:-2])
        return StaticState(x.expand(*shape, *problem.shape).contiguous())
