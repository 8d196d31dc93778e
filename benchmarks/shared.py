"""Policies under shared capacity: what a slot costs, and the dual iteration beside the gain kernel.

Run from the repository root: `python -m benchmarks.shared`. What each part of the master is worth:
`idn-torch experiment=shared_ablation`.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from benchmarks.harness import Report
from idn_torch import generators, networks
from idn_torch.gain import gain_and_subgradient_kernel, potential_capacity_kernel
from idn_torch.infida import Infida
from idn_torch.problem import Problem
from idn_torch.shared import Incumbent, Master, Shared
from idn_torch.shared.gain import shared_gain_kernel
from idn_torch.simulation import Policy, advance, begin


def time_slots(report: Report, label: str, problem: Problem) -> None:
    """A slot of each policy, warm, and the dual iteration beside the gain kernel that reads the same tables."""
    assert problem.requests is not None
    requests = problem.requests

    def slot(policy: Policy) -> Callable[[], Any]:
        state = begin(problem, policy)
        for t in range(2):
            state = advance(problem, policy, state, requests[t % len(requests)], common_bound=False)[0]
        return lambda: advance(problem, policy, state, requests[0], common_bound=False)

    policies: dict[str, Policy] = {
        "infida": Infida(),
        "shared": Shared(),
        "shared, mixed": Shared(0.25),
        "incumbent": Incumbent(),
        "master": Master(),
    }
    report.compare(f"{label}: a slot", {name: slot(policy) for name, policy in policies.items()})
    y = Infida().init(problem).y
    warm = shared_gain_kernel(problem, requests[0], y, 5, None).state
    lam = potential_capacity_kernel(problem, requests[0])
    report.compare(
        f"{label}: duals",
        {
            "gain and subgradient": partial(gain_and_subgradient_kernel, problem, requests[0], lam, y),
            "closing alone": partial(shared_gain_kernel, problem, requests[0], y, 0, warm),
            "5 iterations and closing": partial(shared_gain_kernel, problem, requests[0], y, 5, warm),
        },
    )


def main() -> None:
    report = Report(
        "shared capacity",
        nodes=(1024, "nodes of the tree"),
        types=(20_000, "request types of the tree"),
    )
    time_slots(report, "germany50", networks.backbone())
    time_slots(report, "tree", generators.tree(nodes=report.options.nodes, request_types=report.options.types))
    report.finish()


if __name__ == "__main__":
    with torch.no_grad():
        main()
