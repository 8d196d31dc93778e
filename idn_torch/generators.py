"""Synthetic problems of any size."""

import numpy as np
import torch

from idn_torch.build import build_problem
from idn_torch.errors import InputError
from idn_torch.problem import Problem
from idn_torch.workload import request_counts, task_shares

__all__ = ["tree"]

SLOTS = 4  # of requests included
SLOT_SECONDS = 60.0
UTILISATION = 0.5  # share of a slot in which a model works
REQUESTS = 12_000.0  # a slot, at a node, on average
ALPHA = 75.0  # ms per unit of lost accuracy
TOP_LATENCY = 20.0  # ms, of the links at the root; half as much one level down, and so on
OVERHEAD = 400.0  # MB that a running model takes besides its weights
LEAF_BUDGET = 0.3  # models of mean size per task that fit on a leaf's budget; twice as many one level up, and so on
LEVEL_SPEED = 1.5  # how much faster a node is than those one level down


def tree(
    nodes: int = 4096,
    branching: int = 8,
    depth: int = 5,
    tasks: int = 20,
    models_per_task: int = 30,
    request_types: int | None = None,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
) -> Problem:
    """A tree of nodes, filled level by level, whose root holds a repository model of every task.

    Node 0 is the root and node v's parent is `(v - 1) // branching`. Requests enter at every node and go up to the
    root. Towards the root budgets double, nodes get 1.5 times faster and links twice as slow. Within a task a bigger
    model is more accurate and slower, and so of less capacity, up to some noise; the repository model is the most
    accurate one. Task popularity is Zipf's law, nodes differ in load by a lognormal factor.

    Args:
        nodes: V >= 1; at most `1 + branching + ... + branching**(depth - 1)`.
        branching: children of a node, >= 1.
        depth: most nodes on a path, the root included, >= 1.
        tasks: N >= 1.
        models_per_task: Q >= 1; the models of a task are contiguous in the catalog.
        request_types: R in 1..V*N: the types are the first R of the (node, task) pairs in node order; all when None.
        seed: >= 0; the same seed gives the same problem, and fewer request types the first of the same ones.
        dtype: torch.float32 or torch.float64.
        device: where the tensors of the problem live.

    Returns:
        The problem, with the requests of four one-minute slots; ms and MB.

    Raises:
        InputError: naming the argument and its range; nodes that do not fit into `depth` levels.

    Example:
        >>> problem = tree(nodes=9, branching=2, depth=4, tasks=2, models_per_task=3)
        >>> problem.paths[-1].tolist(), problem.type_ids[-1]
        ([8, 3, 1, 0], 'n8:task-1')
    """
    at_least_one = {"nodes": nodes, "branching": branching, "depth": depth, "tasks": tasks}
    for name, number in {**at_least_one, "models_per_task": models_per_task}.items():
        if number < 1:
            raise InputError(f"{name} is {number}; it must be at least 1")
    if seed < 0:
        raise InputError(f"seed is {seed}; it must be >= 0")
    types = nodes * tasks if request_types is None else request_types
    if not 1 <= types <= nodes * tasks:
        raise InputError(f"request_types is {types}; {nodes} nodes and {tasks} tasks make 1 to {nodes * tasks}")
    level = _levels(nodes, branching, depth)
    models = tasks * models_per_task
    rng = np.random.default_rng(seed)

    # Models. A grade from 0 to 1 orders a task's models from small to large.
    grade = np.sort(rng.random((tasks, models_per_task))).ravel()
    size = OVERHEAD + 20.0 * 20.0**grade * rng.lognormal(0, 0.1, models)
    accuracy = np.clip(0.75 - 0.35 * (1 - grade) ** 2 + rng.normal(0, 0.01, models), 0, 1)
    leaf_delay = 4.0 * 12.0**grade * rng.lognormal(0, 0.1, models)  # ms
    best = accuracy.reshape(tasks, models_per_task).argmax(1) + np.arange(tasks) * models_per_task

    # Nodes, (V,) and (V, M).
    up = level.max() - level  # levels above the lowest
    speed = LEVEL_SPEED**up * rng.lognormal(0, 0.1, nodes)
    delay = leaf_delay / speed[:, None]
    capacity = np.floor(UTILISATION * SLOT_SECONDS * 1000.0 / delay)
    budgets = LEAF_BUDGET * tasks * size.mean() * 2.0**up
    budgets[0] += size[best].sum()
    repository = np.zeros((nodes, models), dtype=bool)
    repository[0, best] = True

    # Paths up to the root, (V, J), padded with -1, and the latency along them.
    parent = (np.arange(nodes) - 1) // branching  # -1 at the root
    link = TOP_LATENCY * 0.5 ** (level - 1.0) * rng.uniform(0.8, 1.2, nodes)  # of node v to its parent
    paths, latency = [np.arange(nodes)], [np.zeros(nodes)]
    for _ in range(level.max()):
        on_path = paths[-1] > 0
        paths.append(np.where(on_path, parent[paths[-1]], -1))
        latency.append(np.where(on_path, latency[-1] + link[paths[-2]], 0.0))

    load = rng.lognormal(0, 0.5, nodes)
    requests = request_counts(load, task_shares(SLOTS, tasks, popularity="fixed"), REQUESTS * nodes, seed)
    node, task = np.divmod(np.arange(types), tasks)
    wide = len(str(tasks - 1))
    task_ids = [f"task-{i:0{wide}}" for i in range(tasks)]
    return build_problem(
        sizes=np.tile(size, (nodes, 1)),
        budgets=budgets,
        capacity=capacity,
        repository=repository,
        model_task=np.repeat(np.arange(tasks), models_per_task),
        paths=torch.from_numpy(np.stack(paths, 1)[node]),
        type_task=task,
        path_latency=torch.from_numpy(np.stack(latency, 1)[node]),
        delay=delay,
        accuracy=accuracy,
        alpha=ALPHA,
        requests=requests[:, :types],
        node_ids=[f"n{v}" for v in range(nodes)],
        model_ids=[f"{name}/m{q}" for name in task_ids for q in range(models_per_task)],
        task_ids=task_ids,
        type_ids=[f"n{v}:{task_ids[i]}" for v, i in zip(node.tolist(), task.tolist(), strict=True)],
        name=f"tree of {nodes} nodes",
        slot_seconds=SLOT_SECONDS,
        links=[(int(parent[v]), v, float(link[v])) for v in range(1, nodes)],
        dtype=dtype,
        device=device,
    )


def _levels(nodes: int, branching: int, depth: int) -> np.ndarray:
    """The level of each node, the root's 0, `(V,)`."""
    level: list[np.ndarray] = []
    left, width = nodes, 1
    while left > 0:
        if len(level) == depth:
            raise InputError(
                f"{nodes} nodes do not fit: depth {depth} and branching {branching} hold {nodes - left}; "
                "raise depth or branching, or take fewer nodes"
            )
        level.append(np.full(min(left, width), len(level)))
        left, width = left - width, width * branching
    return np.concatenate(level)
