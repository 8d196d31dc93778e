"""Exact marginal gains of adding one model to an integral allocation, all of them in one pass."""

import torch
from torch import Tensor

from idn_torch import kernels
from idn_torch.batching import flat_batch, flat_tables
from idn_torch.problem import Problem
from idn_torch.ranking import type_chunks

__all__ = ["marginal_gains"]


def marginal_gains(
    problem: Problem, r: Tensor, lam: Tensor, x: Tensor, wanted: Tensor, chunk_elements: int | None = None
) -> Tensor:
    """`G(x + e_vm) - G(x)` of eq. (16) for the wanted entries that x leaves out, under fixed lam.

    A type's term for rank k is `sum_{k'>=k} (gamma_{k'+1} - gamma_k') * min(lam_k, D_k')` with D = relu(r - S), what
    the ranks up to k' leave unserved. D never rises, so there is one rank j where it falls below lam_k: up to it the
    sum telescopes to `lam_k * (gamma_j - gamma_k)`, from it on it is a suffix sum of `(gamma_{k'+1} - gamma_k') * D`.

    Args:
        problem: the network.
        r: `(..., R)`.
        lam: `(..., R, K)`.
        x: 0 or 1, `(..., V, M)`.
        wanted: bool, `(..., V, M)`.
        chunk_elements: table elements worked on at a time.

    Returns:
        `(..., V, M)`, >= 0; 0 where x is 1 or the entry is not wanted.
    """
    nodes, models = problem.shape
    ranked = problem.ranked
    types, ranks = ranked.cost.shape[-2:]
    batch, (r, lam, x, wanted) = flat_batch(problem, (r, 1), (lam, 2), (x, 2), (wanted, 2))
    cost, option, _ = flat_tables(problem, batch)
    size = batch.numel()
    flat = x.flatten(-2)
    wanted = wanted.flatten(-2) & (flat < 0.5)
    gains = flat.new_zeros(size, nodes * models)
    if kernels.compiled_for(r, size * types * ranks):
        from idn_torch.kernels import tables as table_kernels

        owner, workers, _ = kernels.owners(problem, size)
        state = (flat > 0.5).to(torch.uint8).mul_(table_kernels.LOADED).masked_fill_(wanted, table_kernels.WANTED)
        sought = wanted.unflatten(-1, (nodes, models)).any(-1)
        arrays = map(kernels.rows, (cost, option, r, lam, state, sought, gains))
        table_kernels.marginal_gains(owner, workers, problem.paths.numpy(), *arrays)
        return gains.reshape(*batch, nodes, models)
    rank = torch.arange(ranks, device=r.device)
    for rows in type_chunks(types, size * ranks, chunk_elements):
        gamma, available = cost[:, rows].expand(size, -1, -1), lam[:, rows]
        index = option[:, rows].flatten(1).long().expand(size, -1)
        reached = (available * flat.gather(-1, index).view_as(available)).cumsum(-1)
        unserved = (r[:, rows, None] - reached).relu()  # D
        step = torch.nn.functional.pad(gamma.diff(dim=-1), (0, 1)) * unserved
        suffix = torch.nn.functional.pad(step.flip(-1).cumsum(-1).flip(-1), (0, 1))
        # First rank whose D is below lam_k, but not before k itself.
        j = torch.searchsorted(-unserved, -available.contiguous(), right=True)
        j = torch.maximum(j, rank)
        whole = available * (gamma.gather(-1, j.clamp(max=ranks - 1)) - gamma)
        gains.scatter_add_(-1, index, (whole + suffix.gather(-1, j)).flatten(1))
    return torch.where(wanted, gains, 0.0).reshape(*batch, nodes, models)
