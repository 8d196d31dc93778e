"""Serving requests under contention: who gets which option, and what capacity that leaves to each type.

Source: inference delivery networks paper, Sec. III-D (eq. 7) and III-E. The two disciplines are this project's: the
paper leaves arrival order and scheduling open.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from idn_torch import kernels
from idn_torch.batching import flat_batch, flat_tables
from idn_torch.checks import check_counts, check_tensors
from idn_torch.errors import InputError
from idn_torch.kernels.memory import new_table
from idn_torch.problem import Problem
from idn_torch.ranking import take_options, type_chunks
from idn_torch.serving_rounds import serve_in_rounds

__all__ = ["DISCIPLINES", "Served", "serve", "serve_kernel"]

DISCIPLINES = ("fcfs", "fair")


class Served(NamedTuple):
    """Who was served where.

    Attributes:
        served: requests of each type served at each rank, `(..., R, K)`.
        load: requests served by each model, `(..., V, M)`.
        capacity: lambda of eq. (7) under these loads, `(..., R, K)`.
        cost: total cost of serving, `(...)`; equals eq. (12) with `capacity`.
        gain: what that saves over the repositories alone, `(...)`; equals eqs. (13) and (16) with `capacity`.
    """

    served: Tensor
    load: Tensor
    capacity: Tensor
    cost: Tensor
    gain: Tensor


@torch.no_grad()
def serve(problem: Problem, r: Tensor, x: Tensor, discipline: str = "fcfs", order: Tensor | None = None) -> Served:
    """Serve a slot's requests with the models of allocation x, each type by its cheapest unsaturated options.

    `fcfs`: types arrive one after the other, each as one block, and take what they need from their cheapest options
    with capacity left (serial dictatorship). `fair`: fluid and simultaneous; each round every type offers what it
    has left to its cheapest unsaturated option, an option offered too much rations in proportion to the offers.

    Args:
        problem: the network.
        r: requests, `(..., R)`, whole numbers >= 0.
        x: allocation of 0 and 1, `(..., V, M)`, 1 at repository models.
        discipline: "fcfs" or "fair".
        order: for fcfs, the types in order of arrival, `(..., R)`, a permutation of 0..R-1; index order when None.

    Returns:
        `Served`. Every request is served, no model but a repository beyond its capacity.

    Raises:
        InputError: naming the argument, type, node or model that is wrong.

    Source: eq. (7), eq. (12).
    """
    check_tensors(problem, r=r, x=x)
    check_counts(problem, r)
    missing = (x < problem.repository).nonzero()
    if missing.shape[0]:
        *_, v, m = missing[0].tolist()
        raise InputError(
            f"x: repository model {problem.model_ids[m]!r} on node {problem.node_ids[v]!r} is 0; repositories stay at 1"
        )
    if discipline not in DISCIPLINES:
        raise InputError(f"discipline is {discipline!r}; use one of {', '.join(DISCIPLINES)}")
    if order is not None:
        if discipline != "fcfs":
            raise InputError(f"order is only for discipline 'fcfs'; it makes no difference to {discipline!r}")
        index = torch.arange(r.shape[-1], device=r.device)
        if order.shape[-1:] != r.shape[-1:] or not (order.sort(-1).values == index).all():
            raise InputError(f"order must hold each of 0..{r.shape[-1] - 1} once along its last dim")
    return serve_kernel(problem, r, x, discipline, order)


def serve_kernel(
    problem: Problem,
    r: Tensor,
    x: Tensor,
    discipline: str = "fcfs",
    order: Tensor | None = None,
    rounds: int | None = None,
) -> Served:
    """`serve` without its checks.

    Args:
        rounds: None runs until nothing changes, looking every few rounds, on the deployed options only (which the
            host has to count). A number runs just that many rounds on the whole tables and never waits for the
            device: for a captured or pretended device, right only if so many rounds are enough.
    """
    types, ranks = problem.ranked.cost.shape[-2:]
    nodes, models = problem.shape
    order = torch.arange(types, device=r.device) if order is None else order
    batch, (r, x, order) = flat_batch(problem, (r, 1), (x, 2), (order, 1))
    compiled = rounds is None and kernels.compiled_for(r, batch.numel() * types * ranks)
    if compiled:
        served, load, full, cost, gain = _serve_compiled(problem, batch, r, x, discipline, order)
    else:
        served, load, full, cost, gain = serve_in_rounds(problem, batch, r, x, discipline, order, rounds)
    # Eq. (7). A full option leaves a type what it got there; test the flag, not L - load, which rounding may leave
    # a hair above 0.
    left = torch.where(full, 0.0, problem.capacity.flatten() - load)
    left = torch.where(problem.repository.flatten(), torch.inf, left)
    if compiled:
        lam = _potential_compiled(problem, batch, r, left, served)
    else:
        lam = _potential_in_chunks(problem, batch, r, left, served)
    return Served(
        served.view(*batch, types, ranks),
        load.view(*batch, nodes, models),
        lam.view(*batch, types, ranks),
        cost.to(r.dtype).view(batch),
        gain.to(r.dtype).view(batch),
    )


def _serve_compiled(
    problem: Problem, batch: torch.Size, r: Tensor, x: Tensor, discipline: str, order: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """`serve_in_rounds` by the compiled kernels."""
    from idn_torch.kernels import tables as table_kernels

    size = batch.numel()
    cost, option, first = flat_tables(problem, batch)
    served = new_table(r, size, *problem.ranked.cost.shape[-2:], zeros=True)
    load = r.new_zeros(size, problem.sizes.numel())
    sums = r.new_zeros(2, size, len(problem.task_ids), dtype=torch.float64)
    full = (problem.capacity.flatten() <= 0) & ~problem.repository.flatten()
    full = full.expand(size, -1).contiguous()
    common = (*map(kernels.rows, (cost, option, first, r, x.flatten(1) > 0.5)), problem.capacity.flatten().numpy())
    owner = (*kernels.owners(problem, size)[:2], problem.type_task.numpy())
    if discipline == "fcfs":
        out = map(kernels.rows, (served, load, *sums))
        table_kernels.serve_fcfs(*owner, kernels.rows(order), *common, *out)
        full |= load >= problem.capacity.flatten()
    else:
        out = map(kernels.rows, (served, load, full, torch.zeros_like(load), *sums))
        table_kernels.serve_fair(*owner, *common, *out)
    return served, load, full, sums[0].sum(-1), sums[1].sum(-1)


def _potential_in_chunks(problem: Problem, batch: torch.Size, r: Tensor, left: Tensor, served: Tensor) -> Tensor:
    """`min(left + served, r)`, 0 at padded ranks, with temporaries far smaller than a table."""
    types, ranks = served.shape[-2:]
    ranked = problem.ranked
    left, r, served = left.view(*batch, *problem.shape), r.view(*batch, types, 1), served.view(*batch, types, ranks)
    lam = torch.empty_like(served)
    for rows in type_chunks(types, batch.numel() * ranks):
        part, here = take_options(left, ranked.option[..., rows, :]), lam[..., rows, :]
        torch.minimum(part + served[..., rows, :], r[..., rows, :], out=here)
        here.masked_fill_(~ranked.mask[..., rows, :], 0)
    return lam


def _potential_compiled(problem: Problem, batch: torch.Size, r: Tensor, left: Tensor, served: Tensor) -> Tensor:
    from idn_torch.kernels import tables as table_kernels

    _, option, _ = flat_tables(problem, batch)
    count = problem.option_count()
    lam = new_table(r, *served.shape)
    table_kernels.potential_capacity(kernels.rows(option), count.numpy(), *map(kernels.rows, (r, left, served, lam)))
    return lam
