"""Policies under shared capacity: what a slot costs, and what each part of the master is worth.

Run from the repository root: `python -m benchmarks.shared`; with `--ablation 1` it prints the table
over held-out configurations instead (minutes).
"""

import math
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch

from benchmarks.harness import Report
from idn_torch import generators, networks
from idn_torch.gain import gain_and_subgradient_kernel, potential_capacity_kernel
from idn_torch.infida import Infida
from idn_torch.problem import Problem
from idn_torch.shared import Incumbent, Master, Shared
from idn_torch.shared.ablation import HELD_OUT, compare
from idn_torch.shared.gain import shared_gain_kernel
from idn_torch.simulation import Policy, advance, begin

# What the master must not be below.
_RIVALS = ("infida", "olag", "olag actual")


def ablation(
    configurations: Iterable[dict[str, Any]] = HELD_OUT,
    policies: Callable[[Any], dict[str, Policy]] | None = None,
    slots: int = 60,
    seeds: int = 1,
) -> dict[str, dict[str, list[float]]]:
    """`compare`, printed as it goes with the mean over the seeds; by configuration and policy, one number a seed."""
    table: dict[str, dict[str, list[float]]] = {}
    for label, row in compare(configurations, policies, slots, seeds):
        if not table:
            print(f"{'':60s}" + "".join(f"{name:>14s}" for name in row))
        table[label] = row
        print(f"{label:60s}" + "".join(f"{sum(ratios) / seeds:14.4f}" for ratios in row.values()), flush=True)
    summarise(table)
    return table


def summarise(table: dict[str, dict[str, list[float]]]) -> None:
    """Of each policy the mean, 95 % over configurations and over seeds, and how often it is below the best rival."""
    names = list(next(iter(table.values())))
    values = {name: torch.tensor([row[name] for row in table.values()], dtype=torch.float64) for name in names}
    rivals = [values[name] for name in _RIVALS if name in values]
    for name, ratios in values.items():
        line = f"  {name:13s} mean {float(ratios.mean()):.4f}"
        for what, dim in (("configurations", 1), ("seeds", 0)):
            means = ratios.mean(dim)
            if len(means) > 1:
                line += f" +- {1.96 * float(means.std()) / math.sqrt(len(means)):.4f} over {what},"
        if rivals:
            lead = ratios - torch.stack(rivals).amax(0)
            line += f" {float(lead.mean()):+.4f} over the best of {', '.join(n for n in _RIVALS if n in values)},"
            line += f" at least as good in {int((lead >= 0).sum())} of {lead.numel()} runs"
        print(line)


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
        ablation=(0, "1: the table over held-out configurations instead"),
        slots=(60, "slots of each run of that table"),
        seeds=(1, "seeds of the rounding in that table"),
    )
    if report.options.ablation:
        start = time.perf_counter()
        table = ablation(slots=report.options.slots, seeds=report.options.seeds)
        report.rows.append({"case": "ablation", "table": table})
        print(f"  {time.perf_counter() - start:.0f} s")
    else:
        time_slots(report, "germany50", networks.backbone())
        time_slots(report, "tree", generators.tree(nodes=report.options.nodes, request_types=report.options.types))
    report.finish()


if __name__ == "__main__":
    with torch.no_grad():
        main()
