"""Where requests were served, and what latency and accuracy they got."""

from typing import NamedTuple

import torch
from torch import Tensor

from idn_torch.problem import Problem
from idn_torch.ranking import type_chunks

__all__ = ["TIERS", "Places", "observe", "places"]

TIERS = ("ingress", "path", "cloud", "repository")
"""Where an option lies: on the first node of the path; on a node further on; there, but on a node that also holds
repository models; or a repository model itself, wherever it is."""


class Places(NamedTuple):
    """What serving at each rank means.

    Attributes:
        tier: index into `TIERS`, `(..., R, K)` uint8.
        latency: round trip and delay, `(..., R, K)`; None for a problem with a general cost table.
        accuracy: `(..., R, K)`; None likewise.
    """

    tier: Tensor
    latency: Tensor | None
    accuracy: Tensor | None


def places(problem: Problem) -> Places:
    """Of every ranked option, its tier, latency and accuracy."""
    ranked = problem.ranked
    models = problem.shape[1]
    shape = ranked.option.shape
    components = problem.path_latency is not None and problem.delay is not None and problem.accuracy is not None
    tier = torch.empty(shape, dtype=torch.uint8, device=problem.device)
    latency, accuracy = (ranked.cost.new_empty(shape) if components else None for _ in range(2))
    holds = problem.repository.any(-1)
    for rows in type_chunks(shape[-2], problem.paths.shape[1] * shape[-1] * shape[:-2].numel()):
        option = ranked.option[..., rows, :].long()
        node, model = option // models, option % models
        position = (problem.paths[rows, None, :] == node[..., None]).to(torch.uint8).argmax(-1)
        on_the_way = torch.where(holds[node], 2, 1)
        place = torch.where(position == 0, 0, on_the_way).masked_fill_(ranked.repository[..., rows, :], 3)
        tier[..., rows, :] = place.to(torch.uint8)
        if latency is not None and accuracy is not None:
            assert problem.path_latency is not None
            assert problem.delay is not None
            assert problem.accuracy is not None
            path_latency = problem.path_latency[rows].expand(*position.shape[:-1], -1)
            latency[..., rows, :] = path_latency.gather(-1, position) + problem.delay.flatten()[option]
            accuracy[..., rows, :] = problem.accuracy[model]
    return Places(tier, latency, accuracy)


def observe(where: Places, served: Tensor) -> dict[str, Tensor]:
    """Sums over a slot's requests, `(...)` float64: how many each tier served, and all their latency and accuracy.

    Args:
        where: of the problem that was served.
        served: requests served at each rank, `(..., R, K)`.
    """
    types, ranks = served.shape[-2:]
    batch = torch.broadcast_shapes(served.shape[:-2], where.tier.shape[:-2])
    total = served.new_zeros(len(TIERS) + 2, *batch, dtype=torch.float64)
    for rows in type_chunks(types, ranks * batch.numel()):
        at, tier = served[..., rows, :], where.tier[..., rows, :]
        parts = [torch.where(tier == i, at, 0.0) for i in range(len(TIERS))]
        if where.latency is not None and where.accuracy is not None:
            parts += [at * where.latency[..., rows, :], at * where.accuracy[..., rows, :]]
        for i, part in enumerate(parts):
            total[i] += part.sum(-1).sum(-1, dtype=torch.float64)  # a type's counts add up exactly in any dtype
    if where.latency is None:
        total[len(TIERS) :] = torch.nan
    return dict(zip([*(f"served_{tier}" for tier in TIERS), "latency", "accuracy"], total, strict=True))
