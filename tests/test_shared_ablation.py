"""The comparison of policies: its configurations, and that its numbers are those of the runs."""

import torch

import idn_torch as idn
from idn_torch.shared import Shared, shared_upper_bound
from idn_torch.shared.ablation import HELD_OUT, ablated, compare, configuration
from tests.instances import close


def test_configurations_differ_and_say_so():
    labels = [configuration(options, 2)[0] for options in HELD_OUT[:3] + HELD_OUT[-2:]]
    assert len(set(labels)) == 5
    label, problem, discipline = configuration(HELD_OUT[-1], 5)
    assert label == "tree nodes=40 branching=2 depth=6 fair"
    assert discipline == "fair"
    assert problem.shape[0] == 40
    assert problem.requests.shape[0] == 5
    assert "discipline" in HELD_OUT[-1]  # left as it was


def test_policies_serve_by_the_discipline_asked_for():
    for discipline in ("fcfs", "fair"):
        policies = ablated(discipline)
        assert {policy.discipline for policy in policies.values()} == {discipline}
        assert {"infida", "olag", "olag actual", "master"} <= policies.keys()


def test_ratios_are_those_of_the_runs():
    def policies(discipline):
        return {"infida": idn.Infida(discipline=discipline), "shared": Shared(discipline=discipline)}

    options = {"topology": "tree", "nodes": 7, "branching": 2, "depth": 3, "discipline": "fair"}
    ((label, ratios),) = compare([options], policies, slots=6, seeds=2)
    assert label == "tree nodes=7 branching=2 depth=3 fair"
    _, problem, _ = configuration(options, 6)
    bound = shared_upper_bound(problem, problem.requests)
    for name, policy in policies("fair").items():
        for seed in range(2):
            gain = idn.run(problem, policy, seed=seed).gain.mean(-1)
            assert close(ratios[name][seed], gain / bound)
            assert 0 < ratios[name][seed] < 1.2
    assert torch.tensor(list(ratios.values())).shape == (2, 2)
