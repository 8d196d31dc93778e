"""An internet provider's tree of five tiers, from base stations to a cloud, with detection requests at its edge."""

import itertools
import operator
from collections.abc import Sequence
from os import PathLike

import numpy as np
import torch

from idn_torch.catalog import load_catalog
from idn_torch.detection import check_gpu, check_ranges, detection_problem
from idn_torch.errors import InputError
from idn_torch.problem import Problem
from idn_torch.workload import Ranking

__all__ = ["TIERS", "isp"]

TIERS = ("base station", "central office", "metro", "region", "cloud")
"""Kinds of nodes, from the edge up; ids are such as "metro 3"."""

_MOST_NODES = 100_000  # more is a slip of the keyboard that would take all memory


def isp(
    *,
    catalog: str | PathLike[str] = "yolov4",
    fan_out: Sequence[int] = (2, 2, 3, 3),
    link_latency: Sequence[float] = (2.0, 5.0, 12.0, 40.0),
    budgets: Sequence[float] = (4_000.0, 8_000.0, 16_000.0, 32_000.0, 64_000.0),
    budget_scale: float = 1.0,
    edge_tiers: int = 2,
    tasks: int = 20,
    copies: int = 1,
    alpha: float = 75.0,
    requests_per_second: float = 10_000.0,
    slots: int = 120,
    slot_seconds: float = 60.0,
    zipf_exponent: float = 1.0,
    popularity: Ranking = "sliding",
    shift_every: int = 60,
    size_overhead: float = 800.0,
    utilisation: float = 0.5,
    edge_gpu: str = "RTX 2070",
    hub_gpu: str = "V100",
    seed: int = 0,
    dtype: torch.dtype = torch.float64,
    device: torch.device | str = "cpu",
) -> Problem:
    """Requests enter at base stations and climb until a model serves them; the cloud holds the repository models.

    All parameters are this project's own choice, not measurements of a provider.

    Args:
        fan_out: children of a node of each tier, from the cloud down, 4 numbers >= 1: by default 2 regions, 4 metros,
            12 central offices, 36 base stations.
        link_latency: round-trip ms of the links above each tier, from the base stations up, 4 numbers >= 0.
        budgets: MB at a node of each tier, from the base stations up, 5 numbers >= 0; in the cloud on top of the
            repository models.
        budget_scale: factor on them, >= 0.
        edge_tiers: lowest tiers whose nodes have `edge_gpu`, 0 to 5; the others have `hub_gpu`.
        requests_per_second: over all base stations and tasks, >= 0; each base station has between half and three
            halves of an even share, drawn with `seed`.
        catalog, tasks, copies, alpha, slots, slot_seconds, zipf_exponent, popularity, shift_every, size_overhead,
        utilisation, edge_gpu, hub_gpu, seed, dtype, device: as in `idn_torch.networks.backbone`.

    Returns:
        The problem, in ms and MB, nodes from the cloud down.

    Raises:
        InputError: an argument out of its range (it is named), or an unknown GPU.
        ScenarioError: no such catalog, or a broken one.
        ProblemError: counts too large for `dtype`.

    Example:
        >>> problem = isp(tasks=2, slots=3)
        >>> len(problem.node_ids), problem.node_ids[:2], problem.requests.shape
        (55, ('cloud 0', 'region 0'), torch.Size([3, 72]))
    """
    for what, values, count, least in (
        ("fan_out", fan_out, len(TIERS) - 1, 1),
        ("link_latency", link_latency, len(TIERS) - 1, 0),
        ("budgets", budgets, len(TIERS), 0),
    ):
        if len(values) != count or not all(least <= value < float("inf") for value in values):
            raise InputError(f"{what} is {list(values)}; give {count} numbers >= {least}, one for each tier")
    sizes = list(itertools.accumulate(fan_out, operator.mul, initial=1))  # nodes of each tier, from the cloud down
    if sum(sizes) > _MOST_NODES:
        raise InputError(f"fan_out is {list(fan_out)}, which makes {sum(sizes)} nodes; make it at most {_MOST_NODES}")
    check_ranges({}, {}, {"budget_scale": budget_scale})
    if not 0 <= edge_tiers <= len(TIERS):
        raise InputError(f"edge_tiers is {edge_tiers}; it must be from 0 to {len(TIERS)}")
    if seed < 0:
        raise InputError(f"seed is {seed}; it must be >= 0")
    family = load_catalog(catalog)
    check_gpu(family, "edge_gpu", edge_gpu)
    check_gpu(family, "hub_gpu", hub_gpu)
    tier = np.repeat(np.arange(len(TIERS))[::-1], sizes)  # of each node, 0 at the base stations
    place = np.concatenate([np.arange(size) for size in sizes])
    first = [0, *itertools.accumulate(sizes)]
    links = [
        (first[depth] + i // fan_out[depth], first[depth + 1] + i, float(link_latency[-1 - depth]))
        for depth in range(len(TIERS) - 1)
        for i in range(sizes[depth + 1])
    ]
    # A stream of its own: the requests have the first ones of this seed.
    even = np.random.default_rng([seed, 5]).uniform(0.5, 1.5, len(tier))
    return detection_problem(
        family,
        name="isp",
        node_ids=tuple(f"{TIERS[t]} {i}" for t, i in zip(tier.tolist(), place.tolist(), strict=True)),
        links=links,
        gpus=np.where(tier < edge_tiers, edge_gpu, hub_gpu).tolist(),
        budgets=budget_scale * np.asarray(budgets, dtype=np.float64)[tier],
        clouds=[0],
        shares=np.where(tier == 0, even, 0.0),
        tasks=tasks,
        copies=copies,
        alpha=alpha,
        requests_per_second=requests_per_second,
        slots=slots,
        slot_seconds=slot_seconds,
        zipf_exponent=zipf_exponent,
        popularity=popularity,
        shift_every=shift_every,
        size_overhead=size_overhead,
        utilisation=utilisation,
        seed=seed,
        dtype=dtype,
        device=device,
    )
