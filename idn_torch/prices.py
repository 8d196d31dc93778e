"""Prices of requests: the dual side of the averaged gain, and what models are worth under them.

With `sav = gamma_rep - gamma`, what an option saves over a type's first repository, the gain of an allocation is the
program `G(y) = max_f sum f * sav  s.t.  sum_k f <= r,  f <= lam * y` over each type's ranks, greedy in rank order. A
price nu >= 0 on each type's requests bounds it for **all** y at once:

    G(y) <= sum_rho r * nu + <g(nu), y>,   g(nu)[v, m] = sum_rho lam * relu(sav - nu)

with equality for the price of the worst rank needed, `nu = gamma_rep - gamma_{K*}`, where g is eq. (18). The best
allocation and the best prices are the two sides of one saddle point.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from idn_torch import kernels
from idn_torch.averaged import Rows, row_capacity
from idn_torch.batching import flat_batch, flat_tables
from idn_torch.bounds import knapsack
from idn_torch.problem import Problem
from idn_torch.ranking import type_chunks

__all__ = ["Response", "price_bound", "respond"]


class Response(NamedTuple):
    """Prices that answer an allocation.

    Attributes:
        prices: nu of each row and type, `(..., S, R)`.
        slope: g(nu), mean over the rows, `(..., V, M)`; 0 at repository models.
        value: the mean gain of the allocation, `(...)` float64.
    """

    prices: Tensor
    slope: Tensor
    value: Tensor


def respond(
    problem: Problem,
    rows: Rows,
    y: Tensor,
    before: Tensor | None = None,
    step: Tensor | None = None,
    chunk_elements: int | None = None,
) -> Response:
    """Move the prices toward their best response to y: one proximal step of length `step`, exactly.

    Each price minimises `r * nu + sum_k lam_k y_k relu(sav_k - nu) + r * (nu - before)^2 / (2 * step * sav_1)`: it
    rises where cheaper options already serve more than r, and falls where they do not. The minimum is met at the first
    rank with `S_k >= r + r * (sav_k - before) / (step * sav_1)`; K* is the same rule without the second term.

    Args:
        problem: the network.
        rows: requests and their shares; `l = min(L, r)`.
        y: `(..., V, M)`.
        before: prices to start from, `(..., S, R)`; None for the best response itself.
        step: > 0, without unit, `(...)`; None likewise.
        chunk_elements: table elements worked on at a time.
    """
    nodes, models = problem.shape
    types, ranks = problem.ranked.cost.shape[-2:]
    slots = rows.share.shape[0]
    pairs = [(rows.requests, 2), (y, 2)]
    if before is not None and step is not None:
        pairs += [(before, 2), (step, 0)]
    batch, (r, y, *given) = flat_batch(problem, *pairs)
    size = batch.numel()
    y = y.flatten(-2)
    old, pace = given or (r.new_zeros(1, slots, types).expand(size, -1, -1), r.new_full((1,), torch.inf).expand(size))
    tables = flat_tables(problem, batch)
    capacity = row_capacity(problem)
    if kernels.compiled_for(r, size * slots * types * ranks):
        prices, slope, value = _compiled(problem, tables, capacity, r, rows.share, y, old, pace)
    else:
        prices, slope, value = _torch(problem, tables, capacity, r, rows.share, y, old, pace, chunk_elements)
    return Response(prices.view(*batch, slots, types), slope.view(*batch, nodes, models), value.reshape(batch))


def _compiled(
    problem: Problem,
    tables: tuple[Tensor, Tensor, Tensor],
    capacity: Tensor,
    r: Tensor,
    share: Tensor,
    y: Tensor,
    old: Tensor,
    pace: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    from idn_torch.kernels import averaged as row_kernels

    size = r.shape[0]
    prices = torch.empty(r.shape, dtype=r.dtype)
    slope = torch.zeros(y.shape, dtype=y.dtype)
    value = r.new_zeros(size, len(problem.task_ids), dtype=torch.float64)
    arrays = map(kernels.rows, (*tables, r, y, old, pace, prices, slope, value))
    owner = (*kernels.owners(problem, size)[:2], problem.type_task.numpy())
    row_kernels.respond(*owner, capacity.numpy(), share.numpy(), *arrays)
    return prices, slope, value.sum(-1)


def _torch(
    problem: Problem,
    tables: tuple[Tensor, Tensor, Tensor],
    capacity: Tensor,
    r: Tensor,
    share: Tensor,
    y: Tensor,
    old: Tensor,
    pace: Tensor,
    chunk_elements: int | None,
) -> tuple[Tensor, Tensor, Tensor]:
    size, slots, types = r.shape
    ranks = problem.ranked.cost.shape[-1]
    mask = problem.ranked.mask.reshape(-1, types, ranks)[:1]  # does not depend on costs
    prices, slope = [], torch.zeros_like(y, memory_format=torch.contiguous_format)
    value = y.new_zeros(size, dtype=torch.float64)
    for chunk in type_chunks(types, size * slots * ranks, chunk_elements):
        cost, option, first = (table[:, chunk] for table in tables)
        index = option.flatten(1).long()
        saving = cost.gather(-1, first[..., None]) - cost
        limit = capacity[index].view_as(option).masked_fill(~mask[:, chunk], 0)
        # (B, S, C, K) from here on
        saving, requests, start = saving[:, None], r[:, :, chunk, None], old[:, :, chunk, None]
        available = torch.minimum(limit[:, None], requests)
        y_at = y.gather(-1, index.expand(size, -1)).view(size, 1, *option.shape[1:])
        reached = (available * y_at).cumsum(-1)  # S_k
        length = pace[:, None, None, None] * saving[..., :1].clamp(min=0) / requests.clamp(min=1)
        moves = (length > 0) & (length < torch.inf)
        threshold = requests + (saving - start) / length.where(moves, 1.0)
        threshold = threshold.where(moves, requests)
        at = (reached < threshold).sum(-1, keepdim=True)
        at = torch.minimum(at, first[:, None, :, None])
        price = saving.expand_as(reached).gather(-1, at)
        prior = torch.where(at > 0, reached.gather(-1, (at - 1).clamp(min=0)), 0.0)
        nearer = torch.maximum(price, start + length * (prior - requests))
        price = nearer.where(moves, price).clamp_(min=0)
        prices.append(price[..., 0])
        served = torch.minimum(reached, requests).diff(dim=-1, prepend=torch.zeros_like(reached[..., :1]))
        value += ((served * saving).sum((-2, -1), dtype=torch.float64) * share).sum(-1)
        worth = (saving - price).relu_() * available * share[:, None, None].to(r.dtype)
        slope.scatter_add_(-1, index.expand(size, -1), worth.sum(1).flatten(1))
    return torch.cat(prices, -1), slope, value


def price_bound(problem: Problem, rows: Rows, prices: Tensor, slope: Tensor) -> Tensor:
    """`sum r * nu + max { <g(nu), y> : y feasible }`, `(...)` float64: no allocation's mean gain is above it."""
    per_row = (rows.requests.double() * prices).sum(-1)
    return (per_row * rows.share).sum(-1) + knapsack(problem, slope.double())
