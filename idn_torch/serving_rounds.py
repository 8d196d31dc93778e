"""Both serving disciplines as rounds over all types at once, in torch: any device, any batch."""

from typing import NamedTuple

import torch
from torch import Tensor

from idn_torch.problem import Problem
from idn_torch.ranking import take_options

__all__ = ["serve_in_rounds"]

# Rounds between two looks at whether anything still changes: a look makes the host wait for the device.
_ROUNDS_PER_LOOK = 4


def serve_in_rounds(
    problem: Problem, batch: torch.Size, r: Tensor, x: Tensor, discipline: str, order: Tensor, rounds: int | None
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Serve B instances.

    Args:
        batch: batch dims, B in all.
        r: `(B, R)`.
        x: `(B, V, M)`.
        discipline: "fcfs" or "fair".
        order: `(B, R)`, for fcfs.
        rounds: see `serve_kernel`.

    Returns:
        served `(B, R, K)`, load `(B, V*M)`, full flags likewise, cost and gain `(B,)` in float64.
    """
    ranked = problem.ranked
    types, ranks = ranked.cost.shape[-2:]
    size = batch.numel()
    entries = _entries(problem, batch, r, x, everything=rounds is not None)
    capacity = problem.capacity.flatten().repeat(size)
    bottomless = problem.repository.flatten().repeat(size)
    if discipline == "fcfs":
        priority = order.argsort(-1).flatten()
        amount, load, full = _first_come_first_served(entries, capacity, priority, rounds)
    else:
        amount, load, full = _fair(entries, capacity, bottomless, size * types, ranks, rounds)
    served = r.new_zeros(size * types * ranks).index_copy_(0, entries.slot, amount)
    gamma_rep = ranked.cost.gather(-1, ranked.first_repository[..., None])[..., 0]
    gamma_rep = _pick(gamma_rep, 1, batch, entries.type)
    gamma_at = _pick(ranked.cost, 2, batch, entries.slot)
    instance = entries.type // types
    cost = _sum_by_instance(gamma_at * amount, instance, size)
    gain = _sum_by_instance((gamma_rep - gamma_at) * amount, instance, size)
    return served.view(size, types, ranks), load.view(size, -1), full.view(size, -1), cost, gain


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
    in_use = (torch.arange(ranks, device=r.device) <= ranked.first_repository[..., None]).logical_and_(ranked.mask)
    deployed = take_options(x.reshape(*batch, *problem.shape) > 0.5, ranked.option).logical_and_(in_use)
    deployed.logical_and_((r > 0).view(*batch, types, 1))
    flat = deployed.flatten()
    index = torch.arange(flat.shape[0], device=r.device) if everything else flat.nonzero()[:, 0]
    kind = index // ranks
    option = kind // types * problem.sizes.numel() + _pick(ranked.option, 2, batch, index)
    repository = _pick(ranked.repository, 2, batch, index)
    return _Entries(index, kind, option, r.reshape(-1).index_select(0, kind), repository, flat.index_select(0, index))


def _pick(table: Tensor, trailing: int, batch: torch.Size, index: Tensor) -> Tensor:
    """Entries of `(..., R, K)` or `(..., R)`, given where they are in it with the batch in front of it and all flat."""
    if table.ndim == trailing:  # one table for all: it is not copied B times
        return table.flatten().index_select(0, index % table.numel())
    return table.expand(*batch, *table.shape[-trailing:]).reshape(-1).index_select(0, index)


def _first_come_first_served(
    entries: _Entries, capacity: Tensor, priority: Tensor, rounds: int | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Serial dictatorship by fixed-point rounds, in whole numbers: served at each entry, load, full flags.

    A round lets every type choose given what the types before it took in the round before. Once the first p types
    are right they stay right and make type p + 1 right, so a state that a round does not change is the answer, and
    there is no other. Chains of displaced types are short, so few rounds do.
    """
    limit = torch.where(entries.deployed, capacity.index_select(0, entries.option).long(), 0)
    requests = entries.requests.long()
    always = entries.repository & entries.deployed
    by_option = (entries.option * priority.shape[0] + priority.index_select(0, entries.type)).argsort()
    own_limit = limit.index_select(0, by_option)
    option_start = _segment_start(entries.option.index_select(0, by_option))
    type_start = _segment_start(entries.type)
    amount, before = torch.zeros_like(requests), torch.zeros_like(requests)
    for done in range(1, (priority.shape[0] + 1 if rounds is None else rounds) + 1):
        before = amount
        taken = _sum_before(amount.index_select(0, by_option), option_start)
        available = torch.empty_like(amount).index_copy_(0, by_option, (own_limit - taken).clamp_(min=0))
        available = torch.where(always, requests, torch.minimum(available, requests))
        amount = torch.minimum(available, (requests - _sum_before(available, type_start)).clamp_(min=0))
        if rounds is None and done % _ROUNDS_PER_LOOK == 0 and torch.equal(amount, before):
            break
    load = torch.zeros_like(capacity, dtype=torch.int64).index_add_(0, entries.option, amount).to(capacity.dtype)
    return amount.to(capacity.dtype), load, load >= capacity


def _sum_by_instance(values: Tensor, instance: Tensor, size: int) -> Tensor:
    if size == 1:
        return values.sum(dtype=torch.float64)[None]
    return values.new_zeros(size, dtype=torch.float64).index_add_(0, instance, values.double())


def _segment_start(key: Tensor) -> Tensor:
    """Index of the first of each run of equal keys, at every element of the run."""
    index = torch.arange(key.shape[0], device=key.device)
    first = (key != key.roll(1)) | (index == 0)
    return torch.where(first, index, 0).cummax(0).values


def _sum_before(values: Tensor, start: Tensor) -> Tensor:
    """Sum of the values before each element within its run (exact: the values are integers)."""
    before = values.cumsum(0) - values
    return before - before.index_select(0, start)


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
        alive = entries.deployed & ~full.index_select(0, entries.option)
        pick = torch.full_like(remaining, nobody, dtype=torch.int64)
        pick.scatter_reduce_(0, entries.type, torch.where(alive, position, nobody), "amin")
        offer = torch.where(pick < nobody, remaining, 0.0)
        at = option.index_select(0, pick)
        offered = torch.zeros_like(capacity).index_add_(0, at, offer)
        room = capacity - load
        over = (offered >= room) & (offered > 0) & ~bottomless
        accepted = offer * torch.where(over, room / offered, 1.0).index_select(0, at)
        served.index_add_(0, pick, accepted)
        load = torch.where(over, capacity, load + offered)
        full |= over
        remaining = (offer - accepted).clamp_(min=0)
        if rounds is None and done % _ROUNDS_PER_LOOK == 0 and not remaining.any():
            break
    return served[:-1], load, full
