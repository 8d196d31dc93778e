"""Routing: least-latency paths to the nearest repository, and checks of paths given by hand.

A network is an undirected `networkx.Graph` on the nodes 0..V-1 (tensor order), made by `network`. A latency of 0 is
a link like any other.

Ties are broken exactly, the same in every process. Latencies are compared as the decimal numbers they were written
as (0.1 + 0.2 equals 0.3), and of two paths the better one is, in this order: the one of least latency; the one that
ends at the repository first in node order; the one with fewer hops; the one whose node indices, read from the
ingress, come first in lexicographic order. All paths to one set of repositories therefore form trees: what follows a
node does not depend on where the path came from.
"""

import math
from collections.abc import Collection, Iterable, Sequence
from fractions import Fraction
from itertools import pairwise

import networkx as nx

from idn_torch.errors import RoutingError

__all__ = ["check_paths", "network", "path_latencies", "shortest_paths"]

_SOURCE = -1  # an extra node joined to every repository of a set, so that one Dijkstra serves the whole set


def network(node_ids: Sequence[str], links: Iterable[tuple[int, int, float]]) -> nx.Graph:
    """The undirected graph of a network, checked link by link.

    Args:
        node_ids: V names, used in messages; node v of the graph is `node_ids[v]`.
        links: (node index, node index, round-trip latency >= 0 in the problem's latency unit), each pair once.

    Returns:
        Graph on the nodes 0..V-1 with node attribute `id` and edge attribute `latency` (float).

    Raises:
        RoutingError: a link joins a node to itself, repeats another link, names no node, or its latency is not a
            finite number >= 0. The message gives the link's position, counted from 0.

    Example:
        >>> graph = network(["edge", "hub", "cloud"], [(0, 1, 6.0), (1, 2, 40.0)])
        >>> graph.edges[1, 2]["latency"]
        40.0
    """
    graph = nx.Graph()
    graph.add_nodes_from((v, {"id": name}) for v, name in enumerate(node_ids))
    for position, (i, j, latency) in enumerate(links):
        where = f"links[{position}]"
        for v in (i, j):
            if v not in graph:
                raise RoutingError(f"{where}: no node has index {v}; there are {len(node_ids)} nodes")
        if i == j:
            raise RoutingError(f"{where}: joins node {node_ids[i]!r} to itself; remove the link")
        if graph.has_edge(i, j):
            raise RoutingError(
                f"{where}: nodes {node_ids[i]!r} and {node_ids[j]!r} are linked already; "
                "keep one link a pair (the one of least latency)"
            )
        if latency is None or not 0 <= latency < math.inf:
            raise RoutingError(
                f"{where}: the latency between {node_ids[i]!r} and {node_ids[j]!r} must be a finite number >= 0, "
                f"got {latency}"
            )
        graph.add_edge(i, j, latency=float(latency))
    return graph


def shortest_paths(
    graph: nx.Graph,
    ingress: Sequence[int],
    task: Sequence[int],
    repositories: Sequence[Collection[int]],
    *,
    type_ids: Sequence[str] | None = None,
    task_ids: Sequence[str] | None = None,
) -> list[list[int]]:
    """For every request type, the least-latency path from its ingress to the nearest repository of its task.

    One Dijkstra for each different set of repositories, whatever the number of types. Ties: see the module.

    Args:
        graph: from `network`.
        ingress: R node indices, where the requests of each type enter.
        task: R task indices.
        repositories: for each task, the nodes that hold a repository model of it.
        type_ids: R names for messages; default "0", "1", ...
        task_ids: N names for messages; default "0", "1", ...

    Returns:
        R lists of node indices, from the ingress to the repository (one node where the ingress is the repository).

    Raises:
        RoutingError: no repository for the task, no route to any, or an ingress that is no node. Names the type.

    Example:
        >>> graph = network(["edge", "hub", "cloud"], [(0, 1, 6.0), (1, 2, 40.0)])
        >>> shortest_paths(graph, ingress=[0, 1], task=[0, 0], repositories=[{2}])
        [[0, 1, 2], [1, 2]]
    """
    exact = _exact_graph(graph)
    trees: dict[tuple[int, ...], _Tree] = {}
    paths = []
    for rho, (start, i) in enumerate(zip(ingress, task, strict=True)):
        name = _type_name(rho, type_ids)
        targets = _repositories_of(graph, i, repositories, name, task_ids)
        if start not in graph:
            raise RoutingError(f"{name}: no node has index {start}; there are {len(graph)} nodes")
        if targets not in trees:
            trees[targets] = _Tree(exact, targets)
        path = trees[targets].path(start)
        if path is None:
            raise RoutingError(
                f"{name}: no route from node {_id(graph, start)!r} to a repository of task "
                f"{_task_name(i, task_ids)!r} ({_ids(graph, targets)}); add links, or a repository it can reach"
            )
        paths.append(path)
    return paths


def check_paths(
    graph: nx.Graph,
    paths: Sequence[Sequence[int]],
    task: Sequence[int],
    repositories: Sequence[Collection[int]],
    *,
    type_ids: Sequence[str] | None = None,
    task_ids: Sequence[str] | None = None,
) -> None:
    """Check given routing paths: nodes exist, none twice, neighbours linked, a repository of the task on the way.

    The repository may be anywhere on the path; ranks after it are never used.

    Args:
        graph: from `network`.
        paths: R sequences of node indices, from the ingress on.
        task: R task indices.
        repositories: for each task, the nodes that hold a repository model of it.
        type_ids: R names for messages; default "0", "1", ...
        task_ids: N names for messages; default "0", "1", ...

    Raises:
        RoutingError: a path is broken; names the type and the nodes.

    Example:
        >>> graph = network(["edge", "hub", "cloud"], [(0, 1, 6.0), (1, 2, 40.0)])
        >>> check_paths(graph, [[0, 2]], task=[0], repositories=[{2}])
        Traceback (most recent call last):
        ...
        idn_torch.errors.RoutingError: request type '0': nodes 'edge' and 'cloud' follow each other on the path \
but no link joins them; add the link or the nodes between
    """
    for rho, (path, i) in enumerate(zip(paths, task, strict=True)):
        name = _type_name(rho, type_ids)
        if len(path) == 0:
            raise RoutingError(f"{name}: the path is empty; list its nodes, from the ingress to a repository")
        for v in path:
            if v not in graph:
                raise RoutingError(f"{name}: no node has index {v}; there are {len(graph)} nodes")
        seen: set[int] = set()
        for v in path:
            if v in seen:
                raise RoutingError(f"{name}: node {_id(graph, v)!r} is on the path twice; a path visits a node once")
            seen.add(v)
        for u, v in pairwise(path):
            if not graph.has_edge(u, v):
                raise RoutingError(
                    f"{name}: nodes {_id(graph, u)!r} and {_id(graph, v)!r} follow each other on the path but no link "
                    "joins them; add the link or the nodes between"
                )
        targets = _repositories_of(graph, i, repositories, name, task_ids)
        if seen.isdisjoint(targets):
            raise RoutingError(
                f"{name}: no repository of task {_task_name(i, task_ids)!r} on the path ({_ids(graph, path)}); "
                f"its repositories are at {_ids(graph, targets)}: extend the path to one of them"
            )


def path_latencies(graph: nx.Graph, paths: Sequence[Sequence[int]]) -> list[list[float]]:
    """Cumulative round-trip latency from the ingress to every node of every path, the first sum of eq. (6).

    Args:
        graph: from `network`.
        paths: R sequences of node indices whose neighbours are linked (see `check_paths`).

    Returns:
        R lists as long as the paths, in the links' unit; the first entry of each is 0.

    Raises:
        RoutingError: two neighbours on a path have no link.

    Example:
        >>> graph = network(["edge", "hub", "cloud"], [(0, 1, 6.0), (1, 2, 40.0)])
        >>> path_latencies(graph, [[0, 1, 2]])
        [[0.0, 6.0, 46.0]]
    """
    result = []
    for rho, path in enumerate(paths):
        total, row = 0.0, [0.0] if len(path) else []
        for u, v in pairwise(path):
            link = graph.get_edge_data(u, v)
            if link is None:
                raise RoutingError(f"path {rho}: no link joins nodes {_id(graph, u)!r} and {_id(graph, v)!r}")
            total += link["latency"]
            row.append(total)
        result.append(row)
    return result


class _Tree:
    """The best path of every node to one set of repositories.

    One Dijkstra on integers that order paths by (latency, repository in node order, hops): with V nodes and S
    repositories, a link weighs latency*S*V + 1 and the repository of rank k starts at k*V; hops stay below V.
    Every link weighs at least 1, so links of latency 0 make no cycle.
    """

    def __init__(self, exact: nx.Graph, repositories: tuple[int, ...]) -> None:
        V, S = len(exact), len(repositories)
        graph = nx.Graph()
        graph.add_nodes_from(exact)
        graph.add_weighted_edges_from((u, v, w * S * V + 1) for u, v, w in exact.edges(data="latency"))
        self._neighbours = {v: list(graph[v].items()) for v in graph}
        self._start = {v: k * V for k, v in enumerate(repositories)}
        graph.add_weighted_edges_from((_SOURCE, v, start) for v, start in self._start.items())
        self._distance = nx.single_source_dijkstra_path_length(graph, _SOURCE, weight="weight")
        self._next: dict[int, int] = {}

    def path(self, ingress: int) -> list[int] | None:
        if ingress not in self._distance:
            return None
        v, path = ingress, [int(ingress)]
        while self._distance[v] != self._start.get(v):
            if v not in self._next:
                # the first neighbour, in node order, on a best path: the lexicographic rule
                left = self._distance[v]
                self._next[v] = min(u for u, link in self._neighbours[v] if self._distance[u] + link["weight"] == left)
            v = self._next[v]
            path.append(v)
        return path


def _exact_graph(graph: nx.Graph) -> nx.Graph:
    """The same graph, latencies scaled to whole numbers without rounding: sums and ties are exact."""
    exact = nx.Graph()
    exact.add_nodes_from(graph)
    # repr of a float is the shortest decimal that reads back as it: the number as it was written
    links = [(u, v, Fraction(repr(float(w)))) for u, v, w in graph.edges(data="latency")]
    scale = math.lcm(*(w.denominator for _, _, w in links))
    exact.add_edges_from((u, v, {"latency": w.numerator * (scale // w.denominator)}) for u, v, w in links)
    return exact


def _repositories_of(
    graph: nx.Graph,
    task: int,
    repositories: Sequence[Collection[int]],
    type_name: str,
    task_ids: Sequence[str] | None,
) -> tuple[int, ...]:
    targets = tuple(sorted(set(repositories[task])))
    if not targets:
        raise RoutingError(
            f"{type_name}: task {_task_name(task, task_ids)!r} has no repository; make one of its models a repository "
            "model at some node"
        )
    for v in targets:
        if v not in graph:
            raise RoutingError(
                f"task {_task_name(task, task_ids)!r}: its repository {v} is no node; there are {len(graph)} nodes"
            )
    return targets


def _type_name(rho: int, type_ids: Sequence[str] | None) -> str:
    name = str(rho) if type_ids is None else type_ids[rho]
    return f"request type {name!r}"


def _task_name(task: int, task_ids: Sequence[str] | None) -> str:
    return str(task) if task_ids is None else task_ids[task]


def _id(graph: nx.Graph, v: int) -> str:
    return graph.nodes[v].get("id", str(v))


def _ids(graph: nx.Graph, nodes: Sequence[int], most: int = 10) -> str:
    names = ", ".join(_id(graph, v) for v in nodes[:most])
    return names if len(nodes) <= most else f"{names} and {len(nodes) - most} more"
