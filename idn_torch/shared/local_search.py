"""What the local search stands on: nodes that move together, an allocation and what surrounds it, filling budgets."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from idn_torch import kernels
from idn_torch.infida import free_room
from idn_torch.problem import Problem
from idn_torch.shared.groups import Grouped, add_in_groups
from idn_torch.shared.marginals import Marginals, room_arrays, serve_and_marginals
from idn_torch.shared.workers import compiled_for

__all__ = [
    "Levels",
    "Standing",
    "build",
    "evaluate",
    "fill",
    "find_levels",
    "most_models",
    "pick",
    "select",
]


class Levels(NamedTuple):
    """Nodes in groups such that no path visits two of a group: what they hold competes for different requests.

    Attributes:
        level: of each node, 0..G-1, `(V,)` int64.
        visited: the node of each level that a type's path visits, `(G, R)` int64; V where it visits none.
    """

    level: Tensor
    visited: Tensor


class Standing(NamedTuple):
    """An integral allocation `(..., V, M)`, the gain a slot realises under it `(...)`, and the marginals there.

    Their `add` is that of the models that fit into the room left.
    """

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
    into: Tensor | None = None,
) -> Standing:
    """Serve a slot under x and take the marginals there; arguments as in `serve_and_marginals`, all nodes when None."""
    into = torch.ones_like(problem.budgets, dtype=torch.bool) if into is None else into
    gain, around = serve_and_marginals(problem, r, x, discipline, order, rounds, into)
    return Standing(x, gain, around)


def build(
    problem: Problem, r: Tensor, x: Tensor, times: int, several: int, taste: Tensor | float = 1.0, *how: Any
) -> Tensor:
    """x with its free room filled `times` times, each time on the marginals that the last one left.

    Many times few models beat few times many: marginals only see one model at a time.

    Args:
        several: models that a node may load at a time.
        taste: factors near 1 on the marginals, `(..., V, M)`. Where models saturate, those of many tasks gain the same:
            without it every node would load the same ones of them.
        how: of `evaluate`.
    """
    everywhere = torch.zeros(problem.shape[0], dtype=torch.int64, device=x.device)
    for _ in range(times):
        add = add_in_groups(problem, r, Grouped(x, x[None], everywhere, 1), *how)
        x = fill(problem, x, add * taste, None, several)
    return x


def fill(problem: Problem, x: Tensor, add: Tensor, into: Tensor | None = None, several: int = 1) -> Tensor:
    """x with the models of largest marginal gain loaded into each node's free room.

    Args:
        x: `(..., V, M)`.
        add: `Marginals.add` there.
        into: nodes that take part, `(..., V)` bool; all when None.
        several: models that a node may load, of different tasks: two of one task would take each other's requests,
            which marginals of a single model do not see.
    """
    if compiled_for(x, x.numel()):
        return _fill_compiled(problem, x, add, into, several)
    able = problem.feasible.choices if into is None else problem.feasible.choices & into[..., None]
    models = problem.task_models.clamp(min=0)
    room = free_room(problem, x)[..., None]
    gain = torch.where(able & (problem.sizes <= room), add, 0.0)
    best, which = torch.where(problem.task_models >= 0, gain[..., models], 0.0).max(-1)  # (..., V, N)
    best, task = (t[..., :several] for t in best.sort(dim=-1, descending=True, stable=True))
    model = models[task, which.gather(-1, task)]
    size = problem.sizes.expand(gain.shape).gather(-1, model)
    load = (best > 0) & (size.cumsum(-1) <= room)
    return x.scatter_add(-1, model, load.to(x.dtype))


def _fill_compiled(problem: Problem, x: Tensor, add: Tensor, into: Tensor | None, several: int) -> Tensor:
    from idn_torch.shared import compiled_search

    kernels.use_threads()
    everywhere = torch.ones(problem.shape[0], dtype=torch.bool) if into is None else into
    loaded = (x > 0.5).reshape(-1, *problem.shape)
    compiled_search.fill(
        *room_arrays(problem),
        problem.model_task.numpy(),
        len(problem.task_ids),
        several,
        everywhere.expand(*x.shape[:-2], -1).reshape(-1, problem.shape[0]).contiguous().numpy(),
        add.expand(x.shape).reshape(loaded.shape).contiguous().numpy(),
        loaded.numpy(),
    )
    return loaded.to(x.dtype).view(x.shape)


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
