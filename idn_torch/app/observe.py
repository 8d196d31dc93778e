"""Where requests were served, and what latency and accuracy they got."""

import torch
from torch import Tensor

from idn_torch.problem import Problem
from idn_torch.ranking import type_chunks

__all__ = ["OBSERVED", "TIERS", "observe", "weigh"]

TIERS = ("ingress", "path", "cloud", "repository")
"""Where an option lies: on the first node of the path; on a node further on; there, but on a node that also holds
repository models; or a repository model itself, wherever it is."""

OBSERVED = (*(f"served_{tier}" for tier in TIERS), "latency", "accuracy")
"""What `observe` sums over the requests of a slot."""


def weigh(problem: Problem) -> Tensor:
    """What a request served at each rank adds to each of `OBSERVED`, `(6, ..., R, K)`.

    For a problem with a general cost table, which has no latency and accuracy, `(4, ..., R, K)`.
    """
    ranked = problem.ranked
    models = problem.shape[1]
    shape = ranked.option.shape
    components = problem.path_latency is not None and problem.delay is not None and problem.accuracy is not None
    weights = ranked.cost.new_empty(len(OBSERVED) if components else len(TIERS), *shape)
    holds = problem.repository.any(-1)
    for rows in type_chunks(shape[-2], problem.paths.shape[1] * shape[-1] * shape[:-2].numel()):
        option = ranked.option[..., rows, :].long()
        node, model = option // models, option % models
        position = (problem.paths[rows, None, :] == node[..., None]).to(torch.uint8).argmax(-1)
        tier = torch.where(position == 0, 0, torch.where(holds[node], 2, 1))
        tier = tier.masked_fill_(ranked.repository[..., rows, :], 3)
        for i in range(len(TIERS)):
            weights[i, ..., rows, :] = (tier == i).to(weights.dtype)
        if problem.path_latency is not None and problem.delay is not None and problem.accuracy is not None:
            path_latency = problem.path_latency[rows].expand(*position.shape[:-1], -1)
            weights[len(TIERS), ..., rows, :] = path_latency.gather(-1, position) + problem.delay.flatten()[option]
            weights[len(TIERS) + 1, ..., rows, :] = problem.accuracy[model]
    return weights


def observe(weights: Tensor, served: Tensor) -> dict[str, Tensor]:
    """Sums over a slot's requests, `(...)` float64 each; NaN for what the problem does not have.

    Args:
        weights: from `weigh`, of the problem that was served.
        served: requests served at each rank, `(..., R, K)`.
    """
    each = torch.einsum("...rk,f...rk->f...r", served, weights)  # whole counts add up exactly in any dtype
    sums = dict(zip(OBSERVED, each.sum(-1, dtype=torch.float64), strict=False))
    nothing = torch.full_like(sums[OBSERVED[0]], torch.nan)
    return {key: sums.get(key, nothing) for key in OBSERVED}
