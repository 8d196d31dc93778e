"""From plain arrays to a checked `Problem`."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from idn_torch.errors import ProblemError
from idn_torch.feasible import FeasibleSet, feasible_set
from idn_torch.problem import Problem, eq6_cost
from idn_torch.ranking import rank_options

__all__ = ["build_problem", "largest_exact"]

# A number or nested sequences of numbers, a numpy array or a tensor: whatever `torch.as_tensor` takes.
ArrayLike = Any


def largest_exact(dtype: torch.dtype) -> int:
    """The whole number up to which every whole number is exact in `dtype` (float32 or float64)."""
    return 2 ** (24 if dtype == torch.float32 else 53)


def build_problem(
    *,
    sizes: ArrayLike,
    budgets: ArrayLike,
    capacity: ArrayLike,
    repository: ArrayLike,
    model_task: ArrayLike,
    paths: Sequence[Sequence[int]] | Tensor,
    type_task: ArrayLike,
    cost: ArrayLike | None = None,
    path_latency: Sequence[Sequence[float]] | Tensor | None = None,
    delay: ArrayLike | None = None,
    accuracy: ArrayLike | None = None,
    alpha: ArrayLike | None = None,
    requests: ArrayLike | None = None,
    node_ids: Sequence[str] | None = None,
    model_ids: Sequence[str] | None = None,
    task_ids: Sequence[str] | None = None,
    type_ids: Sequence[str] | None = None,
    name: str = "",
    latency_unit: str = "ms",
    size_unit: str = "MB",
    slot_seconds: float = 60.0,
    links: Sequence[tuple[int, int, float]] = (),
    dtype: torch.dtype = torch.float64,
    device: torch.device | str = "cpu",
) -> Problem:
    """Check arrays and make a `Problem` of them. Arrays are numbers, lists, numpy arrays or tensors.

    Either `cost` is given, or `path_latency`, `delay`, `accuracy` and `alpha`, from which eq. (6) makes it:
    `C[rho, j, m] = path_latency[rho, j] + delay[p_j, m] + alpha[task] * (1 - accuracy[m])`.

    Args:
        sizes: s > 0, `(V, M)`, in `size_unit`.
        budgets: b >= 0, `(V,)`, totals with the repository models included.
        capacity: L, `(V, M)`, whole requests a slot, 0 to 2^24 in float32 and to 2^53 in float64.
        repository: omega, `(V, M)`, 0 or 1.
        model_task: task of each model, `(M,)`.
        paths: R sequences of node indices, or `(R, J)` padded with -1.
        type_task: task of each request type, `(R,)`.
        cost: `(R, J, Q)`, Q in catalog order of the task; entries beyond path or task are ignored.
        path_latency: R sequences, or `(R, J)`: round-trip latency >= 0 from the ingress to each position.
        delay: d >= 0, `(V, M)`.
        accuracy: in [0, 1], `(M,)`.
        alpha: >= 0, a number or one per task `(N,)`.
        requests: whole numbers >= 0, `(T, R)`, to 2^24 in float32 and to 2^53 in float64.
        node_ids, model_ids, task_ids, type_ids: names for messages and files; "0", "1", ... by default.
        name, latency_unit, size_unit, slot_seconds, links: carried along; links are (node, node, latency).
        dtype: torch.float32 or torch.float64.
        device: where the tensors live.

    Raises:
        ProblemError: naming the node, model, task, type or argument that is wrong and what to change.

    Example:
        >>> problem = build_problem(
        ...     sizes=[[1.0, 2.0]] * 2, budgets=[1.0, 3.0], capacity=[[5, 9]] * 2, repository=[[0, 0], [0, 1]],
        ...     model_task=[0, 0], paths=[[0, 1]], type_task=[0], path_latency=[[0.0, 10.0]],
        ...     delay=[[1.0, 2.0]] * 2, accuracy=[0.5, 0.9], alpha=20.0)
        >>> problem.ranked.cost
        tensor([[ 4., 11., 14., 21.]], dtype=torch.float64)
    """
    if dtype not in (torch.float32, torch.float64):
        raise ProblemError(f"dtype is {dtype}; use torch.float32 or torch.float64")
    sizes = _tensor("sizes", sizes, dtype, device)
    if sizes.ndim != 2 or 0 in sizes.shape:
        raise ProblemError(f"sizes has shape {tuple(sizes.shape)}; expected (V, M) with at least one node and model")
    nodes, models = sizes.shape
    model_task = _tensor("model_task", model_task, torch.int64, device, (models,))
    path_nodes = _padded("paths", paths, -1, torch.int64, device)
    types = path_nodes.shape[0]
    tasks = len(task_ids) if task_ids is not None else 1 + max(0, int(model_task.amax()))
    node = _Axis("node", _ids("node_ids", node_ids, nodes))
    model = _Axis("model", _ids("model_ids", model_ids, models))
    task = _Axis("task", _ids("task_ids", task_ids, tasks))
    kind = _Axis("type", _ids("type_ids", type_ids, types))

    type_task = _tensor("type_task", type_task, torch.int64, device, (types,))
    budgets = _tensor("budgets", budgets, dtype, device, (nodes,))
    capacity = _counts("capacity", capacity, dtype, device, (nodes, models), node, model)
    omega = _tensor("repository", repository, dtype, device, (nodes, models))
    _check("size", sizes, (sizes > 0) & (sizes < torch.inf), "must be > 0 and finite", node, model)
    _check("budget", budgets, (budgets >= 0) & (budgets < torch.inf), "must be >= 0 and finite", node)
    _check("repository", omega, (omega == 0) | (omega == 1), "must be 0 or 1", node, model)
    _check("task", model_task, (model_task >= 0) & (model_task < tasks), f"must be in 0..{tasks - 1}", model)
    _check("task", type_task, (type_task >= 0) & (type_task < tasks), f"must be in 0..{tasks - 1}", kind)
    omega = omega.bool()
    task_models, model_rank = _task_models(model_task, tasks)
    on_path = _check_paths(path_nodes, kind, node)
    _check_repositories(path_nodes, on_path, type_task, omega, model_task, kind, node, task)
    feasible = feasible_set(sizes, budgets, omega)
    used = budgets - feasible.budgets
    room = f"its repository models take more than its budget ({size_unit}); raise the budget or move a repository"
    _check("size of the repository models", used, feasible.budgets >= 0, room, node)
    if requests is not None:
        requests = _counts("request count", requests, dtype, device, (None, types), _Axis("slot"), kind)
    if not 0 < slot_seconds < float("inf"):
        raise ProblemError(f"slot_seconds is {slot_seconds}; must be > 0 and finite")

    parts: dict[str, Tensor] = {}
    if cost is None:
        given = {"path_latency": path_latency, "delay": delay, "accuracy": accuracy, "alpha": alpha}
        if absent := [key for key, value in given.items() if value is None]:
            raise ProblemError(f"give cost, or path_latency, delay, accuracy and alpha; missing: {', '.join(absent)}")
        latency = _padded("path_latency", path_latency, 0.0, dtype, device)  # type: ignore[arg-type]
        _check_shape("path_latency", latency, tuple(path_nodes.shape))
        latency = torch.where(on_path, latency, 0.0)
        delay = _tensor("delay", delay, dtype, device, (nodes, models))
        accuracy = _tensor("accuracy", accuracy, dtype, device, (models,))
        alpha = _tensor("alpha", alpha, dtype, device)
        alpha = alpha.expand(tasks).clone() if alpha.ndim == 0 else alpha
        _check_shape("alpha", alpha, (tasks,))
        positive = "must be >= 0 and finite"
        _check("path latency", latency, (latency >= 0) & (latency < torch.inf), positive, kind, _POSITION)
        _check("delay", delay, (delay >= 0) & (delay < torch.inf), positive, node, model)
        _check("accuracy", accuracy, (accuracy >= 0) & (accuracy <= 1), "must be in [0, 1]", model)
        _check("alpha", alpha, (alpha >= 0) & (alpha < torch.inf), positive, task)
        parts = {"path_latency": latency, "delay": delay, "accuracy": accuracy, "alpha": alpha}
        cost = eq6_cost(path_nodes, type_task, task_models, **parts)
    elif any(value is not None for value in (path_latency, delay, accuracy, alpha)):
        raise ProblemError("give either cost, or path_latency, delay, accuracy and alpha; not both")
    else:
        cost = _tensor("cost", cost, dtype, device, (*path_nodes.shape, task_models.shape[1]))

    ranks = int((on_path.sum(-1) * (task_models >= 0).sum(-1)[type_task]).amax())
    problem = Problem(
        name=name,
        node_ids=node.ids,
        model_ids=model.ids,
        task_ids=task.ids,
        type_ids=kind.ids,
        latency_unit=latency_unit,
        size_unit=size_unit,
        slot_seconds=float(slot_seconds),
        links=tuple(links),
        sizes=sizes,
        budgets=budgets,
        repository=omega,
        capacity=capacity,
        feasible=feasible,
        fill_rounds=_fill_rounds(sizes, feasible),
        model_task=model_task,
        task_models=task_models,
        model_rank=model_rank,
        paths=path_nodes,
        type_task=type_task,
        ranked=rank_options(cost, path_nodes, type_task, task_models, omega, ranks),
        requests=requests,
        **parts,
    )
    problem.check_cost(cost)
    return problem


class _Axis(NamedTuple):
    """What the entries along one axis are called; indices when there are no `ids`."""

    kind: str
    ids: tuple[str, ...] = ()

    def name(self, index: int) -> str:
        return f"{self.kind} {self.ids[index]!r}" if self.ids else f"{self.kind} {index}"


_POSITION = _Axis("position")


def _tensor(
    what: str, values: ArrayLike, dtype: torch.dtype, device: torch.device | str, shape: tuple[int, ...] | None = None
) -> Tensor:
    out = _as_given(what, values, device, shape)
    if not dtype.is_floating_point and (out.is_floating_point() or out.is_complex()):
        raise ProblemError(f"{what} must hold whole numbers, it holds {out.dtype}")
    return out.to(dtype)


def _as_given(what: str, values: ArrayLike, device: torch.device | str, shape: tuple[int, ...] | None = None) -> Tensor:
    """The values with all their digits: torch alone would read Python floats in its default dtype."""
    try:
        given = values if isinstance(values, Tensor) else np.asarray(values)
        out = torch.as_tensor(given, device=device).detach()
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise ProblemError(f"{what} is not an array of numbers: {error}") from None
    if shape is not None:
        _check_shape(what, out, shape)
    return out


def _counts(
    what: str,
    values: ArrayLike,
    dtype: torch.dtype,
    device: torch.device | str,
    shape: tuple[int | None, ...],
    *axes: "_Axis",
) -> Tensor:
    """Whole numbers that `dtype` holds exactly, checked before they are rounded to it."""
    given = _as_given(what, values, device)
    if given.ndim == len(shape):
        shape = tuple(n if m is None else m for n, m in zip(given.shape, shape, strict=True))
    _check_shape(what, given, shape)
    limit = largest_exact(dtype)
    good = (given >= 0) & (given <= limit)
    if given.is_floating_point():
        good &= given == given.floor()
    _check(
        what, given, good, f"must be a whole number from 0 to {limit}, the largest that {dtype} counts exactly", *axes
    )
    return given.to(dtype)


def _padded(
    what: str,
    rows: Sequence[Sequence[float]] | Tensor,
    fill: float,
    dtype: torch.dtype,
    device: torch.device | str,
) -> Tensor:
    """R rows of different lengths as `(R, J)`."""
    if not isinstance(rows, Tensor):
        longest = max((len(row) for row in rows), default=0)
        if longest == 0:
            raise ProblemError(f"{what} is empty; give at least one request type, with at least one node on its path")
        rows = _tensor(what, [[*row, *[fill] * (longest - len(row))] for row in rows], dtype, device)
    rows = _tensor(what, rows, dtype, device)
    if rows.ndim != 2 or 0 in rows.shape:
        raise ProblemError(f"{what} has shape {tuple(rows.shape)}; expected (R, J), neither of them 0")
    return rows


def _ids(what: str, ids: Sequence[str] | None, count: int) -> tuple[str, ...]:
    if ids is None:
        return tuple(str(i) for i in range(count))
    names = tuple(str(name) for name in ids)
    if len(names) != count:
        raise ProblemError(f"{what} has {len(names)} entries; expected {count}")
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise ProblemError(f"{what}: {name!r} occurs twice; ids must be unique")
        seen.add(name)
    return names


def _check_shape(what: str, values: Tensor, shape: tuple[int | None, ...]) -> None:
    if tuple(values.shape) != shape:
        raise ProblemError(f"{what} has shape {tuple(values.shape)}; expected {shape}")


def _check(what: str, values: Tensor, good: Tensor, rule: str, *axes: _Axis) -> None:
    if not good.all():
        index = (~good).nonzero()[0].tolist()
        where = ", ".join(axis.name(i) for axis, i in zip(axes, index, strict=True))
        raise ProblemError(f"{where}: {what} is {values[tuple(index)].item():g}; {rule}")


def _check_paths(paths: Tensor, kind: _Axis, node: _Axis) -> Tensor:
    """Where a path has a node, `(R, J)`; paths start at position 0, have no holes and repeat no node."""
    on_path = paths >= 0
    _check(
        "node index on its path",
        paths,
        (paths >= -1) & (paths < len(node.ids)),
        "no such node",
        kind,
        _POSITION,
    )
    hole = ~on_path[:, :1] | torch.zeros_like(on_path)
    hole[:, 1:] |= on_path[:, 1:] & ~on_path[:, :-1]
    _check("node index on its path", paths, ~hole, "paths have no holes and at least one node", kind, _POSITION)
    # Distinct negative stand-ins keep padding from counting as a repeat.
    position = torch.arange(paths.shape[1], device=paths.device)
    ordered = torch.where(on_path, paths, -1 - position).sort(-1).values
    twice = torch.zeros_like(on_path)
    twice[:, 1:] = ordered[:, 1:] == ordered[:, :-1]
    if twice.any():
        rho, j = twice.nonzero()[0].tolist()
        again = node.name(int(ordered[rho, j]))
        raise ProblemError(f"{kind.name(rho)}: its path visits {again} twice; paths must be simple")
    return on_path


def _check_repositories(
    paths: Tensor,
    on_path: Tensor,
    type_task: Tensor,
    omega: Tensor,
    model_task: Tensor,
    kind: _Axis,
    node: _Axis,
    task: _Axis,
) -> None:
    holds = omega.new_zeros(omega.shape[0], len(task.ids))
    v, m = omega.nonzero(as_tuple=True)
    holds[v, model_task[m]] = True
    served = (holds[paths.clamp(min=0), type_task[:, None]] & on_path).any(-1)
    if not served.all():
        rho = int((~served).nonzero()[0, 0])
        route = " - ".join(node.name(v) for v in paths[rho].tolist() if v >= 0)
        raise ProblemError(
            f"{kind.name(rho)}: its path ({route}) meets no repository model of {task.name(int(type_task[rho]))}; "
            "place one there or lead the path to one"
        )


def _task_models(model_task: Tensor, tasks: int) -> tuple[Tensor, Tensor]:
    """Models of each task in catalog order `(N, Q)`, padded with -1, and each model's place among them `(M,)`."""
    member = torch.nn.functional.one_hot(model_task, tasks)  # (M, N)
    rank = member.cumsum(0).gather(1, model_task[:, None])[:, 0] - 1
    table = model_task.new_full((tasks, int(member.sum(0).amax())), -1)
    table[model_task, rank] = torch.arange(model_task.shape[0], device=model_task.device)
    return table, rank


def _fill_rounds(sizes: Tensor, feasible: FeasibleSet) -> int:
    choose = feasible.choices
    biggest = torch.where(choose, sizes, 0.0).amax(-1)
    smallest = torch.where(choose, sizes, torch.inf).amin(-1)
    return int((biggest / smallest).floor().amax())
