"""Random problems for the tests, edge cases included, and the tolerances that comparisons use."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

import idn_torch as idn

# Relative to the largest value compared. One table: a looser figure in a test would hide a mistake.
TOLERANCE = {torch.float64: 1e-12, torch.float32: 2e-6}


def close(actual: Any, expected: Any, dtype: torch.dtype = torch.float64, scale: float = 1.0) -> bool:
    """Equal within the dtype's tolerance, relative to the largest magnitude (or to `scale`, that of the inputs)."""
    a, b = np.asarray(actual, dtype=np.float64), np.asarray(expected, dtype=np.float64)
    assert a.shape == b.shape, (a.shape, b.shape)
    scale = max(scale, float(np.abs(b).max(initial=0.0)))
    return bool(np.abs(a - b).max(initial=0.0) <= TOLERANCE[dtype] * scale)


def random_problem(
    seed: int,
    dtype: torch.dtype = torch.float64,
    nodes: int = 6,
    tasks: int = 3,
    models: int = 8,
    types: int = 9,
    whole_costs: bool = False,
    budget: tuple[float, float] = (0.0, 1.2),
    slots: int = 4,
    extra_models: int = 0,
    extra_types: int = 0,
) -> idn.Problem:
    """A small network with ties, repositories in mid-path, copies, empty and generous budgets, and excluded models.

    Sizes are multiples of 1/8 and costs, when whole, small integers: sums are exact in float32 and ties really tie.
    `extra_models` appends models of a task that nobody requests and that fit nowhere, `extra_types` types that never
    ask for anything: padding.
    """
    rng = np.random.default_rng(seed)
    model_task = np.concatenate([np.arange(tasks), rng.integers(0, tasks, models - tasks)])
    sizes = rng.integers(1, 40, (nodes, models)) / 8
    capacity = rng.integers(0, 12, (nodes, models))
    repository = np.zeros((nodes, models))
    for task in range(tasks):
        own = np.flatnonzero(model_task == task)
        for v in rng.choice(nodes, size=rng.integers(1, 3), replace=False):
            repository[v, rng.choice(own)] = 1
    paths, type_task = [], []
    for _ in range(types):
        task = int(rng.integers(tasks))
        order = rng.permutation(nodes)[: rng.integers(1, nodes + 1)].tolist()
        holders = np.flatnonzero(repository[:, model_task == task].any(1))
        if not set(order) & set(holders.tolist()):
            order.append(int(rng.choice(holders)))
        paths.append(order)
        type_task.append(task)
    length, width = max(map(len, paths)), int(np.bincount(model_task).max())
    cost = rng.integers(0, 12, (types, length, width)).astype(float)
    if not whole_costs:
        cost += rng.random(cost.shape)
    requests = rng.integers(0, 14, (slots, types)) * (rng.random((slots, types)) < 0.8)
    held = (sizes * repository).sum(1)
    budgets = held + np.floor(rng.uniform(*budget, nodes) * (sizes * (1 - repository)).sum(1) * 8) / 8
    budgets[0] = held[0]
    if extra_types:
        paths += [paths[0]] * extra_types
        type_task += [type_task[0]] * extra_types
        cost = np.concatenate([cost, cost[:1].repeat(extra_types, 0)])
        requests = np.pad(requests, ((0, 0), (0, extra_types)))
    if extra_models:
        cost = np.pad(cost, ((0, 0), (0, 0), (0, max(0, extra_models - width))))
        model_task = np.concatenate([model_task, np.full(extra_models, tasks)])
        sizes = np.concatenate([sizes, np.full((nodes, extra_models), 1e4)], 1)
        capacity = np.concatenate([capacity, np.full((nodes, extra_models), 5)], 1)
        repository = np.concatenate([repository, np.zeros((nodes, extra_models))], 1)
    return idn.build_problem(
        sizes=sizes,
        budgets=budgets,
        capacity=capacity,
        repository=repository,
        model_task=model_task,
        paths=paths,
        type_task=type_task,
        cost=cost,
        requests=requests,
        dtype=dtype,
    )


def random_allocation(problem: idn.Problem, seed: int, integral: bool = False, steps: int = 0) -> Tensor:
    """An allocation in [0, 1] with the repositories at 1; with `steps`, fractions are multiples of 1 / steps."""
    rng = np.random.default_rng(seed)
    y = rng.random(problem.shape)
    if integral:
        y = np.round(y)
    elif steps:
        y = rng.integers(0, steps + 1, problem.shape) / steps
    return torch.where(problem.repository, 1.0, torch.as_tensor(y, dtype=problem.dtype))


def feasible_allocation(problem: idn.Problem, seed: int) -> Tensor:
    """A fractional allocation that uses every budget."""
    y = random_allocation(problem, seed).clamp(min=1e-3)
    return idn.project(y, problem.sizes, problem.budgets, problem.repository)
