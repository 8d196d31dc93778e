"""Least-latency routing against a search of all simple paths, and the errors of broken paths."""

import random
from fractions import Fraction
from itertools import pairwise

import networkx as nx
import pytest

from idn_torch.errors import RoutingError
from idn_torch.routing import check_paths, network, path_latencies, shortest_paths

LINE = ["edge", "hub", "cloud", "spare"]
LINE_LINKS = [(0, 1, 6.0), (1, 2, 40.0)]  # edge - hub - cloud; spare has no link


def line():
    return network(LINE, LINE_LINKS)


def best_by_search(V, links, ingress, repositories):
    """Every simple path to every repository, compared by the four rules of the module, in exact arithmetic."""
    graph = nx.Graph()
    graph.add_nodes_from(range(V))
    graph.add_edges_from((i, j) for i, j, _ in links)
    weight = {frozenset(link[:2]): Fraction(str(link[2])) for link in links}
    found = []
    for target in repositories:
        paths = [[ingress]] if target == ingress else nx.all_simple_paths(graph, ingress, target)
        for path in paths:
            latency = sum(weight[frozenset(pair)] for pair in pairwise(path))
            found.append((latency, target, len(path), path))
    return min(found)[-1] if found else None


@pytest.mark.parametrize("seed", range(60))
def test_shortest_paths_equal_a_search_of_all_paths(seed):
    """Latencies from a handful of values make ties common; 0 and 0.1 + 0.2 = 0.3 are among them."""
    rng = random.Random(seed)
    V = rng.randint(1, 7)
    pairs = [(i, j) for i in range(V) for j in range(i)]
    values = [0.0, 0.1, 0.2, 0.3, 1.0] if seed % 3 else [0.0]
    links = [(i, j, rng.choice(values)) for i, j in pairs if rng.random() < 0.6]
    repositories = [set(rng.sample(range(V), rng.randint(1, min(3, V)))) for _ in range(3)]
    graph = network([f"n{v}" for v in range(V)], links)
    for ingress in range(V):
        for task in range(3):
            expected = best_by_search(V, links, ingress, repositories[task])
            if expected is None:
                with pytest.raises(RoutingError, match=f"no route from node 'n{ingress}'"):
                    shortest_paths(graph, [ingress], [task], repositories)
            else:
                assert shortest_paths(graph, [ingress], [task], repositories) == [expected]


def test_ties_between_repositories_go_to_the_first_in_node_order():
    links = [(1, 3, 0.1), (3, 0, 0.2), (1, 2, 0.3)]  # from 1: repository 0 at 0.1 + 0.2, repository 2 at 0.3
    graph = network(list("abcd"), links)
    assert 0.1 + 0.2 > 0.3  # in floats the farther route would win by rounding
    assert shortest_paths(graph, [1], [0], [{0, 2}]) == [[1, 3, 0]]


def test_ties_between_paths_go_to_fewer_hops_then_to_lower_nodes():
    graph = network(list("abcde"), [(0, 4, 3.0), (0, 1, 1.0), (1, 4, 2.0)])
    assert shortest_paths(graph, [0], [0], [{4}]) == [[0, 4]]
    graph = network(list("abcde"), [(0, 3, 1.0), (3, 4, 2.0), (0, 2, 2.0), (2, 4, 1.0)])
    assert shortest_paths(graph, [0], [0], [{4}]) == [[0, 2, 4]]


def test_paths_do_not_depend_on_the_order_of_the_links():
    rng = random.Random(5)
    pairs = [(i, j, float(rng.randint(0, 2))) for i in range(30) for j in range(i) if rng.random() < 0.3]
    expected = None
    for _ in range(5):
        rng.shuffle(pairs)
        links = [(j, i, w) if rng.random() < 0.5 else (i, j, w) for i, j, w in pairs]
        paths = shortest_paths(network([str(v) for v in range(30)], links), range(30), [0] * 30, [{3, 17}])
        expected = paths if expected is None else expected
        assert paths == expected


def test_a_latency_of_zero_is_a_link():
    graph = network(LINE, [(0, 1, 0.0), (1, 2, 0), (0, 2, 0.001)])
    assert shortest_paths(graph, [0], [0], [{2}]) == [[0, 1, 2]]
    check_paths(graph, [[0, 1, 2]], [0], [{2}])
    assert path_latencies(graph, [[0, 1, 2], [0, 2]]) == [[0.0, 0.0, 0.0], [0.0, 0.001]]


def test_latencies_far_apart_in_size_are_compared_exactly():
    graph = network(list("abc"), [(0, 1, 1e16), (1, 2, 1.0), (0, 2, 1e16)])  # 1e16 + 1 is 1e16 in floats
    assert shortest_paths(graph, [0], [0], [{2}]) == [[0, 2]]
    graph = network(list("abc"), [(0, 1, 1e16), (1, 2, 1e-300), (0, 2, 1e16 + 2)])
    assert shortest_paths(graph, [0], [0], [{2}]) == [[0, 1, 2]]


def test_one_dijkstra_serves_all_types_of_one_repository_set(monkeypatch):
    calls = []
    search = nx.single_source_dijkstra_path_length

    def counted(graph, source, weight):
        calls.append(source)
        return search(graph, source, weight=weight)

    monkeypatch.setattr(nx, "single_source_dijkstra_path_length", counted)
    V, tasks = 1000, 20
    rng = random.Random(0)
    tree = [(v, rng.randrange(v), float(rng.randint(1, 9))) for v in range(1, V)]
    graph = network([str(v) for v in range(V)], tree)
    ingress = [v for v in range(V) for _ in range(tasks)]
    task = [i for _ in range(V) for i in range(tasks)]
    paths = shortest_paths(graph, ingress, task, [{0, 7} if i % 2 else [0] for i in range(tasks)])
    assert len(calls) == 2
    assert [path[0] for path in paths] == ingress
    assert {path[-1] for path, i in zip(paths, task, strict=True) if i % 2 == 0} == {0}
    assert {path[-1] for path, i in zip(paths, task, strict=True) if i % 2} == {0, 7}
    check_paths(graph, paths[::97], task[::97], [{0, 7} if i % 2 else [0] for i in range(tasks)])


def test_path_latencies_are_cumulative_sums():
    assert path_latencies(line(), [[0, 1, 2], [2], [2, 1]]) == [[0.0, 6.0, 46.0], [0.0], [0.0, 40.0]]
    with pytest.raises(RoutingError, match="path 1: no link joins nodes 'edge' and 'cloud'"):
        path_latencies(line(), [[0], [0, 2]])


@pytest.mark.parametrize(
    ("links", "message"),
    [
        ([(0, 1, 1.0), (2, 2, 1.0)], r"links\[1\]: joins node 'cloud' to itself"),
        ([(0, 1, 1.0), (1, 0, 2.0)], r"links\[1\]: nodes 'hub' and 'edge' are linked already"),
        ([(0, 1, 0.0), (0, 1, 0.0)], r"links\[1\]: nodes 'edge' and 'hub' are linked already"),
        ([(0, 4, 1.0)], r"links\[0\]: no node has index 4; there are 4 nodes"),
        ([(0, 1, -1.0)], r"links\[0\]: the latency between 'edge' and 'hub' must be a finite number >= 0, got -1.0"),
        ([(0, 1, float("nan"))], r"links\[0\]: .* finite number >= 0, got nan"),
        ([(0, 1, float("inf"))], r"links\[0\]: .* finite number >= 0, got inf"),
        ([(0, 1, None)], r"links\[0\]: .* finite number >= 0, got None"),
    ],
)
def test_bad_links_are_refused(links, message):
    with pytest.raises(RoutingError, match=message):
        network(LINE, links)


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ([], "request type 'cars': the path is empty"),
        ([0, 7], "request type 'cars': no node has index 7"),
        ([0, 1, 0], "request type 'cars': node 'edge' is on the path twice"),
        ([0, 2], "request type 'cars': nodes 'edge' and 'cloud' follow each other on the path but no link joins them"),
        ([0, 1], r"request type 'cars': no repository of task 'detect' on the path \(edge, hub\).*are at cloud"),
    ],
)
def test_broken_paths_name_the_type_and_the_nodes(path, message):
    with pytest.raises(RoutingError, match=message):
        check_paths(line(), [path], [0], [{2}], type_ids=["cars"], task_ids=["detect"])


def test_a_repository_in_mid_path_is_enough():
    check_paths(line(), [[0, 1, 2], [2]], [0, 1], [{1}, {2}])


@pytest.mark.parametrize(
    ("ingress", "repositories", "message"),
    [
        (3, {2}, "request type 'cars': no route from node 'spare' to a repository of task 'detect' .*cloud.*add links"),
        (0, {3}, "request type 'cars': no route from node 'edge' to a repository of task 'detect'"),
        (0, set(), "request type 'cars': task 'detect' has no repository"),
        (9, {2}, "request type 'cars': no node has index 9"),
        (0, {9}, "task 'detect': its repository 9 is no node"),
    ],
)
def test_no_route_names_the_type_and_the_nodes(ingress, repositories, message):
    with pytest.raises(RoutingError, match=message):
        shortest_paths(line(), [ingress], [0], [repositories], type_ids=["cars"], task_ids=["detect"])


def test_many_repositories_are_not_all_listed():
    graph = network([f"n{v}" for v in range(40)], [])
    with pytest.raises(RoutingError, match="n10 and 29 more"):
        shortest_paths(graph, [0], [0], [set(range(1, 40))])
