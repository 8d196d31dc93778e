"""Gain and subgradient over ranked tables, eqs. (16) and (18): a program for each few types of an instance."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from idn_torch.kernels import stored_rows
from idn_torch.kernels.triton.operators import operator

__all__ = ["gain_and_subgradient"]

# Types a program and ranks a step, for one warp, which waits for no other. Ranks in steps after K* are not read.
_TYPES = 4
_RANKS = 32
_WARPS = 1


def _fake(cost, option, first, r, lam, y, need_subgradient):  # type: ignore[no-untyped-def]
    size = r.shape[0]
    return r.new_empty(size, dtype=torch.float64), y.new_empty(size, y.shape[-1])


@operator("gain_and_subgradient", _fake)
def gain_and_subgradient(
    cost: Tensor, option: Tensor, first: Tensor, r: Tensor, lam: Tensor, y: Tensor, need_subgradient: bool
) -> tuple[Tensor, Tensor]:
    """Gain `(B,)` in float64 and subgradient `(B, V*M)`, zeros where it is not needed.

    The gain is the same in every run. The subgradient's atomic sums add in any order, so its last digits are not:
    the caller takes another path where deterministic algorithms are asked for.

    Args:
        cost, option: ranked tables, `(1 or B, R, K)`; latency units, flat `v*M + m`.
        first: first repository rank, `(1 or B, R)`.
        r: requests, `(B, R)`; lam: capacity in requests, `(B, R, K)`; y: allocation, `(B, V*M)`. A batch that is
            expanded from one row stays one row in memory.
        need_subgradient: False leaves the scatter out.
    """
    size, (types, ranks) = r.shape[0], cost.shape[-2:]
    blocks = triton.cdiv(types, _TYPES)
    value = r.new_empty(size, blocks, dtype=torch.float64)
    slope = y.new_zeros(size, y.shape[-1])
    if value.numel():
        tables = [stored_rows(tensor) for tensor in (cost, option, first, r, lam, y)]
        _gain[(size * blocks,)](
            *tables,
            value,
            slope,
            *(0 if tensor.shape[0] == 1 else tensor.stride(0) for tensor in tables),
            types,
            ranks,
            y.shape[-1],
            blocks,
            SCATTER=need_subgradient,
            TYPES=_TYPES,
            RANKS=min(_RANKS, triton.next_power_of_2(ranks)),
            num_warps=_WARPS,
            enable_fp_fusion=False,
        )
    return value.sum(-1), slope


@triton.jit
def _gain(  # type: ignore[no-untyped-def]
    cost, option, repository, r, lam, y, value, slope,
    cost_step, option_step, repository_step, r_step, lam_step, y_step,
    types, ranks, entries, blocks,
    SCATTER: tl.constexpr, TYPES: tl.constexpr, RANKS: tl.constexpr,
):  # fmt: skip
    """Once through the ranks up to K* to find it, once more for what it makes the ranks before it worth."""
    program = tl.program_id(0).to(tl.int64)
    b, block = program // blocks, program % blocks
    rho = block * TYPES + tl.arange(0, TYPES)
    inside = rho < types
    lanes = tl.arange(0, RANKS)
    requests = tl.load(r + b * r_step + rho, mask=inside, other=0)
    costs = cost + b * cost_step + rho * ranks
    options = (option + b * option_step + rho * ranks)[:, None]
    capacities = (lam + b * lam_step + rho * ranks)[:, None]
    y += b * y_step
    slope += b * entries

    k_star = tl.zeros([TYPES], tl.int32)
    reached = tl.zeros([TYPES], tl.float64)
    going = inside & (requests > 0)  # without requests K* is the first rank
    start = 0
    busy = tl.max(going.to(tl.int32), 0)
    while busy > 0:
        k = start + lanes
        read = going[:, None] & (k < ranks)[None, :]
        at = tl.load(options + k[None, :], mask=read, other=0)
        z = tl.load(capacities + k[None, :], mask=read, other=0) * tl.load(y + at, mask=read, other=0)
        # As on the CPU: summed in double, rounded before it is compared.
        total = reached[:, None] + tl.cumsum(z.to(tl.float64), 1)
        short = read & (total.to(z.dtype) < requests[:, None])
        k_star += tl.sum(short.to(tl.int32), 1)
        reached = tl.max(total, 1)
        start += RANKS
        going = going & (k_star == start) & (k_star < ranks)
        busy = tl.max(going.to(tl.int32), 0)
    k_star = tl.minimum(k_star, ranks - 1)

    gamma_star = tl.load(costs + k_star, mask=inside, other=0)
    saved = tl.zeros([TYPES], tl.float64)
    start = 0
    end = tl.max(k_star, 0)
    while start < end:
        k = start + lanes
        read = k[None, :] < k_star[:, None]
        gamma = tl.load(costs[:, None] + k[None, :], mask=read, other=0)
        at = tl.load(options + k[None, :], mask=read, other=0)
        h = tl.load(capacities + k[None, :], mask=read, other=0) * (gamma_star[:, None] - gamma)  # eq. (19)
        saved += tl.sum(h.to(tl.float64) * tl.load(y + at, mask=read, other=0).to(tl.float64), 1)
        if SCATTER:
            tl.atomic_add(slope + at, h, mask=read & (h > 0), sem="relaxed")
        start += RANKS
    first = tl.load(repository + b * repository_step + rho, mask=inside, other=0)
    gamma_rep = tl.load(costs + first, mask=inside, other=0)
    saved += requests.to(tl.float64) * (gamma_rep - gamma_star).to(tl.float64)
    tl.store(value + program, tl.sum(saved, 0))
