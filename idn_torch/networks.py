"""Problems on real networks: a backbone of the topohub collection, GPUs at its nodes and detectors to place on them."""

import importlib.resources
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from os import PathLike
from typing import Any

import networkx as nx
import numpy as np
import torch
from numpy.typing import NDArray

from idn_torch.catalog import load_catalog
from idn_torch.detection import check_gpu, check_ranges, detection_problem
from idn_torch.errors import InputError
from idn_torch.problem import Problem
from idn_torch.routing import network
from idn_torch.scenario_field import unknown
from idn_torch.workload import Ranking

__all__ = ["backbone", "positions"]


def backbone(
    topology: str = "sndlib/germany50",
    *,
    catalog: str | PathLike[str] = "yolov4",
    repositories: Sequence[str] | None = ("Frankfurt", "Leipzig"),
    tasks: int = 20,
    copies: int = 1,
    alpha: float = 75.0,
    requests_per_second: float = 20_000.0,
    slots: int = 120,
    slot_seconds: float = 60.0,
    zipf_exponent: float = 1.0,
    popularity: Ranking = "sliding",
    shift_every: int = 60,
    edge_budget: float = 8_000.0,
    hub_budget: float = 32_000.0,
    cloud_budget: float = 64_000.0,
    budget_scale: float = 1.0,
    hub_degree: int = 4,
    hop_latency: float = 0.5,
    km_per_ms: float = 200.0,
    size_overhead: float = 800.0,
    utilisation: float = 0.5,
    edge_gpu: str = "RTX 2070",
    hub_gpu: str = "V100",
    seed: int = 0,
    dtype: torch.dtype = torch.float64,
    device: torch.device | str = "cpu",
) -> Problem:
    """The default experiment: detection requests on a backbone, answered at its nodes or at a few clouds.

    Round-trip latency of a link: `2 * km / km_per_ms + hop_latency`. Requests take the least-latency path to the
    nearest cloud. A node with fewer than `hub_degree` links is an edge, any other a hub; clouds are on top of that the
    repositories, and hold the catalog's most accurate model for each task. Each of the tasks has its own instance
    of every model of the catalog, of size `weights + size_overhead`, delay `1000 / fps` and capacity
    `utilisation * slot_seconds * fps`, rounded down.

    Requests: an ingress's share is the sum of the demands that start or end there or, where the topology has none
    (all but sndlib), its number of links. Tasks follow Zipf's law over a ranking that changes, counts are Poisson
    (`idn_torch.workload`). Every (ingress, task) with a positive share is a type, in node order.

    Args:
        topology: key of a topohub topology, such as "sndlib/germany50", "topozoo/Abilene", "gabriel/25/0". Node ids
            are its names; a name that occurs again gets "#2", "#3", ..., a node without one is called by its number.
        catalog: name of a packaged catalog or path of one (`load_catalog`).
        repositories: node ids of the clouds, at least one. None picks two central ones: the node of least mean
            latency from the requests, then the one that together with it leaves the least.
        tasks: N >= 1.
        copies: of every model, >= 1; the repository holds the first.
        alpha: ms per unit of lost accuracy, >= 0.
        requests_per_second: over all ingresses and tasks, >= 0.
        slots: T >= 1.
        slot_seconds: > 0.
        zipf_exponent: >= 0.
        popularity: "fixed", "sliding" or "jumping" ranking.
        shift_every: slots between two changes of the ranking, >= 1.
        edge_budget, hub_budget: MB, >= 0.
        cloud_budget: MB on top of the repository models, >= 0.
        budget_scale: factor on these three, >= 0.
        hub_degree: links from which on a node is a hub.
        hop_latency: ms a link adds to the round trip, >= 0.
        km_per_ms: speed of light in the fibre, > 0.
        size_overhead: MB that a running model takes besides its weights, >= 0; an assumption.
        utilisation: share of a slot in which a model works, in (0, 1]; an assumption.
        edge_gpu, hub_gpu: GPUs of the catalog, at the edges and at hubs and clouds.
        seed: >= 0, of the requests and of the "jumping" ranking.
        dtype: torch.float64 or torch.float32.
        device: where the tensors of the problem live.

    Returns:
        The problem, in ms and MB. Models are called "detect-03/yolov4-608" (copies "...#2"), types "Berlin:detect-03".

    Raises:
        InputError: an argument out of its range, an unknown topology, repository or GPU; names it.
        ScenarioError: no such catalog, or a broken one.
        RoutingError: an ingress that no cloud can be reached from.
        ProblemError: counts too large for `dtype`.

    Example:
        >>> problem = backbone("sndlib/polska", repositories=["Warsaw"], tasks=2, slots=3)
        >>> len(problem.node_ids), len(problem.model_ids), problem.requests.shape
        (12, 22, torch.Size([3, 24]))
    """
    check_ranges(
        {},
        {"km_per_ms": km_per_ms},
        {
            "edge_budget": edge_budget,
            "hub_budget": hub_budget,
            "cloud_budget": cloud_budget,
            "budget_scale": budget_scale,
            "hop_latency": hop_latency,
        },
    )
    site = _load_site(topology)
    family = load_catalog(catalog)
    check_gpu(family, "edge_gpu", edge_gpu)
    check_gpu(family, "hub_gpu", hub_gpu)

    links = [(i, j, 2 * km / km_per_ms + hop_latency) for i, j, km in site.links]
    graph = network(site.node_ids, links)
    clouds = _central(graph, site.shares) if repositories is None else _named(site, repositories)
    is_cloud = np.isin(np.arange(len(site.node_ids)), clouds)
    is_edge = (site.degree < hub_degree) & ~is_cloud

    return detection_problem(
        family,
        name=topology,
        node_ids=site.node_ids,
        links=links,
        gpus=np.where(is_edge, edge_gpu, hub_gpu).tolist(),
        budgets=budget_scale * np.where(is_cloud, cloud_budget, np.where(is_edge, edge_budget, hub_budget)),
        clouds=clouds,
        shares=site.shares,
        tasks=tasks,
        copies=copies,
        alpha=alpha,
        requests_per_second=requests_per_second,
        slots=slots,
        slot_seconds=slot_seconds,
        zipf_exponent=zipf_exponent,
        popularity=popularity,
        shift_every=shift_every,
        size_overhead=size_overhead,
        utilisation=utilisation,
        seed=seed,
        dtype=dtype,
        device=device,
    )


def positions(topology: str = "sndlib/germany50") -> dict[str, tuple[float, float]]:
    """Where the nodes of a topology are, for maps: (longitude, latitude) in degrees, by node id as in `backbone`.

    The synthetic gabriel topologies lie in a plane; theirs is (x, y) in km.

    Raises:
        InputError: unknown topology.

    Example:
        >>> positions()["Berlin"]
        (13.39, 52.52)
    """
    site = _load_site(topology)
    return dict(zip(site.node_ids, site.positions, strict=True))


@dataclass(frozen=True)
class _Site:
    """A topology with nodes 0..V-1.

    Attributes:
        node_ids: unique names.
        positions: (longitude, latitude) of each.
        links: (node, node, km).
        degree: links of each node, `(V,)`.
        shares: of the requests, `(V,)`, not scaled.
    """

    node_ids: tuple[str, ...]
    positions: tuple[tuple[float, float], ...]
    links: tuple[tuple[int, int, float], ...]
    degree: NDArray[np.int64]
    shares: NDArray[np.float64]


def _load_site(topology: str) -> _Site:
    data = _load_topology(topology)
    index = {node["id"]: v for v, node in enumerate(data["nodes"])}
    links = tuple((index[edge["source"]], index[edge["target"]], float(edge["dist"])) for edge in data["edges"])
    degree = np.bincount([v for link in links for v in link[:2]], minlength=len(index))
    shares = np.zeros(len(index))
    for source, row in data["graph"]["demands"].items():
        for target, demand in row.items():
            shares[index[source]] += demand
            shares[index[target]] += demand
    return _Site(
        node_ids=_unique([(node.get("name") or f"node {node['id']}").strip() for node in data["nodes"]]),
        positions=tuple((float(node["pos"][0]), float(node["pos"][1])) for node in data["nodes"]),
        links=links,
        degree=degree,
        shares=shares if shares.any() else degree.astype(np.float64),
    )


def _load_topology(topology: str) -> dict[str, Any]:
    """The node-link mapping that topohub has under this key. Importing this module does not import topohub."""
    import topohub

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)  # topohub leaves the file to the garbage collector
            return topohub.get(topology)
    except KeyError:
        known = _topologies()
        close = get_close_matches(topology, known, n=3, cutoff=0.5)
        hint = f"did you mean {', '.join(close)}?" if close else f"there are {len(known)}, such as sndlib/germany50"
        raise InputError(f"topohub has no topology {topology!r}; {hint}") from None


def _topologies() -> list[str]:
    """Every key of topohub."""
    data = importlib.resources.files("topohub") / "data"
    folders, keys = [("", data)], []
    while folders:
        prefix, folder = folders.pop()
        for entry in folder.iterdir():
            if entry.is_dir():
                folders.append((f"{prefix}{entry.name}/", entry))
            elif entry.name.endswith(".json"):
                keys.append(prefix + entry.name.removesuffix(".json"))
    return sorted(keys)


def _unique(names: Sequence[str]) -> tuple[str, ...]:
    """The names, one that occurs again with "#2", "#3", ... behind it."""
    taken: dict[str, None] = {}
    for name in names:
        unique, count = name, 1
        while unique in taken or (count > 1 and unique in names):
            count += 1
            unique = f"{name}#{count}"
        taken[unique] = None
    return tuple(taken)


def _named(site: _Site, repositories: Sequence[str]) -> list[int]:
    """Node indices of the clouds that the caller named."""
    names = [repositories] if isinstance(repositories, str) else list(repositories)
    if not names:
        raise InputError(
            "repositories is empty; name at least one node, or give None (null in a configuration) for two central ones"
        )
    for name in names:
        if name not in site.node_ids:
            raise InputError(
                f"repositories: {unknown('node', name, site.node_ids)}; name one of these, or give None (null "
                "in a configuration) for two central ones"
            )
        if names.count(name) > 1:
            raise InputError(f"repositories: {name!r} is named twice; name each node once")
    return sorted(site.node_ids.index(name) for name in names)


def _central(graph: nx.Graph, shares: NDArray[np.float64], count: int = 2) -> list[int]:
    """Nodes picked one by one, each the one that leaves the least mean latency to the nearest picked one."""
    latency = np.full((len(graph), len(graph)), np.inf)
    for v, row in nx.all_pairs_dijkstra_path_length(graph, weight="latency"):
        latency[v, list(row)] = list(row.values())
    latency = latency[:, shares > 0]
    picked: list[int] = []
    nearest = np.full(latency.shape[1], np.inf)
    for _ in range(min(count, len(graph))):
        mean = np.minimum(latency, nearest) @ shares[shares > 0]
        mean[picked] = np.inf
        # the first of those that are equal up to rounding: a link that halves the requests makes its ends tie
        picked.append(int(np.flatnonzero(mean <= mean.min() * (1 + 1e-9))[0]))
        nearest = np.minimum(nearest, latency[picked[-1]])
    return sorted(picked)
