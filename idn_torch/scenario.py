"""Scenario files, `schema: idn-scenario/1`, in YAML or JSON: a network, its models and its requests in one place."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from idn_torch.build import build_problem
from idn_torch.errors import InputError, ProblemError, RoutingError, ScenarioError
from idn_torch.problem import Problem
from idn_torch.routing import check_paths, network, path_latencies, shortest_paths
from idn_torch.scenario_schema import Scenario, parse_scenario
from idn_torch.scenario_text import load_file, load_mapping

__all__ = ["load_problem"]


def load_problem(
    source: str | os.PathLike[str] | Mapping[str, Any],
    dtype: torch.dtype = torch.float64,
    device: torch.device | str = "cpu",
) -> Problem:
    """Read a scenario file, or a mapping laid out like one, into a checked `Problem`.

    Costs follow eq. (6): round-trip latency from the ingress + delay + alpha * (1 - accuracy). Nodes, models and
    request types keep the order of the file; tasks come in the order in which models first name them. With
    `copies: 3` a model `tiny` becomes `tiny`, `tiny#2`, `tiny#3`, side by side; a repository holds the first.

    Every scalar of a file is text until the schema makes a number of it, so ids such as 007, 1.10 and no stay what
    was written, and 1e-3 is a number. In YAML, aliases work; merge keys (<<) and tags are errors.

    What is declared but not used stays: nodes on no path, models of a task nobody requests, and tasks without a
    repository, which are an error only when a request type needs one. `links` (default none), `name` (default ""),
    `slot_seconds` (default 60) and a node's `kind` may be left out. Slots without any request are fine, a scenario
    without any is not. Request types may share task and path.

    Args:
        source: path of a .yaml, .yml or .json file, relative to the working directory; or a mapping in the same
            schema, whose ids are str (or int) and whose numbers are Python, numpy or torch numbers or text. Paths
            inside a scenario are relative to its file (a mapping's: to the working directory).
        dtype: torch.float64 or torch.float32. Whole numbers go up to 2^53 or 2^24.
        device: where the tensors of the problem live.

    Returns:
        The problem; latencies, delays and alpha in `latency_unit` (us, ms or s), sizes and budgets in `size_unit`,
        capacities and requests in requests a slot of `slot_seconds` seconds.

    Raises:
        ScenarioError: the file cannot be read or does not follow the schema.
        RoutingError: a path is broken or meets no repository, or an ingress reaches none.
        ProblemError: no placement is possible, e.g. repository models above a node's budget.
        InputError: another dtype.

    Example:
        >>> problem = load_problem({
        ...     "schema": "idn-scenario/1", "units": {"latency": "ms", "size": "MB"}, "alpha": 75,
        ...     "nodes": [{"id": "edge", "budget": 500}, {"id": "cloud", "budget": 2000}],
        ...     "links": [{"between": ["edge", "cloud"], "latency": 46}],
        ...     "models": [{"id": "large", "task": "detection", "accuracy": 0.66, "size": 245,
        ...                 "delay": {"edge": 30, "cloud": 16}, "capacity": 40}],
        ...     "repositories": [{"node": "cloud", "model": "large"}],
        ...     "request_types": [{"id": "a", "task": "detection", "ingress": "edge"}],
        ...     "requests": [{"a": 120}],
        ... })
        >>> problem.ranked.cost
        tensor([[55.5000, 87.5000]], dtype=torch.float64)
    """
    if dtype not in (torch.float32, torch.float64):
        raise InputError(f"dtype is {dtype}; use torch.float64 or torch.float32")
    if isinstance(source, Mapping):
        where, base = "scenario", Path()
        tree = load_mapping(source, where)
    elif isinstance(source, str | os.PathLike):
        where, base = os.fspath(source), Path(source).parent
        tree = load_file(source)
    else:
        raise ScenarioError(f"a scenario is given by its path or as a mapping, got {type(source).__name__}")
    scenario = parse_scenario(tree, where, base, dtype)
    paths, latencies = _route(scenario, where)
    models = scenario.models
    repository = np.zeros((len(scenario.nodes), len(models.ids)), dtype=bool)
    for v, m in scenario.repositories:
        repository[v, m] = True
    try:
        return build_problem(
            sizes=models.size,
            budgets=np.array([node.budget for node in scenario.nodes]),
            capacity=models.capacity,
            repository=repository,
            model_task=models.task,
            paths=paths,
            type_task=[kind.task for kind in scenario.types],
            path_latency=latencies,
            delay=models.delay,
            accuracy=models.accuracy,
            alpha=scenario.alpha,
            requests=scenario.requests,
            node_ids=[node.id for node in scenario.nodes],
            model_ids=models.ids,
            task_ids=models.task_ids,
            type_ids=[kind.id for kind in scenario.types],
            name=scenario.name,
            latency_unit=scenario.latency_unit,
            size_unit=scenario.size_unit,
            slot_seconds=scenario.slot_seconds,
            links=scenario.links,
            dtype=dtype,
            device=device,
        )
    except ProblemError as error:
        raise ProblemError(f"{where}: {error}") from None


def _route(scenario: Scenario, where: str) -> tuple[list[list[int]], torch.Tensor]:
    """The path of every request type, and the cumulative latencies on it as (R, J) float64, padded with 0."""
    try:
        graph = network([node.id for node in scenario.nodes], scenario.links)
    except RoutingError as error:  # a link that the file should not have
        raise ScenarioError(f"{where}: {error}") from None
    models, types = scenario.models, scenario.types
    holders: list[set[int]] = [set() for _ in models.task_ids]
    for v, m in scenario.repositories:
        holders[models.task[m]].add(v)
    paths = [list(kind.path or ()) for kind in types]
    given = [rho for rho, kind in enumerate(types) if kind.path is not None]
    open_ = [rho for rho, kind in enumerate(types) if kind.ingress is not None]
    try:
        check_paths(
            graph,
            [paths[rho] for rho in given],
            [types[rho].task for rho in given],
            holders,
            type_ids=[types[rho].id for rho in given],
            task_ids=models.task_ids,
        )
        found = shortest_paths(
            graph,
            [kind.ingress for kind in types if kind.ingress is not None],
            [types[rho].task for rho in open_],
            holders,
            type_ids=[types[rho].id for rho in open_],
            task_ids=models.task_ids,
        )
    except RoutingError as error:
        raise RoutingError(f"{where}: request_types: {error}") from None
    for rho, path in zip(open_, found, strict=True):
        paths[rho] = path
    longest = max(map(len, paths))
    latencies = [[*row, *[0.0] * (longest - len(row))] for row in path_latencies(graph, paths)]
    return paths, torch.tensor(latencies, dtype=torch.float64)
