"""Leading batch dims flattened to one, without copying what does not vary over the batch."""

import dataclasses

import torch
from torch import Tensor

from idn_torch.problem import Problem
from idn_torch.ranking import RankedOptions
from idn_torch.shapes import broadcast_shapes

__all__ = ["flat_batch", "flat_tables", "with_row_axis"]


def flat_batch(problem: Problem, *tensors: tuple[Tensor, int]) -> tuple[torch.Size, list[Tensor]]:
    """Broadcast the leading dims of `(tensor, trailing dims)` pairs and of the ranked tables; flatten them to one.

    Returns:
        The batch shape, and the tensors as `(B, *trailing)`; expanded views where they do not vary.
    """
    batch = broadcast_shapes(*(t.shape[: t.ndim - n] for t, n in tensors), problem.ranked.cost.shape[:-2])
    return batch, [_flat(tensor, trailing, batch) for tensor, trailing in tensors]


def flat_tables(problem: Problem, batch: torch.Size) -> tuple[Tensor, Tensor, Tensor]:
    """Ranked cost and option `(1 or B, R, K)` and first repository rank `(1 or B, R)`, for a batch of instances."""
    ranked = problem.ranked
    if ranked.cost.ndim == 2:
        return ranked.cost[None], ranked.option[None], ranked.first_repository[None]
    return _flat(ranked.cost, 2, batch), _flat(ranked.option, 2, batch), _flat(ranked.first_repository, 1, batch)


def with_row_axis(problem: Problem) -> Problem:
    """The same problem, its tables with one more batch dim at the end, for the rows."""
    ranked = problem.ranked
    if ranked.cost.ndim == 2:
        return problem
    tables = {f.name: getattr(ranked, f.name) for f in dataclasses.fields(ranked)}
    tables = {name: t.unsqueeze(-2 if name == "first_repository" else -3) for name, t in tables.items()}
    return dataclasses.replace(problem, ranked=RankedOptions(**tables))


def _flat(tensor: Tensor, trailing: int, batch: torch.Size) -> Tensor:
    lead = tensor.shape[: tensor.ndim - trailing]
    tail = tensor.shape[tensor.ndim - trailing :]
    if lead.numel() == 1:
        return tensor.reshape(1, *tail).expand(batch.numel(), *tail)
    return tensor.expand(*batch, *tail).reshape(batch.numel(), *tail)
