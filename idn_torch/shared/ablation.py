"""What each part of the master is worth: the policies, the configurations they are compared on, and the comparison."""

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import torch

from idn_torch import generators, networks
from idn_torch.baselines import Olag
from idn_torch.infida import Infida
from idn_torch.popularity import Popularity
from idn_torch.problem import Problem
from idn_torch.shared.bound import shared_upper_bound
from idn_torch.shared.hedge import Master
from idn_torch.shared.incumbent import Incumbent
from idn_torch.shared.policy import Shared
from idn_torch.simulation import Policy, run

__all__ = ["HELD_OUT", "ablated", "compare", "configuration"]

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


def compare(
    configurations: Iterable[dict[str, Any]] = HELD_OUT,
    policies: Callable[[Any], dict[str, Policy]] | None = None,
    slots: int = 60,
    seeds: int = 1,
) -> Iterator[tuple[str, dict[str, list[float]]]]:
    """Mean realised gain over the certified bound: for each configuration its label, and of each policy one a seed.

    Args:
        configurations: keyword arguments of `networks.backbone`, or of `generators.tree` with topology "tree"; with
            "discipline" for how requests contend.
        policies: from a discipline to the policies by name; `ablated` when None.
        slots: T of every run.
        seeds: of the rounding, 0..seeds-1, in one batch.
    """
    for options in configurations:
        label, problem, discipline = configuration(options, slots)
        assert problem.requests is not None
        bound = shared_upper_bound(problem, problem.requests)
        ratios = {}
        for name, policy in (ablated if policies is None else policies)(discipline).items():
            result = run(problem, policy, seed=torch.arange(seeds), common_bound=False)
            ratios[name] = (result.gain.mean(-1) / bound).tolist()
        yield label, ratios


def ablated(discipline: Any) -> dict[str, Policy]:
    """The baselines, the experts alone, the master, and the master without each of its parts or with others."""
    infida = Infida(discipline=discipline)
    master = partial(Master, discipline=discipline, others=(infida,))
    return {
        "infida": infida,
        "olag": Olag(discipline=discipline),
        "olag actual": Olag("actual", discipline),
        "popularity": Popularity(discipline),
        "shared": Shared(discipline=discipline),
        "mixed": Shared(0.25, discipline=discipline),
        "incumbent": Incumbent(discipline=discipline),
        "master": master(),
        "no search": master(moves=0),
        "no mirror": master(weights=()),
        "no infida": master(others=()),
        "with olag": master(others=(infida, Olag(discipline=discipline))),
        "1 iteration": master(shared=Shared(iterations=1)),
        "20 iterations": master(shared=Shared(iterations=20)),
        "4 moves": master(moves=4),
    }
