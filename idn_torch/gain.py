"""Serving cost, gain and subgradient on ranked tables.

Source: inference delivery networks paper, eqs. (9)-(13), (15), (16) and (18).
"""

import torch
from torch import Tensor

from idn_torch import kernels
from idn_torch.batching import flat_batch, flat_tables
from idn_torch.checks import check_counts, check_tensors
from idn_torch.errors import InputError
from idn_torch.problem import Problem
from idn_torch.ranking import take_options, type_chunks
from idn_torch.shapes import broadcast_shapes

__all__ = [
    "gain",
    "gain_and_subgradient",
    "gain_and_subgradient_kernel",
    "potential_capacity",
    "serving_cost",
    "subgradient",
    "subgradient_autograd",
]


@torch.no_grad()
def potential_capacity(problem: Problem, r: Tensor) -> Tensor:
    """lambda for a network where nothing is loaded: `min(L, r)`, r at repositories, 0 at padded ranks.

    Args:
        problem: the network.
        r: requests of each type, `(..., R)`, whole numbers >= 0.

    Returns:
        `(..., R, K)`, requests a slot.

    Raises:
        InputError: naming the type whose count is negative, fractional, not finite or too large for the dtype.

    Source: eq. (7), last case; eq. (10).
    """
    check_tensors(problem, r=r)
    check_counts(problem, r)
    return potential_capacity_kernel(problem, r)


def potential_capacity_kernel(problem: Problem, r: Tensor) -> Tensor:
    """`potential_capacity` without its checks."""
    ranked = problem.ranked
    types, ranks = ranked.option.shape[-2:]
    batch = broadcast_shapes(r.shape[:-1], ranked.option.shape[:-2])
    lam = r.new_empty(*batch, types, ranks)
    for rows in type_chunks(types, batch.numel() * ranks):
        limit = take_options(problem.capacity, ranked.option[..., rows, :])
        limit.masked_fill_(ranked.repository[..., rows, :], torch.inf).masked_fill_(~ranked.mask[..., rows, :], 0)
        torch.minimum(limit, r[..., rows, None], out=lam[..., rows, :])
    return lam


@torch.no_grad()
def serving_cost(problem: Problem, r: Tensor, lam: Tensor, x: Tensor) -> Tensor:
    """Total cost of serving in rank order, eq. (12).

    `sum_rho sum_k gamma_k * min(r - sum_{k'<k} z_k', z_k)+` with `z = lam * x[option]`.

    Args:
        problem: the network.
        r: requests, `(..., R)`.
        lam: potential available capacity, `(..., R, K)`: from `potential_capacity` or `serve`.
        x: allocation, `(..., V, M)`, fractional ones too; 1 at repository models.

    Returns:
        `(...)`, in requests times latency units.

    Raises:
        InputError: naming the argument and the type, node or model that holds a wrong value.
    """
    check_tensors(problem, r=r, lam=lam, y=x)
    cost = problem.ranked.cost
    served = lam * take_options(x, problem.ranked.option)
    served = torch.minimum(served.cumsum(-1), r[..., None])
    served[..., 1:] -= served[..., :-1].clone()
    return _finite((cost * served).sum((-2, -1)), "serving cost")


@torch.no_grad()
def gain(problem: Problem, r: Tensor, lam: Tensor, y: Tensor) -> Tensor:
    """What allocation y saves over the repositories alone, eq. (16).

    `G = sum_rho sum_{k<K} (gamma_{k+1} - gamma_k) * (min(r, S_k(y)) - min(r, S_k(omega)))`, S_k the cumulative sum of
    `z = lam * y[option]`. Concave in y; for a 0/1 allocation it is the realised saving, eq. (13).

    Args:
        problem: the network.
        r: requests, `(..., R)`.
        lam: potential available capacity, `(..., R, K)`; r at repository models (as `potential_capacity` and
            `serve` give it).
        y: allocation in [0, 1], `(..., V, M)`; 1 at repository models.

    Returns:
        `(...)`, in requests times latency units.

    Raises:
        InputError: naming the argument and the type, node or model that holds a wrong value.

    Example:
        >>> r = problem.requests[0]
        >>> lam = potential_capacity(problem, r)
        >>> gain(problem, r, lam, problem.repository.double())
        tensor(0., dtype=torch.float64)
    """
    check_tensors(problem, r=r, lam=lam, y=y)
    value, _ = gain_and_subgradient_kernel(problem, r, lam, y, need_subgradient=False)
    return _finite(value, "gain")


@torch.no_grad()
def subgradient(problem: Problem, r: Tensor, lam: Tensor, y: Tensor) -> Tensor:
    """A supergradient of the gain at y in closed form, eq. (18).

    `g[v, m] = sum_rho lam * relu(gamma_{K*} - gamma_kappa)` over the request types that meet m on v at rank kappa;
    K* is the first rank whose S reaches r, the last real rank where none does.

    Args, Raises: as `gain`.

    Returns:
        `(..., V, M)`, repository entries included.
    """
    return gain_and_subgradient(problem, r, lam, y)[1]


@torch.no_grad()
def gain_and_subgradient(problem: Problem, r: Tensor, lam: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """`gain` and `subgradient` in one pass over the ranked tables.

    Args, Raises: as `gain`.

    Returns:
        gain `(...)` and subgradient `(..., V, M)`.
    """
    check_tensors(problem, r=r, lam=lam, y=y)
    value, slope = gain_and_subgradient_kernel(problem, r, lam, y)
    return _finite(value, "gain"), slope


def gain_and_subgradient_kernel(
    problem: Problem,
    r: Tensor,
    lam: Tensor,
    y: Tensor,
    need_subgradient: bool = True,
    chunk_elements: int | None = None,
) -> tuple[Tensor, Tensor]:
    """`gain_and_subgradient` without its checks: no value ever reaches the host.

    With h = lam * relu(gamma_{K*} - gamma), the subgradient's own terms, the gain of a type is
    `sum_k h_k y_k + r * (gamma_rep - gamma_{K*})`: eq. (16) rewritten by the identity between eqs. (16) and (18), where
    the part beyond K* vanishes because K* is the last rank wherever S_K stays below r.

    On a GPU with Triton the subgradient's sums run in any order: its last digits vary from run to run. Under
    `torch.use_deterministic_algorithms(True)` the torch path runs instead, whose `cumsum` and `scatter_add_` then have
    deterministic implementations.

    Args:
        need_subgradient: False lets the scatter be left out and return zeros for the subgradient.
        chunk_elements: table elements worked on at a time; bounds the temporaries.
    """
    nodes, models = problem.shape
    ranked = problem.ranked
    types, ranks = ranked.cost.shape[-2:]
    batch, (r, lam, y) = flat_batch(problem, (r, 1), (lam, 2), (y, 2))
    size = batch.numel()
    y = y.flatten(-2)
    cost, option, first = flat_tables(problem, batch)
    if kernels.triton_for(r, atomic_sums=need_subgradient):
        from idn_torch.kernels.triton import gain as gpu

        value, slope = gpu.gain_and_subgradient(cost, option, first, r, lam, y, need_subgradient)
        return value.to(y.dtype).reshape(batch), slope.reshape(*batch, nodes, models)
    slope = y.new_zeros(size, nodes * models)
    if kernels.compiled_for(r, size * types * ranks):
        from idn_torch.kernels import tables as table_kernels

        total = r.new_zeros(size, len(problem.task_ids), dtype=torch.float64)
        table_kernels.gain_and_subgradient(
            *kernels.owners(problem, size)[:2],
            problem.type_task.numpy(),
            *map(kernels.rows, (cost, option, first, r, lam, y, slope, total)),
        )
        return total.sum(-1).to(y.dtype).reshape(batch), slope.reshape(*batch, nodes, models)
    total = r.new_zeros(size, dtype=torch.float64)
    for chunk in type_chunks(types, size * ranks, chunk_elements):
        gamma, requests, available = cost[:, chunk], r[:, chunk, None], lam[:, chunk]
        index = option[:, chunk].flatten(1)
        if index.shape[0] == 1:
            y_at = torch.index_select(y, -1, index[0]).view_as(available)
        else:
            y_at = y.gather(-1, index.long()).view_as(available)
        reached = (available * y_at).cumsum_(-1)  # S_k
        k_star = (reached < requests).sum(-1, keepdim=True).clamp_(max=ranks - 1)
        gamma_star = gamma.expand_as(available).gather(-1, k_star)
        h = (gamma_star - gamma).relu_().mul_(available)  # eq. (19)
        gamma_rep = gamma.gather(-1, first[:, chunk, None])
        per_type = y_at.mul_(h).sum(-1, keepdim=True) + requests * (gamma_rep - gamma_star)
        total += per_type.sum((-2, -1), dtype=torch.float64)
        if need_subgradient:
            slope.scatter_add_(-1, index.long().expand(size, -1), h.flatten(-2))
    return total.to(y.dtype).reshape(batch), slope.reshape(*batch, nodes, models)


def subgradient_autograd(problem: Problem, r: Tensor, lam: Tensor, y: Tensor) -> Tensor:
    """The subgradient by differentiating eq. (16) with autograd: the cross-check of `subgradient`.

    `min(r, S)` is written `r - relu(r - S)`, whose derivative at the kink S = r is 0, as the closed form has it.

    Args, Returns, Raises: as `subgradient`.
    """
    check_tensors(problem, r=r, lam=lam, y=y)
    ranked = problem.ranked
    batch, (requests, available, allocation) = flat_batch(problem, (r, 1), (lam, 2), (y, 2))
    with torch.enable_grad():
        variable = allocation.detach().clone().reshape(*batch, *problem.shape).requires_grad_(True)
        shape = (*batch, *ranked.cost.shape[-2:])
        r_at = requests.detach().reshape(*batch, -1, 1)
        steps = ranked.cost.diff(dim=-1)
        reached = (available.detach().reshape(shape) * take_options(variable, ranked.option)).cumsum(-1)
        value = (steps * (r_at - (r_at - reached).relu())[..., :-1]).sum()
        (slope,) = torch.autograd.grad(value, variable)
    return slope


def _finite(value: Tensor, what: str) -> Tensor:
    if not value.isfinite().all():
        raise InputError(f"the {what} overflows {value.dtype}; use float64, or costs and counts of a smaller scale")
    return value
