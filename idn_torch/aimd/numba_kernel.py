"""The compiled kernel: all events of a block of systems while the block stays in the nearest caches.

Imported only when it is used. A block's tables are transposed, `(n, LANES)`, so that one vector instruction serves one
unit of several systems: sums over units need no reduction within a vector, and any number of units is as efficient.
Frozen lanes get beta = 1 and T = 0, which leaves their state as it is without a branch in the inner loops.
"""

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numba
import numpy as np

from idn_torch.aimd.status import Status

__all__ = ["LANES", "load_kernel"]

#: Systems a block: enough for LLVM's vector loops to pay. With 64 units in float32 the four tables take 128 KiB.
LANES = 128

# Only contraction is allowed of the fast-math flags: u_max may be inf, and sums keep their order.
_OPTIONS: dict[str, Any] = {"nogil": True, "fastmath": {"contract"}, "error_model": "numpy"}

_jit: Callable[[Any], Any] = numba.njit(**_OPTIONS)

_OK = int(Status.OK)
_INFEASIBLE = int(Status.INFEASIBLE)
_DECREASE_LIMIT = int(Status.DECREASE_LIMIT)
_NUMERICAL = int(Status.NUMERICAL)
_EMPTY = -1


@lru_cache(maxsize=1)
def load_kernel() -> Callable[..., None]:
    """`_advance`, compiled on its first call for a dtype, and cached on disk where that is possible."""
    try:
        compiled: Callable[..., None] = numba.njit(cache=True, **_OPTIONS)(_advance)
    except RuntimeError:  # numba found no directory to cache in
        compiled = numba.njit(**_OPTIONS)(_advance)
    return compiled


@_jit
def _load(table, source, base, lanes, fill):  # type: ignore[no-untyped-def]
    """Transpose the rows from `base` on into the lanes; lanes past the end get `fill`."""
    for i in range(table.shape[0]):
        for s in range(lanes):
            table[i, s] = source[base + s, i]
        for s in range(lanes, LANES):
            table[i, s] = fill


@_jit
def _store(table, target, base, lanes):  # type: ignore[no-untyped-def]
    for i in range(table.shape[0]):
        for s in range(lanes):
            target[base + s, i] = table[i, s]


@_jit
def _freeze(s, why, code, live, limit, beta):  # type: ignore[no-untyped-def]
    code[s] = why
    live[s] = live.dtype.type(0)
    limit[s] = math.inf
    for i in range(beta.shape[0]):
        beta[i, s] = beta.dtype.type(1)


@_jit
def _set_rates(rates, column, base, lanes, capacity, guard, rate, limit, code, live, beta):  # type: ignore[no-untyped-def]
    for s in range(lanes):
        rate[s] = rates[base + s, column]
        if code[s] == _OK:
            limit[s] = rate[s] * guard
            if not capacity[base + s] > rate[s]:
                _freeze(s, _INFEASIBLE, code, live, limit, beta)


@_jit
def _first_totals(u, beta, total):  # type: ignore[no-untyped-def]
    """Sums of the rates after one decrease; later ones come from `_move`."""
    for s in range(LANES):
        total[s] = total.dtype.type(0)
    for i in range(u.shape[0]):
        for s in range(LANES):
            total[s] += u[i, s] * beta[i, s]


@_jit
def _decrease_again(s, most, total, drops, code, live, limit, u, beta, spare):  # type: ignore[no-untyped-def]
    """All decreases of one lane but the last, applied to u itself; `spare` keeps what it was."""
    spare[:, s] = u[:, s]
    drops[s] = 1
    while total[s] > limit[s]:
        if drops[s] >= most:
            u[:, s] = spare[:, s]
            _freeze(s, _DECREASE_LIMIT, code, live, limit, beta)
            return
        drops[s] += 1
        x = total.dtype.type(0)
        for i in range(u.shape[0]):
            u[i, s] *= beta[i, s]
            x += u[i, s] * beta[i, s]
        total[s] = x


@_jit
def _saturate(period, rate, u, beta, alpha, u_max, a, ramp_end, a1, a2, a3):  # type: ignore[no-untyped-def]
    """Lengthen the unsaturated periods: grow the saturated set until none grows, `step.saturated_period`.

    Each round solves the cycle for the units saturated within the last period. The root rises from round to round and
    stays below the true one, so no more rounds than units are needed.
    """
    zero = a1.dtype.type(0)
    half = a1.dtype.type(0.5)
    two = a1.dtype.type(2)
    n = u.shape[0]
    for i in range(n):
        for s in range(LANES):
            a[i, s] = u[i, s] * beta[i, s]
            ramp_end[i, s] = (u_max[i, s] - a[i, s]) / alpha[i, s]  # NaN for masked units: never below T
    for _ in range(n + 2):
        for s in range(LANES):
            a1[s] = zero
            a2[s] = -rate[s]
            a3[s] = zero
        for i in range(n):
            for s in range(LANES):
                full = ramp_end[i, s] < period[s]
                a1[s] += zero if full else half * alpha[i, s]
                a2[s] += u_max[i, s] if full else a[i, s]
                a3[s] -= half * (u_max[i, s] - a[i, s]) * ramp_end[i, s] if full else zero
        grew = 0
        for s in range(LANES):
            disc = math.sqrt(max(a2[s] * a2[s] - two * two * a1[s] * a3[s], zero))
            longer = -two * a3[s] / (a2[s] + disc) if a2[s] > zero else (disc - a2[s]) / (two * a1[s])
            if longer > period[s]:
                period[s] = longer
                grew += 1
        if grew == 0:
            return


@_jit
def _move_saturated(period, a, beta, alpha, u_max, ramp_end, u, q, total):  # type: ignore[no-untyped-def]
    """`_move` with rates up to u_max, `events.next_backlog_time`."""
    for s in range(LANES):
        total[s] = total.dtype.type(0)
    for i in range(u.shape[0]):
        for s in range(LANES):
            end = ramp_end[i, s]
            t = end if end < period[s] else period[s]
            e = end if end < q[i, s] else q[i, s]
            after = math.sqrt((q[i, s] - e) * (q[i, s] + e) + (t - e) * ((period[s] - t) + (period[s] - e)))
            q[i, s] = after if period[s] > 0 else q[i, s]
            x = min(a[i, s] + alpha[i, s] * period[s], u_max[i, s])
            x = x if period[s] > 0 else u[i, s]
            u[i, s] = x
            total[s] += x * beta[i, s]


@_jit
def _move(period, beta, alpha, u, q, total):  # type: ignore[no-untyped-def]
    """Admission rates, Eq. (14), and backlogs, Eq. (44), after the cycle, and the sum of the next decreased rates."""
    for s in range(LANES):
        total[s] = total.dtype.type(0)
    for i in range(u.shape[0]):
        for s in range(LANES):
            x = u[i, s] * beta[i, s] + alpha[i, s] * period[s]
            u[i, s] = x
            q[i, s] = abs(q[i, s] - period[s])
            total[s] += x * beta[i, s]


@_jit
def _sum_before(event, period, u, beta, alpha, ramp_end, q, admitted, seconds, entered):  # type: ignore[no-untyped-def]
    """What `summary.add_cycle` takes from the start of the cycle."""
    half = period.dtype.type(0.5)  # a literal 2 would turn float32 into float64
    for i in range(q.shape[0]):
        for s in range(LANES):
            t = period[s]
            if ramp_end.shape[0] > 0:
                t = ramp_end[i, s] if ramp_end[i, s] < t else t
            square = q[i, s] * q[i, s]
            admitted[i, s] += u[i, s] * beta[i, s] * period[s] + alpha[i, s] * t * (period[s] - half * t)
            seconds[i, s] += half * half * alpha[i, s] * square * period[s]
            first = entered[i, s] < 0 and period[s] > 0 and square <= t * (period[s] + period[s] - t)
            entered[i, s] = event if first else entered[i, s]


@_jit
def _sum_after(period, alpha, q, seconds, max_time):  # type: ignore[no-untyped-def]
    """And from its end."""
    quarter = period.dtype.type(0.25)
    for i in range(q.shape[0]):
        for s in range(LANES):
            seconds[i, s] += quarter * alpha[i, s] * (q[i, s] * q[i, s]) * period[s]
            max_time[i, s] = max(max_time[i, s], q[i, s])


def _advance(  # type: ignore[no-untyped-def]
    alpha, beta, u_max, capacity, rates, u, q, status, time,
    cycles, max_drops, admitted, seconds, max_time, entered,
    guard, drop_limit, first, stop, low, high,
):  # fmt: skip
    """Run events first..stop-1 of the systems low..high-1 in place; the maths is that of `step.step`.

    Without saturation u_max is empty, without totals so are cycles to entered.
    """
    n = u.shape[1]
    saturating = u_max.shape[0] > 0
    summing = cycles.shape[0] > 0
    zero = guard * 0
    m = n if saturating else 0
    k = n if summing else 0
    U, Q = np.zeros((n, LANES), u.dtype), np.zeros((n, LANES), u.dtype)
    AL, BE = np.zeros((n, LANES), u.dtype), np.zeros((n, LANES), u.dtype)
    UM, TS, A = np.zeros((m, LANES), u.dtype), np.zeros((m, LANES), u.dtype), np.zeros((m, LANES), u.dtype)
    AD, SE = np.zeros((k, LANES), np.float64), np.zeros((k, LANES), np.float64)
    MT, EN = np.zeros((k, LANES), u.dtype), np.zeros((k, LANES), np.int64)
    a1, a2, a3 = np.zeros(LANES, u.dtype), np.zeros(LANES, u.dtype), np.zeros(LANES, u.dtype)
    rate, limit, total = np.zeros(LANES, u.dtype), np.zeros(LANES, u.dtype), np.zeros(LANES, u.dtype)
    half_sum, period, live = np.zeros(LANES, u.dtype), np.zeros(LANES, u.dtype), np.zeros(LANES, u.dtype)
    code, drops, clock = np.zeros(LANES, np.int64), np.zeros(LANES, np.int64), np.zeros(LANES, np.float64)
    spare = np.zeros((n, LANES), u.dtype)
    one = guard / guard

    for base in range(low, high, LANES):
        lanes = min(LANES, high - base)
        _load(U, u, base, lanes, zero)
        _load(Q, q, base, lanes, zero)
        _load(AL, alpha, base, lanes, zero)
        _load(BE, beta, base, lanes, zero)
        if saturating:
            _load(UM, u_max, base, lanes, zero)
        if summing:
            _load(AD, admitted, base, lanes, 0.0)
            _load(SE, seconds, base, lanes, 0.0)
            _load(MT, max_time, base, lanes, zero)
            _load(EN, entered, base, lanes, 0)
        rate[:] = zero
        for s in range(LANES):
            half_sum[s] = zero
            for i in range(n):
                half_sum[s] += AL[i, s] / 2
            if half_sum[s] == zero:
                half_sum[s] = one  # no units: frozen, and nothing to divide by
            live[s] = one
            code[s] = status[base + s] if s < lanes else _EMPTY
            clock[s] = time[base + s] if s < lanes else 0.0
            if code[s] != _OK:
                _freeze(s, code[s], code, live, limit, BE)
        _set_rates(rates, 0, base, lanes, capacity, guard, rate, limit, code, live, BE)
        _first_totals(U, BE, total)

        for event in range(first, stop):
            if rates.shape[1] > 1 and event > first:
                _set_rates(rates, event - first, base, lanes, capacity, guard, rate, limit, code, live, BE)
            drops[:] = 1
            above = 0
            for s in range(LANES):
                above += total[s] > limit[s]
            if above > 0:
                for s in range(lanes):
                    if total[s] > limit[s]:
                        _decrease_again(s, drop_limit, total, drops, code, live, limit, U, BE, spare)
            for s in range(LANES):
                period[s] = live[s] * (rate[s] - total[s]) / half_sum[s]
            if saturating:
                _saturate(period, rate, U, BE, AL, UM, A, TS, a1, a2, a3)
            bad = 0
            for s in range(LANES):
                bad += not (period[s] > zero and period[s] < math.inf)
            if bad > 0:
                for s in range(LANES):
                    if code[s] != _OK:
                        period[s] = zero
                    elif not (period[s] > zero and period[s] < math.inf):
                        period[s] = zero
                        if drops[s] > 1:
                            U[:, s] = spare[:, s]
                        _freeze(s, _NUMERICAL, code, live, limit, BE)
            for s in range(LANES):
                clock[s] += period[s]
            if summing:
                for s in range(lanes):
                    if code[s] == _OK:
                        cycles[base + s] += 1
                        max_drops[base + s] = max(max_drops[base + s], drops[s])
                _sum_before(event, period, U, BE, AL, TS, Q, AD, SE, EN)
            if saturating:
                _move_saturated(period, A, BE, AL, UM, TS, U, Q, total)
            else:
                _move(period, BE, AL, U, Q, total)
            if summing:
                _sum_after(period, AL, Q, SE, MT)

        for s in range(lanes):
            status[base + s] = code[s]
            time[base + s] = clock[s]
        _store(U, u, base, lanes)
        _store(Q, q, base, lanes)
        if summing:
            _store(AD, admitted, base, lanes)
            _store(SE, seconds, base, lanes)
            _store(MT, max_time, base, lanes)
            _store(EN, entered, base, lanes)
