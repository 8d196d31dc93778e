"""Where on its path each ranked option of a type lies."""

import torch
from torch import Tensor

from idn_torch.problem import Problem
from idn_torch.ranking import type_chunks

__all__ = ["hop_of_rank"]


def hop_of_rank(problem: Problem) -> Tensor:
    """Path position of the node of each ranked option, `(..., R, K)` int64; 0 at padding."""
    ranked = problem.ranked
    node = ranked.option // problem.shape[1]
    chunks = type_chunks(node.shape[-2], problem.paths.shape[1] * node[..., 0, :].numel())
    hop = [(problem.paths[rows, None] == node[..., rows, :, None]).to(torch.uint8).argmax(-1) for rows in chunks]
    return torch.cat(hop, -2).masked_fill_(~ranked.mask, 0)


def hops_to_repository(problem: Problem) -> Tensor:
    """Least number of hops from each node to a repository of some request that passes it, `(V,)` int64.

    A node that no request passes counts as far as the farthest.
    """
    paths, nodes = problem.paths, problem.shape[0]
    repository = problem.repository[:, problem.task_models.clamp(min=0)] & (problem.task_models >= 0)  # (V, N, Q)
    holds = repository.any(-1)[paths.clamp(min=0), problem.type_task[:, None]] & (paths >= 0)
    place = torch.arange(paths.shape[1], device=paths.device)
    last = torch.where(holds, place, paths.shape[1]).amin(-1, keepdim=True)  # of each type's first repository
    on_the_way = (paths >= 0) & (place <= last)
    hops = torch.where(on_the_way, last - place, paths.shape[1])
    out = torch.full((nodes,), paths.shape[1], dtype=torch.int64, device=paths.device)
    out.scatter_reduce_(0, paths.clamp(min=0).flatten(), hops.flatten(), "amin")
    passed = out < paths.shape[1]
    return torch.where(passed, out, torch.where(passed, out, 0).amax())
