"""Detection requests on any network: GPUs at its nodes, a family of detectors to place, repositories at its clouds."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from idn_torch.build import build_problem
from idn_torch.catalog import Catalog
from idn_torch.errors import InputError
from idn_torch.problem import Problem
from idn_torch.routing import network, path_latencies, shortest_paths
from idn_torch.workload import Ranking, request_counts, task_shares

__all__ = ["check_gpu", "check_ranges", "detection_problem"]


def detection_problem(
    family: Catalog,
    *,
    name: str,
    node_ids: Sequence[str],
    links: Sequence[tuple[int, int, float]],
    gpus: Sequence[str],
    budgets: NDArray[np.float64],
    clouds: Sequence[int],
    shares: NDArray[np.float64],
    tasks: int,
    copies: int,
    alpha: float,
    requests_per_second: float,
    slots: int,
    slot_seconds: float,
    zipf_exponent: float,
    popularity: Ranking,
    shift_every: int,
    size_overhead: float,
    utilisation: float,
    seed: int,
    dtype: torch.dtype,
    device: torch.device | str,
) -> Problem:
    """The problem of a network whose clouds hold, for each task, the most accurate model of the catalog.

    Args:
        family: the detectors; each task has its own instance of every one.
        name, node_ids: of the network.
        links: (node, node, round-trip ms).
        gpus: of the catalog, at every node.
        budgets: MB at every node, `(V,)`, at clouds on top of the repository models.
        clouds: nodes that requests are routed to, each to the nearest.
        shares: of the requests that enter at every node, `(V,)`, not scaled.
        tasks, copies, alpha, requests_per_second, slots, slot_seconds, zipf_exponent, popularity, shift_every,
        size_overhead, utilisation, seed, dtype, device: as in `idn_torch.networks.backbone`.

    Raises:
        InputError: an argument out of its range.
        RoutingError: an ingress that no cloud can be reached from.
        ProblemError: counts too large for `dtype`.
    """
    check_ranges(
        {"tasks": tasks, "copies": copies, "slots": slots},
        {"slot_seconds": slot_seconds},
        {"alpha": alpha, "requests_per_second": requests_per_second, "size_overhead": size_overhead},
    )
    if not 0 < utilisation <= 1:
        raise InputError(f"utilisation is {utilisation}; it must be in (0, 1]")
    graph = network(node_ids, links)

    # Models: the catalog once per task, copies side by side.
    def per_model(values: Sequence[float] | NDArray[Any]) -> NDArray[Any]:
        return np.tile(np.repeat(values, copies, axis=-1), tasks)

    fps = per_model(np.array([[model.fps[gpu] for model in family.models] for gpu in gpus]))  # (V, M)
    accuracy = np.array([model.accuracy for model in family.models])
    size = np.array([model.weights_mb for model in family.models]) + size_overhead
    task_ids = _task_ids(tasks)
    best, width = int(accuracy.argmax()), copies * len(family.models)
    repository = np.zeros(fps.shape, dtype=bool)
    repository[np.array(clouds)[:, None], np.arange(tasks) * width + best * copies] = True
    totals = np.array(budgets, dtype=np.float64)
    totals[list(clouds)] += tasks * size[best]

    # Request types: node by node, task by task.
    ingress = np.flatnonzero(shares)
    node, task = np.repeat(ingress, tasks).tolist(), np.tile(np.arange(tasks), len(ingress)).tolist()
    type_ids = [f"{node_ids[v]}:{task_ids[i]}" for v, i in zip(node, task, strict=True)]
    paths = shortest_paths(graph, node, task, [list(clouds)] * tasks, type_ids=type_ids, task_ids=task_ids)
    popular = task_shares(slots, tasks, zipf_exponent, popularity, shift_every, seed)
    return build_problem(
        sizes=np.tile(per_model(size), (len(node_ids), 1)),
        budgets=totals,
        # Rounded first: 0.1 * 60 * 50 is a little less than 300 in floating point.
        capacity=np.floor((utilisation * slot_seconds * fps).round(6)),
        repository=repository,
        model_task=np.repeat(np.arange(tasks), width),
        paths=paths,
        type_task=task,
        path_latency=path_latencies(graph, paths),
        delay=1000 / fps,
        accuracy=per_model(accuracy),
        alpha=alpha,
        requests=request_counts(shares[ingress], popular, requests_per_second * slot_seconds, seed),
        node_ids=node_ids,
        model_ids=[f"{task_id}/{model}" for task_id in task_ids for model in _copied(family, copies)],
        task_ids=task_ids,
        type_ids=type_ids,
        name=name,
        slot_seconds=slot_seconds,
        links=links,
        dtype=dtype,
        device=device,
    )


def check_ranges(counts: dict[str, int], above_zero: dict[str, float], amounts: dict[str, float]) -> None:
    """Raise `InputError` for a count below 1, for a number that is not > 0, or for one that is not >= 0."""
    for name, count in counts.items():
        if count < 1:
            raise InputError(f"{name} is {count}; it must be at least 1")
    for name, value in above_zero.items():
        if not 0 < value < math.inf:
            raise InputError(f"{name} is {value}; it must be > 0 and finite")
    for name, value in amounts.items():
        if not 0 <= value < math.inf:
            raise InputError(f"{name} is {value}; it must be >= 0 and finite")


def check_gpu(family: Catalog, what: str, gpu: str) -> None:
    """Raise `InputError` unless the catalog knows the GPU that the argument `what` names."""
    if gpu not in family.gpus:
        raise InputError(f"{what} is {gpu!r}; the catalog {family.name!r} knows {', '.join(family.gpus)}")


def _task_ids(tasks: int) -> list[str]:
    wide = max(2, len(str(tasks - 1)))
    return [f"detect-{i:0{wide}}" for i in range(tasks)]


def _copied(family: Catalog, copies: int) -> list[str]:
    return [m.id if k == 1 else f"{m.id}#{k}" for m in family.models for k in range(1, copies + 1)]
