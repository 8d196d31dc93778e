"""The gain averaged over a whole sequence of requests, with `l = min(L, r)`: the static problem's objective, eq. (14).

Slots with the same requests are merged, and rows are worked on in chunks: no table ever exists for all slots at once.
"""

import dataclasses
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from idn_torch import kernels
from idn_torch.batching import flat_batch, flat_tables, with_row_axis
from idn_torch.checks import check_counts, check_tensors
from idn_torch.errors import InputError
from idn_torch.gain import gain_and_subgradient_kernel, potential_capacity_kernel
from idn_torch.infida import free_room
from idn_torch.marginal import marginal_gains
from idn_torch.problem import Problem
from idn_torch.ranking import RankedOptions
from idn_torch.shapes import broadcast_shapes

__all__ = ["Rows", "fill_rows", "mean_gain", "mean_marginals", "merge_rows", "row_capacity"]

# Elements of tables and allocations, batch included, worked on at a time: bounds the memory of a long sequence.
_CHUNK = 1 << 22


class Rows(NamedTuple):
    """The different rows of a request sequence.

    Attributes:
        requests: `(..., S, R)`, S <= T.
        share: of the slots that show each row, `(S,)` float64; sums to 1.
    """

    requests: Tensor
    share: Tensor


def merge_rows(problem: Problem, requests: Tensor | None) -> Rows:
    """Check a sequence and merge its slots; those of a batch merge where they agree in every instance.

    Args:
        problem: the network.
        requests: `(..., T, R)`; the problem's own when None.

    Raises:
        InputError: there are no requests, or one is negative, fractional or too large (the type is named).
    """
    requests = problem.requests if requests is None else requests
    if requests is None or requests.ndim < 2 or requests.shape[-2] == 0:
        raise InputError("there are no requests: give requests (..., T, R) with at least one slot")
    lead, slots = requests.shape[:-2], requests.shape[-2]
    try:
        broadcast_shapes(lead, problem.ranked.cost.shape[:-2])
    except ValueError:
        raise InputError(
            f"requests {tuple(requests.shape)} = (..., T, R): the dims before T do not broadcast with those of the "
            f"ranked tables {tuple(problem.ranked.cost.shape)} = (..., R, K)"
        ) from None
    # Only the values are checked here: the slots are no batch dim of the tables.
    check_tensors(dataclasses.replace(problem, ranked=_first_tables(problem)), r=requests)
    check_counts(problem, requests)
    distinct, count = requests.movedim(-2, 0).flatten(1).unique(dim=0, return_counts=True)
    rows = distinct.unflatten(1, (*lead, requests.shape[-1])).movedim(0, -2)
    return Rows(rows, count.double() / slots)


def mean_gain(problem: Problem, rows: Rows, y: Tensor) -> Tensor:
    """`sum_s share_s * G(r_s, min(L, r_s), y)`, `(...)` float64, for y `(..., V, M)`. Checks nothing."""
    table = with_row_axis(problem)
    batch = _batch(problem, rows, y)
    total = torch.zeros(batch, dtype=torch.float64, device=y.device)
    for chunk in _chunks(problem, rows, batch):
        r = rows.requests[..., chunk, :]
        lam = potential_capacity_kernel(table, r)
        value, _ = gain_and_subgradient_kernel(table, r, lam, y[..., None, :, :], need_subgradient=False)
        total += (value.double() * rows.share[chunk]).sum(-1)
    return total


def mean_marginals(problem: Problem, rows: Rows, x: Tensor, wanted: Tensor) -> Tensor:
    """What adding one model gains on average, exactly; as `marginal_gains`, of the averaged gain.

    Args:
        problem: the network.
        rows: of `merge_rows`.
        x: 0 or 1, `(..., V, M)`.
        wanted: entries to look at, `(..., V, M)` bool.

    Returns:
        `(..., V, M)`, 0 where x is 1 or the entry is not wanted.
    """
    batch = _batch(problem, rows, x)
    if kernels.compiled_for(x, batch.numel() * rows.requests.shape[-2] * problem.ranked.cost.shape[-2:].numel()):
        return _compiled_marginals(problem, rows, x, wanted)
    table = with_row_axis(problem)
    total = x.new_zeros(*batch, *problem.shape)
    for chunk in _chunks(problem, rows, batch):
        r = rows.requests[..., chunk, :]
        lam = potential_capacity_kernel(table, r)
        gains = marginal_gains(table, r, lam, x[..., None, :, :], wanted[..., None, :, :])
        total += (gains * rows.share[chunk, None, None].to(gains.dtype)).sum(-3)
    return total


def _compiled_marginals(problem: Problem, rows: Rows, x: Tensor, wanted: Tensor) -> Tensor:
    from idn_torch.kernels import averaged as row_kernels

    batch, (r, x, wanted) = flat_batch(problem, (rows.requests, 2), (x, 2), (wanted, 2))
    gains = r.new_zeros(batch.numel(), problem.sizes.numel())
    owner, workers, _ = kernels.owners(problem, batch.numel())
    arrays = (*flat_tables(problem, batch), r, x.flatten(1) > 0.5, wanted.flatten(1), gains)
    row_kernels.marginals(owner, workers, row_capacity(problem).numpy(), rows.share.numpy(), *map(kernels.rows, arrays))
    return gains.view(*batch, *problem.shape)


def row_capacity(problem: Problem) -> Tensor:
    """What `min(., r)` makes lam of: L, without limit at repository models, `(V*M,)`."""
    return torch.where(problem.repository, torch.inf, problem.capacity).flatten()


def fill_rows(problem: Problem, rows: Rows, x: Tensor) -> Tensor:
    """Load into every node's free budget the models of best mean marginal gain that fit, as `infida.fill_budgets`."""
    where = problem.feasible
    free = where.choices
    while True:
        fits = free & (problem.sizes <= free_room(problem, x)[..., None]) & (x < 0.5)
        if not fits.any():
            return x
        best, model = mean_marginals(problem, rows, x, fits).max(-1, keepdim=True)
        if not (best > 0).any():
            return x
        x = x.scatter(-1, model, torch.where(best > 0, 1.0, x.gather(-1, model)))


def _batch(problem: Problem, rows: Rows, y: Tensor) -> torch.Size:
    return broadcast_shapes(y.shape[:-2], rows.requests.shape[:-2], problem.ranked.cost.shape[:-2])


def _chunks(problem: Problem, rows: Rows, batch: torch.Size) -> Iterator[slice]:
    types, ranks = problem.ranked.cost.shape[-2:]
    row = max(1, batch.numel()) * max(types * ranks, problem.sizes.numel())
    step = max(1, _CHUNK // row)
    for start in range(0, rows.requests.shape[-2], step):
        yield slice(start, start + step)


def _first_tables(problem: Problem) -> RankedOptions:
    ranked = problem.ranked
    lead = (0,) * (ranked.cost.ndim - 2)
    return RankedOptions(**{f.name: getattr(ranked, f.name)[lead] for f in dataclasses.fields(ranked)})
