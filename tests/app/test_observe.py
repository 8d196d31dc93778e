"""Who served, at which latency and accuracy."""

import pytest
import torch

import idn_torch as idn
from idn_torch.app.observe import TIERS, observe, weigh


def test_tiers_latency_and_accuracy_by_hand(three_nodes: idn.Problem) -> None:
    """Type a walks edge - hub - cloud, type b hub - cloud; the cloud holds the repository of `large`."""
    names = [
        [f"{three_nodes.node_ids[o // 3]}/{three_nodes.model_ids[o % 3]}" for o in row]
        for row in three_nodes.ranked.option.tolist()
    ]
    weights = weigh(three_nodes)
    assert torch.equal(weights[:4].sum(0), torch.ones_like(weights[0]))
    tier = [dict(zip(n, t, strict=True)) for n, t in zip(names, weights[:4].argmax(0).tolist(), strict=True)]
    ingress, path, cloud, repository = range(4)
    for model in ("tiny", "tiny#2", "large"):
        assert tier[0][f"edge/{model}"] == ingress
        assert tier[0][f"hub/{model}"] == path
        assert tier[1][f"hub/{model}"] == ingress
    assert tier[0]["cloud/tiny"] == tier[1]["cloud/tiny#2"] == cloud
    assert tier[0]["cloud/large"] == tier[1]["cloud/large"] == repository
    latency = dict(zip(names[0], weights[4, 0].tolist(), strict=True))
    assert latency["edge/tiny"] == 3
    assert latency["hub/large"] == 6 + 16
    assert latency["cloud/large"] == 6 + 40 + 16
    cost = weights[4] + 75 * (1 - weights[5])
    assert torch.allclose(cost[three_nodes.ranked.mask], three_nodes.ranked.cost[three_nodes.ranked.mask])


def test_sums_are_over_requests(three_nodes: idn.Problem) -> None:
    assert three_nodes.requests is not None
    r = three_nodes.requests[0]
    x = three_nodes.repository.double()
    x[0, 0] = x[1, 2] = 1  # tiny at the edge (100 a slot), large at the hub (40)
    served = idn.serve(three_nodes, r, x)
    seen = observe(weigh(three_nodes), served.served)
    assert {key: float(value) for key, value in seen.items() if key.startswith("served")} == {
        "served_ingress": 80.0,  # the rest of a, at the edge
        "served_path": 40.0,  # a comes first and fills the hub
        "served_cloud": 0.0,
        "served_repository": 7.0,  # b is left without
    }
    assert float(seen["latency"]) == pytest.approx(80 * 3 + 40 * 22 + 7 * 56)
    assert float(seen["accuracy"]) == pytest.approx(80 * 0.402 + 47 * 0.657)
    assert float(seen["latency"]) + 75 * (127 - float(seen["accuracy"])) == pytest.approx(float(served.cost))


def test_a_repository_on_the_ingress_is_a_repository() -> None:
    problem = idn.build_problem(
        sizes=[[1.0, 1.0]],
        budgets=[2.0],
        capacity=[[5, 5]],
        repository=[[0, 1]],
        model_task=[0, 0],
        paths=[[0]],
        type_task=[0],
        cost=[[[1.0, 2.0]]],
    )
    weights = weigh(problem)
    assert [TIERS[i] for i in weights.argmax(0)[0].tolist()] == ["ingress", "repository"]
    seen = observe(weights, torch.tensor([[3.0, 4.0]], dtype=torch.float64))
    assert [float(seen[f"served_{tier}"]) for tier in TIERS] == [3, 0, 0, 4]
    assert seen["latency"].isnan()
