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
