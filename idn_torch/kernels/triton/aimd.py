"""AIMD events of unsaturated systems: a program for each few systems, whose units stay in registers over all events."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from idn_torch.aimd.status import Status
from idn_torch.kernels.triton.nodes import divide

__all__ = ["advance"]

# Units of all systems of a program together: one warp's, which waits for no other.
_TILE = 128

_OK = tl.constexpr(int(Status.OK))
_INFEASIBLE = tl.constexpr(int(Status.INFEASIBLE))
_DECREASE_LIMIT = tl.constexpr(int(Status.DECREASE_LIMIT))
_NUMERICAL = tl.constexpr(int(Status.NUMERICAL))


def advance(
    alpha: Tensor,
    beta: Tensor,
    capacity: Tensor,
    rates: Tensor,
    state: tuple[Tensor, ...],
    sums: tuple[Tensor, ...],
    guard: float,
    max_drops: int,
    first: int,
    stop: int,
) -> None:
    """Run the events `first .. stop - 1` in place, the maths of `aimd.step.step` and `aimd.summary.add_cycle`.

    Args:
        alpha, beta: `(B, n)`; capacity: `sum u_max`, `(B,)`; rates: `(B, stop - first)`, or `(B, 1)` for all events.
        state: u, q `(B, n)`, status, time `(B,)`, contiguous.
        sums: cycles, drops `(B,)`, admitted, request-seconds, largest q, first event in the set `(B, n)`; or empty.
        guard: the decreased rates stay below this share of the arrival rate.
        max_drops: more decreases than this in one event are a status.
    """
    systems, units = alpha.shape
    width = triton.next_power_of_2(max(units, 1))
    rows = max(1, _TILE // width)
    if systems and units:
        tables = [tensor.contiguous() for tensor in (alpha, beta, capacity, rates)]
        with torch.cuda.device_of(alpha):
            _advance[(triton.cdiv(systems, rows),)](
                *tables,
                *state,
                *(sums or (alpha,) * 6),
                systems,
                units,
                rates.shape[1],
                max_drops,
                first,
                stop,
                GUARD=guard,
                SUMS=bool(sums),
                SYSTEMS=rows,
                UNITS=width,
                num_warps=min(max(rows * width // 128, 1), 16),
                enable_fp_fusion=True,  # as the numba kernel
            )


@triton.jit
def _advance(  # type: ignore[no-untyped-def]
    alpha, beta, capacity, rates, u, q, status, time,
    cycles, most_drops, admitted, seconds, largest, entered,
    systems, units, columns, max_drops, first, stop,
    GUARD: tl.constexpr, SUMS: tl.constexpr, SYSTEMS: tl.constexpr, UNITS: tl.constexpr,
):  # fmt: skip
    s = tl.program_id(0).to(tl.int64) * SYSTEMS + tl.arange(0, SYSTEMS)
    i = tl.arange(0, UNITS)
    inside = s < systems
    at = s[:, None] * units + i[None, :]
    here = inside[:, None] & (i < units)[None, :]
    rise = tl.load(alpha + at, mask=here, other=0)
    fall = tl.load(beta + at, mask=here, other=0)
    ahead = tl.load(u + at, mask=here, other=0)
    wait = tl.load(q + at, mask=here, other=0)
    most = tl.load(capacity + s, mask=inside, other=0)
    code = tl.load(status + s, mask=inside, other=-1)
    clock = tl.load(time + s, mask=inside, other=0)
    slope = tl.sum(rise, 1) * 0.5
    slope = tl.where(slope > 0, slope, 1.0)  # no units: infeasible, and nothing to divide by
    if SUMS:
        count = tl.load(cycles + s, mask=inside, other=0)
        worst = tl.load(most_drops + s, mask=inside, other=0)
        taken = tl.load(admitted + at, mask=here, other=0)
        queued = tl.load(seconds + at, mask=here, other=0)
        longest = tl.load(largest + at, mask=here, other=0)
        since = tl.load(entered + at, mask=here, other=0)

    event = first
    while event < stop:
        column = tl.where(columns > 1, event - first, 0)
        rate = tl.load(rates + s * columns + column, mask=inside, other=0)
        code = tl.where((code == _OK) & (most <= rate), _INFEASIBLE, code)
        limit = tl.where(code == _OK, rate * GUARD, float("inf"))
        a = ahead * fall
        total = tl.sum(a, 1)
        drops = tl.full([SYSTEMS], 1, tl.int64)
        over = (total > limit) & (drops < max_drops)
        busy = tl.max(over.to(tl.int32), 0)
        while busy > 0:
            a = tl.where(over[:, None], a * fall, a)
            total = tl.sum(a, 1)
            drops += over.to(tl.int64)
            over = (total > limit) & (drops < max_drops)
            busy = tl.max(over.to(tl.int32), 0)
        code = tl.where((code == _OK) & (total > limit), _DECREASE_LIMIT, code)
        period = divide(rate - total, slope)  # Eq. (17)
        runs = (period > 0) & (period < float("inf"))
        code = tl.where((code == _OK) & (runs == 0), _NUMERICAL, code)
        live = code == _OK
        period = tl.where(live, period, 0.0)
        length = period[:, None]
        a = tl.where(live[:, None], a, ahead)
        after = tl.abs(wait - length)  # Eq. (44)
        if SUMS:
            count += live.to(tl.int64)
            worst = tl.maximum(worst, tl.where(live, drops, 0))
            half = length * 0.5
            taken += (a * length + rise * length * half).to(tl.float64)
            queued += (rise * (wait * wait + after * after) * half * 0.5).to(tl.float64)
            longest = tl.maximum(longest, after)
            since = tl.where((since < 0) & live[:, None] & (wait * wait <= length * length), event, since)
        ahead = a + rise * length  # Eq. (14)
        wait = after
        clock += period.to(tl.float64)
        event += 1

    tl.store(u + at, ahead, mask=here)
    tl.store(q + at, wait, mask=here)
    tl.store(status + s, code, mask=inside)
    tl.store(time + s, clock, mask=inside)
    if SUMS:
        tl.store(cycles + s, count, mask=inside)
        tl.store(most_drops + s, worst, mask=inside)
        tl.store(admitted + at, taken, mask=here)
        tl.store(seconds + at, queued, mask=here)
        tl.store(largest + at, longest, mask=here)
        tl.store(entered + at, since, mask=here)
