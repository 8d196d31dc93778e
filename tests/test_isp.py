"""The provider's tree: its shape, what is where, and what is refused."""

import pytest
import torch

import idn_torch as idn
from idn_torch.hops import hops_to_repository
from idn_torch.isp import TIERS, isp
from idn_torch.networks import backbone
from tests.instances import random_problem


def test_five_tiers_that_grow_towards_the_cloud() -> None:
    problem = isp(tasks=2, slots=3)
    kinds = [name.rpartition(" ")[0] for name in problem.node_ids]
    assert [kinds.count(tier) for tier in TIERS] == [36, 12, 4, 2, 1]
    assert problem.paths.shape == (72, 5)
    assert (problem.paths[:, -1] == 0).all()
    for path in problem.paths.tolist():
        assert [kinds[v] for v in path] == list(TIERS)
    assert problem.path_latency is not None
    assert torch.allclose(problem.path_latency[0], torch.tensor([0.0, 2.0, 7.0, 19.0, 59.0], dtype=torch.float64))
    assert problem.budgets[[0, 1, 3, 7, 19]].tolist() == [64_000 + 2 * (487 + 800), 32_000, 16_000, 8_000, 4_000]
    # A child's parent is the node that its number divides to.
    links = {(problem.node_ids[b], problem.node_ids[a]) for a, b, _ in problem.links}
    assert ("base station 35", "central office 11") in links
    assert ("central office 11", "metro 3") in links


def test_edge_tiers_have_the_edge_gpu() -> None:
    problem = isp(tasks=1, slots=1, edge_tiers=1)
    assert problem.delay is not None
    edge, office = problem.delay[-1], problem.delay[10]
    tiny = problem.model_ids.index("detect-00/yolov4-tiny")
    assert edge[tiny] == pytest.approx(1000 / 330)
    assert office[problem.model_ids.index("detect-00/yolov4-608")] == pytest.approx(1000 / 62)


def test_same_seed_same_requests_and_the_budgets_scale() -> None:
    a, b, c = isp(slots=2), isp(slots=2, budget_scale=0.5), isp(slots=2, seed=1)
    assert a.requests is not None
    assert b.requests is not None
    assert c.requests is not None
    assert torch.equal(a.requests, b.requests)
    assert not torch.equal(a.requests, c.requests)
    assert torch.equal(a.budgets[1:], 2 * b.budgets[1:])


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"fan_out": (2, 2)}, r"fan_out is \[2, 2\]; give 4 numbers >= 1"),
        ({"fan_out": (2, 2, 0, 3)}, "fan_out is"),
        ({"fan_out": (100_000,) * 4}, r"fan_out is .*, which makes 1000010000100001\d* nodes; make it at most 100000"),
        ({"link_latency": (1.0, 2.0, 3.0, -1.0)}, "link_latency is"),
        ({"budgets": (1.0,) * 4}, "budgets is"),
        ({"budget_scale": -1.0}, "budget_scale is -1.0"),
        ({"edge_tiers": 6}, "edge_tiers is 6"),
        ({"edge_gpu": "abacus"}, "edge_gpu is 'abacus'"),
        ({"seed": -1}, "seed is -1"),
        ({"tasks": 0}, "tasks is 0"),
        ({"utilisation": 0.0}, "utilisation is 0.0"),
    ],
)
def test_wrong_arguments_are_named(options: dict[str, object], named: str) -> None:
    with pytest.raises(idn.InputError, match=named):
        isp(**options)  # type: ignore[arg-type]


def test_the_master_leads_where_everything_saturates() -> None:
    problem = isp(slots=20)
    gains = {name: float(idn.run(problem, policy).gain.mean()) for name, policy in {
        "master": idn.Master(), "infida": idn.Infida()}.items()}  # fmt: skip
    assert gains["master"] > 1.05 * gains["infida"]


@pytest.mark.parametrize("seed", range(5))
def test_hops_to_a_repository_are_those_of_the_paths(seed: int) -> None:
    problem = random_problem(seed)
    expected = [problem.paths.shape[1]] * problem.shape[0]
    for rho, path in enumerate(problem.paths.tolist()):
        models = [m for m in problem.task_models[problem.type_task[rho]].tolist() if m >= 0]
        nodes = [v for v in path if v >= 0]
        last = next(j for j, v in enumerate(nodes) if any(problem.repository[v, m] for m in models))
        for j, v in enumerate(nodes[: last + 1]):
            expected[v] = min(expected[v], last - j)
    passed = [hops for hops in expected if hops < problem.paths.shape[1]]
    expected = [hops if hops < problem.paths.shape[1] else max(passed) for hops in expected]
    assert hops_to_repository(problem).tolist() == expected


def test_hops_on_the_backbone() -> None:
    problem = backbone("sndlib/polska", repositories=["Warsaw"], tasks=2, slots=1)
    hops = dict(zip(problem.node_ids, hops_to_repository(problem).tolist(), strict=True))
    assert hops["Warsaw"] == 0
    assert min(hops[name] for name in hops if name != "Warsaw") == 1
