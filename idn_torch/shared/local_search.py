"""Ruin and recreate: better integral allocations under contention, many nodes at a time."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from idn_torch.infida import free_room
from idn_torch.problem import Problem
from idn_torch.shared.marginals import Marginals, serve_and_marginals

__all__ = [
    "Levels",
    "Standing",
    "evaluate",
    "find_levels",
    "most_models",
    "pick",
    "refill",
    "ruin_and_recreate",
    "select",
]


# Models that a move loads at most on a node, for the one that it unloads: each costs one more serving.
_REFILL = 2


class Levels(NamedTuple):
    """Nodes in groups such that no path visits two of a group: what they hold competes for different requests.

    Attributes:
        level: of each node, 0..G-1, `(V,)` int64.
        visited: the node of each level that a type's path visits, `(G, R)` int64; V where it visits none.
    """

    level: Tensor
    visited: Tensor


class Standing(NamedTuple):
    """An integral allocation `(..., V, M)`, the gain a slot realises under it `(...)`, and the marginals there."""

    x: Tensor
    gain: Tensor
    marginals: Marginals


def find_levels(problem: Problem) -> Levels:
    """Greedy colouring of the graph of nodes that share a path. Runs on the host: once, before the first slot.

    On a tree with a repository at its root the levels are the nodes of equal depth.
    """
    paths = problem.paths.cpu().numpy()
    nodes, types = problem.shape[0], paths.shape[0]
    meet = np.zeros((nodes, nodes), dtype=bool)
    distance = np.zeros(nodes, dtype=np.int64)  # to the far end of the longest path
    length = (paths >= 0).sum(1)
    for j in range(paths.shape[1]):
        here = np.flatnonzero(paths[:, j] >= 0)
        np.maximum.at(distance, paths[here, j], length[here] - j)
        for i in range(j):
            meet[paths[here, i], paths[here, j]] = True
    meet |= meet.T
    level = np.full(nodes, -1)
    for v in np.argsort(distance, kind="stable"):
        taken = np.unique(level[meet[v]])
        level[v] = next(c for c in range(nodes) if c not in taken)
    visited = np.full((level.max() + 1, types), nodes)
    for j in range(paths.shape[1]):
        here = np.flatnonzero(paths[:, j] >= 0)
        visited[level[paths[here, j]], here] = paths[here, j]
    return Levels(torch.as_tensor(level, device=problem.device), torch.as_tensor(visited, device=problem.device))


def most_models(problem: Problem) -> int:
    """How many models fit at most on a node that chooses, at least 1. Waits for the device."""
    where = problem.feasible
    sizes = torch.where(where.free, problem.sizes, torch.inf).sort(dim=-1).values
    fits = (sizes.cumsum(-1) <= where.budgets[:, None]).sum(-1)
    return max(1, int(torch.where(where.holds_all, 0, fits).max()))


def evaluate(
    problem: Problem,
    r: Tensor,
    x: Tensor,
    discipline: str = "fcfs",
    order: Tensor | None = None,
    rounds: int | None = None,
) -> Standing:
    """Serve a slot under x and take the marginals there; arguments as in `serve_kernel`."""
    gain, around = serve_and_marginals(problem, r, x, discipline, order, rounds)
    return Standing(x, gain, around)


def refill(
    problem: Problem,
    r: Tensor,
    standing: Standing,
    where: Tensor | None = None,
    times: int = 1,
    several: int = 1,
    discipline: str = "fcfs",
    order: Tensor | None = None,
    rounds: int | None = None,
) -> Standing:
    """Load into each node's free room the models of largest marginal gain, and serve again; as often as asked.

    Args:
        where: nodes that take part, `(..., V)` bool; all when None.
        times: rounds, each followed by serving and new marginals.
        several: models a node may load in a round, of different tasks: two of one task would take each other's
            requests, which marginals of a single model do not see.
    """
    able = problem.feasible.free & ~problem.feasible.holds_all[:, None]
    able = able if where is None else able & where[..., None]
    models = problem.task_models.clamp(min=0)
    real = problem.task_models >= 0
    for _ in range(times):
        room = free_room(problem, standing.x)[..., None]
        gain = torch.where(able & (problem.sizes <= room), standing.marginals.add, 0.0)
        best, which = torch.where(real, gain[..., models], 0.0).max(-1)  # (..., V, N)
        best, task = best.topk(min(several, best.shape[-1]), dim=-1)
        model = models[task, which.gather(-1, task)]
        size = problem.sizes.expand(gain.shape).gather(-1, model)
        load = (best > 0) & (size.cumsum(-1) <= room)
        x = standing.x.scatter_add(-1, model, load.to(standing.x.dtype))
        standing = evaluate(problem, r, x, discipline, order, rounds)
    return standing


def ruin_and_recreate(
    problem: Problem,
    levels: Levels,
    r: Tensor,
    standing: Standing,
    uniform: Tensor,
    discipline: str = "fcfs",
    order: Tensor | None = None,
    rounds: int | None = None,
) -> Standing:
    """At every node, unload one model and refill the room; keep what pays. Never gets worse.

    The model to go is the j-th in order of loss per size, with P(j) about 1/j: the least valuable one most often, each
    of them sooner or later. The levels are tried side by side, each with all others as they were: the types through two
    nodes of a level are different ones, so a node's change pays if their gain rises. Changes of different levels may
    get into each other's way. So all that pay are tried together, those of the even and those of the odd levels too,
    and the best of the three replaces the old allocation if its total gain is higher.

    Args:
        standing: `evaluate` of the allocation to improve, under the same r.
        uniform: numbers in [0, 1), `(..., V)`.

    Returns:
        The standing of the improved allocation, or the old one.
    """
    how = (discipline, order, rounds)
    nodes, models = problem.shape
    batch = standing.x.shape[:-2]
    ones = (1,) * len(batch)
    able = problem.feasible.free & ~problem.feasible.holds_all[:, None] & (standing.x > 0.5)
    price = torch.where(able, standing.marginals.loss / problem.sizes, torch.inf)
    count = able.sum(-1)
    rank = ((count + 1) ** uniform).long().clamp_(min=1) - 1
    out = price.argsort(stable=True, dim=-1).gather(-1, rank[..., None])
    ruined = standing.x.scatter(-1, out, torch.where((count > 0)[..., None], 0.0, standing.x.gather(-1, out)))

    groups = len(levels.visited)
    here = levels.level == torch.arange(groups, device=r.device)[:, None]  # (G, V)
    here = here.view(groups, *ones, nodes)
    tried = evaluate(problem, r, torch.where(here[..., None], ruined, standing.x), *how)
    tried = refill(problem, r, tried, here, min(_REFILL, problem.fill_rounds), 1, *how)
    change = tried.marginals.saved - standing.marginals.saved  # (G, ..., R)
    through = change.new_zeros(*change.shape[:-1], nodes + 1)
    through.scatter_add_(-1, levels.visited.view(groups, *ones, -1).expand(change.shape), change)
    pays = (through[..., :-1] > 0) & here
    own = levels.level.view(1, *ones, nodes, 1).expand(1, *batch, nodes, models)
    rows = tried.x.gather(0, own)[0]  # of every node, what its own level tried

    parity = levels.level % 2
    take = torch.stack((parity >= 0, parity == 0, parity == 1)).view(3, *ones, nodes) & pays.any(0)
    together = evaluate(problem, r, torch.where(take[..., None], rows, standing.x), *how)
    best = together.gain.argmax(0)
    merged = Standing(
        select(best, together.x), select(best, together.gain), Marginals(*(select(best, t) for t in together.marginals))
    )
    return pick(merged.gain > standing.gain, merged, standing)


def select(choice: Tensor, values: Sequence[Tensor] | Tensor) -> Tensor:
    """The chosen of several tensors `(..., *)`, by instance; choice `(...)`."""
    out = values[0]
    for e in range(1, len(values)):
        out = torch.where(_with_dims(choice == e, out.ndim), values[e], out)
    return out


def pick(better: Tensor, a: Standing, b: Standing) -> Standing:
    """a where better `(...)` is True, else b."""

    def choose(p: Tensor, q: Tensor) -> Tensor:
        return torch.where(_with_dims(better, p.ndim), p, q)

    return Standing(choose(a.x, b.x), choose(a.gain, b.gain), Marginals(*map(choose, a.marginals, b.marginals)))


def _with_dims(tensor: Tensor, dims: int) -> Tensor:
    return tensor.reshape(tensor.shape + (1,) * (dims - tensor.ndim))
