"""Policies under shared capacity: what a slot costs, and what each part of the master is worth.

Run from the repository root: `python -m benchmarks.shared`; with `--ablation 1` it prints the table
over held-out configurations instead (minutes).
"""

import dataclasses
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
from idn_torch.popularity import Popularity
from idn_torch.problem import Problem
from idn_torch.shared import Incumbent, Master, Shared, shared_upper_bound
from idn_torch.shared.gain import shared_gain_kernel
from idn_torch.simulation import Policy, advance, begin, run

# None of these was looked at while options were chosen (those were germany50, nobel-germany at 15,000 requests/s with
# jumping popularity, and Abilene at 5,000).
HELD_OUT: tuple[dict[str, Any], ...] = (
    {"topology": "sndlib/polska", "requests_per_second": 4_000.0},
    {"topology": "sndlib/polska", "requests_per_second": 16_000.0, "popularity": "jumping", "shift_every": 15},
    {"topology": "sndlib/norway", "requests_per_second": 10_000.0, "popularity": "fixed"},
    {"topology": "sndlib/norway", "requests_per_second": 40_000.0, "discipline": "fair"},
    {"topology": "sndlib/atlanta", "requests_per_second": 8_000.0, "alpha": 20.0},
    {"topology": "sndlib/atlanta", "requests_per_second": 8_000.0, "alpha": 300.0},
    {"topology": "sndlib/france", "requests_per_second": 12_000.0, "edge_budget": 4_000.0, "hub_budget": 16_000.0},
    {"topology": "sndlib/france", "requests_per_second": 12_000.0, "edge_budget": 16_000.0, "hub_budget": 48_000.0},
    {"topology": "sndlib/nobel-eu", "requests_per_second": 20_000.0, "zipf_exponent": 0.5},
    {"topology": "sndlib/nobel-eu", "requests_per_second": 3_000.0, "zipf_exponent": 1.5},
    {"topology": "sndlib/janos-us", "requests_per_second": 15_000.0, "popularity": "jumping", "shift_every": 20},
    {"topology": "sndlib/janos-us", "requests_per_second": 15_000.0, "discipline": "fair"},
    {"topology": "topozoo/Aarnet", "requests_per_second": 6_000.0},
    {"topology": "topozoo/Aarnet", "requests_per_second": 24_000.0, "discipline": "fair"},
    {"topology": "topozoo/Geant2012", "requests_per_second": 15_000.0, "popularity": "fixed"},
    {"topology": "topozoo/BtEurope", "requests_per_second": 10_000.0, "popularity": "jumping", "shift_every": 10},
    {"topology": "topozoo/Abilene", "requests_per_second": 1_000.0, "alpha": 150.0},
    {"topology": "topozoo/Abilene", "requests_per_second": 30_000.0, "edge_budget": 16_000.0},
    {"topology": "gabriel/25/0", "requests_per_second": 10_000.0},
    {"topology": "gabriel/25/1", "requests_per_second": 30_000.0, "discipline": "fair"},
    {"topology": "gabriel/50/0", "requests_per_second": 20_000.0, "popularity": "jumping", "shift_every": 20},
    {"topology": "gabriel/50/1", "requests_per_second": 5_000.0, "alpha": 30.0},
    {"topology": "tree", "nodes": 60, "branching": 3},
    {"topology": "tree", "nodes": 40, "branching": 2, "depth": 6, "discipline": "fair"},
)


def configuration(options: dict[str, Any], slots: int) -> tuple[str, Problem, str]:
    """Label, problem with that many slots, and discipline."""
    options = dict(options)
    discipline = options.pop("discipline", "fcfs")
    topology = options.pop("topology")
    label = " ".join([topology, *(f"{k}={v:g}" if isinstance(v, float) else f"{k}={v}" for k, v in options.items())])
    label += "" if discipline == "fcfs" else f" {discipline}"
    if topology == "tree":
        problem = generators.tree(tasks=10, models_per_task=12, dtype=torch.float64, **options)
        assert problem.requests is not None
        problem = dataclasses.replace(problem, requests=problem.requests.repeat(-(-slots // 4), 1)[:slots])
    else:
        problem = networks.backbone(topology, repositories=None, slots=slots, **options)
    return label, problem, discipline


def ablation(
    configurations: Iterable[dict[str, Any]] = HELD_OUT,
    policies: Callable[[Any], dict[str, Policy]] | None = None,
    slots: int = 60,
) -> dict[str, dict[str, float]]:
    """Mean realised gain of each policy over the certified bound, by configuration; prints the table as it goes.

    Args:
        configurations: keyword arguments of `networks.backbone`, or of `generators.tree` with topology "tree"; with
            "discipline" for how requests contend.
        policies: from a discipline to the policies by name; the master, its parts and it without each part when None.
        slots: T of every run.
    """
    policies = ablated if policies is None else policies
    table: dict[str, dict[str, float]] = {}
    for options in configurations:
        label, problem, discipline = configuration(options, slots)
        assert problem.requests is not None
        bound = shared_upper_bound(problem, problem.requests)
        row = {}
        for name, policy in policies(discipline).items():
            result = run(problem, policy, common_bound=False)
            row[name] = float(result.gain.mean(-1) / bound)
        if not table:
            print(f"{'':60s}" + "".join(f"{name:>13s}" for name in row))
        table[label] = row
        print(f"{label:60s}" + "".join(f"{value:13.4f}" for value in row.values()), flush=True)
    for name in next(iter(table.values())):
        values = torch.tensor([row[name] for row in table.values()], dtype=torch.float64)
        error = float(values.std() / math.sqrt(len(values)))
        lead = values - torch.tensor([row["infida"] for row in table.values()], dtype=torch.float64)
        print(f"  {name:13s} mean {float(values.mean()):.4f} +- {1.96 * error:.4f}, ", end="")
        print(f"over infida {float(lead.mean()):+.4f}, at least as good in {int((lead >= 0).sum())} of {len(values)}")
    return table


def ablated(discipline: Any) -> dict[str, Policy]:
    """The master, its experts alone, and the master without each of its parts."""
    infida = Infida(discipline=discipline)
    master = partial(Master, discipline=discipline, others=(infida,))
    return {
        "infida": infida,
        "popularity": Popularity(discipline),
        "shared": Shared(discipline=discipline),
        "mixed": Shared(0.25, discipline=discipline),
        "incumbent": Incumbent(discipline=discipline),
        "master": master(),
        "no search": master(moves=0),
        "no mirror": master(weights=()),
        "no infida": master(others=()),
        "1 iteration": master(shared=Shared(iterations=1)),
        "20 iterations": master(shared=Shared(iterations=20)),
        "4 moves": master(moves=4),
    }


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
    )
    if report.options.ablation:
        start = time.perf_counter()
        table = ablation(slots=report.options.slots)
        report.rows.append({"case": "ablation", "table": table})
        print(f"  {time.perf_counter() - start:.0f} s")
    else:
        time_slots(report, "germany50", networks.backbone())
        time_slots(report, "tree", generators.tree(nodes=report.options.nodes, request_types=report.options.types))
    report.finish()


if __name__ == "__main__":
    with torch.no_grad():
        main()
