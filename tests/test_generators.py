"""The synthetic tree keeps its contract and is a problem worth solving."""

import numpy as np
import pytest
import torch

from idn_torch import generators
from idn_torch.errors import InputError
from idn_torch.gain import potential_capacity
from idn_torch.infida import Infida
from idn_torch.serving import serve
from idn_torch.simulation import run

SMALL = {"nodes": 40, "branching": 3, "depth": 4, "tasks": 3, "models_per_task": 8}


@pytest.fixture(scope="module")
def small():
    return generators.tree(**SMALL)


def test_shapes_ids_and_dtype(small):
    assert small.sizes.shape == (40, 24)
    assert small.requests.shape == (4, 120)
    assert small.paths.shape == (120, 4)
    assert small.dtype == torch.float32
    assert small.model_task.tolist() == [0] * 8 + [1] * 8 + [2] * 8
    assert small.type_ids[:4] == ("n0:task-0", "n0:task-1", "n0:task-2", "n1:task-0")
    assert small.model_ids[8] == "task-1/m0"


def test_paths_climb_from_every_node_to_the_root(small):
    for rho in range(120):
        node, task = divmod(rho, 3)
        assert small.type_task[rho] == task
        expected = [node]
        while expected[-1] > 0:
            expected.append((expected[-1] - 1) // 3)
        assert [v for v in small.paths[rho].tolist() if v >= 0] == expected


def test_path_latencies_are_sums_of_the_links(small):
    link = {child: latency for _, child, latency in small.links}
    assert sorted((parent, child) for parent, child, _ in small.links) == sorted(
        ((v - 1) // 3, v) for v in range(1, 40)
    )
    for rho in (0, 30, 119):
        path = [v for v in small.paths[rho].tolist() if v >= 0]
        expected = np.cumsum([0.0, *(link[v] for v in path[:-1])])
        np.testing.assert_allclose(small.path_latency[rho, : len(path)].numpy(), expected, rtol=1e-6)


def test_the_root_alone_is_the_repository_of_the_most_accurate_models(small):
    best = small.accuracy.reshape(3, 8).argmax(1) + torch.arange(3) * 8
    assert small.repository.nonzero().tolist() == [[0, m] for m in best.tolist()]


def test_bigger_models_are_more_accurate_slower_and_of_less_capacity(small):
    for task in range(3):
        of_task = slice(8 * task, 8 * task + 8)
        size, accuracy, delay, capacity = (
            values[of_task] for values in (small.sizes[5], small.accuracy, small.delay[5], small.capacity[5])
        )
        for values, sign in ((accuracy, 1), (delay, 1), (capacity, -1)):
            assert sign * np.corrcoef(size.log(), values.log())[0, 1] > 0.8


def test_towards_the_root_budgets_grow_and_links_get_slower(small):
    level = [0] + [1] * 3 + [2] * 9 + [3] * 27
    free = small.feasible.budgets
    for v in range(1, 40):
        parent = (v - 1) // 3
        assert free[parent] == pytest.approx(2 * float(free[v]), rel=1e-5)
    means = [np.mean([w for _, v, w in small.links if level[v] == deep]) for deep in (1, 2, 3)]
    assert means[0] > means[1] > means[2]


def test_fewer_request_types_are_the_first_of_all(small):
    cut = generators.tree(**SMALL, request_types=50)
    assert cut.type_ids == small.type_ids[:50]
    assert torch.equal(cut.requests, small.requests[:, :50])
    assert torch.equal(cut.ranked.cost, small.ranked.cost[:50])
    assert torch.equal(cut.sizes, small.sizes)


def test_the_seed_decides(small):
    again, other = generators.tree(**SMALL), generators.tree(**SMALL, seed=1)
    for name in ("sizes", "budgets", "capacity", "requests", "accuracy"):
        assert torch.equal(getattr(small, name), getattr(again, name)), name
        assert not torch.equal(getattr(small, name), getattr(other, name)), name


def test_double_precision_is_the_same_problem(small):
    double = generators.tree(**SMALL, dtype=torch.float64)
    assert double.dtype == torch.float64
    assert torch.equal(double.requests.float(), small.requests)
    torch.testing.assert_close(double.ranked.cost.float(), small.ranked.cost)


@pytest.mark.parametrize(
    ("nodes", "branching", "depth", "longest"),
    [(1, 8, 1, 1), (9, 8, 2, 2), (9, 8, 5, 2), (10, 8, 5, 3), (5, 1, 5, 5), (13, 3, 3, 3)],
)
def test_a_tree_is_only_as_deep_as_its_nodes_need(nodes, branching, depth, longest):
    problem = generators.tree(nodes, branching, depth, tasks=2, models_per_task=2)
    assert problem.paths.shape == (2 * nodes, longest)


def test_one_model_a_task_is_a_problem_too():
    problem = generators.tree(nodes=3, branching=2, depth=2, tasks=1, models_per_task=1)
    assert problem.repository.tolist() == [[True], [False], [False]]


def test_some_models_saturate():
    problem = generators.tree(nodes=73, depth=3, models_per_task=10)
    x = run(problem, Infida(), problem.requests.repeat(3, 1)).state.policy.x
    served = serve(problem, problem.requests[0], x)
    deployed = (x > 0) & ~problem.repository
    full = deployed & (served.load == problem.capacity)
    assert 0.05 < full.sum() / deployed.sum() < 0.5


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"nodes": 0}, "nodes is 0"),
        ({"branching": 0}, "branching is 0"),
        ({"depth": 0}, "depth is 0"),
        ({"tasks": -1}, "tasks is -1"),
        ({"models_per_task": 0}, "models_per_task is 0"),
        ({"seed": -1}, "seed is -1"),
        ({"request_types": 0}, "request_types is 0; 40 nodes and 3 tasks make 1 to 120"),
        ({"request_types": 121}, "request_types is 121"),
        ({"nodes": 41}, "41 nodes do not fit: depth 4 and branching 3 hold 40"),
        ({"branching": 1}, "depth 4 and branching 1 hold 4"),
    ],
)
def test_errors_name_the_argument(change, message):
    with pytest.raises(InputError, match=message):
        generators.tree(**{**SMALL, **change})


@pytest.mark.slow
def test_the_size_of_the_benchmarks():
    problem = generators.tree(request_types=80_000)
    assert problem.shape == (4096, 600)
    assert problem.ranked.cost.shape == (80_000, 150)
    assert problem.paths.shape == (80_000, 5)
    lam = potential_capacity(problem, problem.requests[0])
    assert lam.shape == (80_000, 150)
