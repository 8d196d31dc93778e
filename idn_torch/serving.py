"""Serving requests under contention: who gets which option, and what capacity that leaves to each type.

Source: inference delivery networks paper, Sec. III-D (eq. 7) and III-E. The two disciplines are this project's: the
paper leaves arrival order and scheduling open.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from idn_torch.checks import check_counts, check_tensors, flat_batch
from idn_torch.errors import InputError
from idn_torch.problem import Problem
from idn_torch.ranking import take_options

__all__ = ["DISCIPLINES", "Served", "serve", "serve_kernel"]

DISCIPLINES = ("fcfs", "fair")

# Rounds between two looks at whether anything still changes: a look makes the host wait for the device.
_ROUNDS_PER_LOOK = 4


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
    ranked = problem.ranked
    types, ranks = ranked.cost.shape[-2:]
    nodes, models = problem.shape
    order = torch.arange(types, device=r.device) if order is None else order
    batch, (r, x, order) = flat_batch(problem, (r, 1), (x, 2), (order, 1))
    size = batch.numel()
    entries = _entries(problem, batch, r, x, everything=rounds is not None)
    capacity = problem.capacity.flatten().repeat(size)
    if discipline == "fcfs":
        priority = order.argsort(-1).flatten()
        amount, load, full = _first_come_first_served(entries, capacity, priority, rounds)
    else:
        bottomless = problem.repository.flatten().repeat(size)
        amount, load, full = _fair(entries, capacity, bottomless, size * types, ranks, rounds)
    served = r.new_zeros(size * types * ranks).index_put_((entries.slot,), amount)
    gamma = ranked.cost.expand(*batch, types, ranks).reshape(-1, ranks)
    first = ranked.first_repository.expand(*batch, types).reshape(-1, 1)
    gamma_rep = gamma.gather(-1, first)[:, 0][entries.type]
    gamma_at = gamma.flatten()[entries.slot]
    instance = entries.type // types
    cost = _sum_by_instance(gamma_at * amount, instance, size).view(batch)
    gain = _sum_by_instance((gamma_rep - gamma_at) * amount, instance, size).view(batch)

    # Eq. (7). A full option leaves a type what it got there; test the flag, not L - load, which rounding may leave
    # a hair above 0.
    served = served.view(*batch, types, ranks)
    left = torch.where(full, 0.0, capacity - load).view(*batch, nodes, models)
    lam = torch.minimum(take_options(left, ranked.option) + served, r.view(*batch, types, 1))
    lam = torch.where(ranked.repository, r.view(*batch, types, 1), lam).masked_fill(~ranked.mask, 0)
    return Served(served, load.view(*batch, nodes, models), lam, cost, gain)


class _Entries(NamedTuple):
    """The E pairs (type, deployed option) at which requests may be served, by type, cheapest first.

    `slot` into the flat tables `(B*R*K)`, `type` into `(B*R)`, `option` into `(B*V*M)`, `requests` of the type,
    `repository` and `deployed` flags; each `(E,)`.
    """

    slot: Tensor
    type: Tensor
    option: Tensor
    requests: Tensor
    repository: Tensor
    deployed: Tensor


def _entries(problem: Problem, batch: torch.Size, r: Tensor, x: Tensor, everything: bool) -> _Entries:
    ranked = problem.ranked
    types, ranks = ranked.cost.shape[-2:]
    in_use = ranked.mask & (torch.arange(ranks, device=r.device) <= ranked.first_repository[..., None])
    deployed = take_options(x.reshape(*batch, *problem.shape) > 0.5, ranked.option) & in_use
    deployed = deployed & (r > 0).view(*batch, types, 1)
    flat = deployed.flatten()
    index = torch.arange(flat.shape[0], device=r.device) if everything else flat.nonzero()[:, 0]
    kind = index // ranks
    local = ranked.option.expand(*batch, types, ranks).reshape(-1)[index]
    option = kind // types * problem.sizes.numel() + local
    repository = ranked.repository.expand(*batch, types, ranks).reshape(-1)[index]
    return _Entries(index, kind, option, r.reshape(-1)[kind], repository, flat[index])


def _first_come_first_served(
    entries: _Entries, capacity: Tensor, priority: Tensor, rounds: int | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Serial dictatorship by fixed-point rounds, in whole numbers: served at each entry, load, full flags.

    A round lets every type choose given what the types before it took in the round before. Once the first p types
    are right they stay right and make type p + 1 right, so a state that a round does not change is the answer, and
    there is no other. Chains of displaced types are short, so few rounds do.
    """
    limit = torch.where(entries.deployed, capacity[entries.option].long(), 0)
    requests = entries.requests.long()
    always = entries.repository & entries.deployed
    by_option = (entries.option * priority.shape[0] + priority[entries.type]).argsort()
    own_limit = limit[by_option]
    option_start = _segment_start(entries.option[by_option])
    type_start = _segment_start(entries.type)
    amount, before = torch.zeros_like(requests), torch.zeros_like(requests)
    for done in range(1, (priority.shape[0] + 1 if rounds is None else rounds) + 1):
        before = amount
        taken = _sum_before(amount[by_option], option_start)
        available = torch.empty_like(amount).index_copy_(0, by_option, (own_limit - taken).clamp_(min=0))
        available = torch.where(always, requests, torch.minimum(available, requests))
        amount = torch.minimum(available, (requests - _sum_before(available, type_start)).clamp_(min=0))
        if rounds is None and done % _ROUNDS_PER_LOOK == 0 and torch.equal(amount, before):
            break
    load = torch.zeros_like(capacity, dtype=torch.int64).index_add_(0, entries.option, amount).to(capacity.dtype)
    return amount.to(capacity.dtype), load, load >= capacity


def _sum_by_instance(values: Tensor, instance: Tensor, size: int) -> Tensor:
    if size == 1:
        return values.sum(dtype=torch.float64).to(values.dtype)
    return values.new_zeros(size, dtype=torch.float64).index_add_(0, instance, values.double()).to(values.dtype)


def _segment_start(key: Tensor) -> Tensor:
    """Index of the first of each run of equal keys, at every element of the run."""
    index = torch.arange(key.shape[0], device=key.device)
    first = (key != key.roll(1)) | (index == 0)
    return torch.where(first, index, 0).cummax(0).values


def _sum_before(values: Tensor, start: Tensor) -> Tensor:
    """Sum of the values before each element within its run (exact: the values are integers)."""
    before = values.cumsum(0) - values
    return before - before[start]


def _fair(
    entries: _Entries, capacity: Tensor, bottomless: Tensor, types: int, ranks: int, rounds: int | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Immediate acceptance with proportional rationing: served at each entry, load, full flags.

    Each round fills the option of every type that is not yet done, so K rounds are always enough.
    """
    count = entries.slot.shape[0]
    position = torch.arange(count, device=capacity.device)
    nobody = count  # one entry more, picked by types that have nothing left to offer to
    option = torch.cat((entries.option, entries.option.new_zeros(1)))
    remaining = capacity.new_zeros(types).index_copy_(0, entries.type, entries.requests)
    served = capacity.new_zeros(count + 1)
    load = torch.zeros_like(capacity)
    full = (capacity <= 0) & ~bottomless
    for done in range(1, (ranks if rounds is None else rounds) + 1):
        alive = entries.deployed & ~full[entries.option]
        pick = torch.full_like(remaining, nobody, dtype=torch.int64)
        pick.scatter_reduce_(0, entries.type, torch.where(alive, position, nobody), "amin")
        offer = torch.where(pick < nobody, remaining, 0.0)
        at = option[pick]
        offered = torch.zeros_like(capacity).index_add_(0, at, offer)
        room = capacity - load
        over = (offered >= room) & (offered > 0) & ~bottomless
        accepted = offer * torch.where(over, room / offered, 1.0)[at]
        served.index_add_(0, pick, accepted)
        load = torch.where(over, capacity, load + offered)
        full |= over
        remaining = (offer - accepted).clamp_(min=0)
        if rounds is None and done % _ROUNDS_PER_LOOK == 0 and not remaining.any():
            break
    return served[:-1], load, full
