"""Compiled kernels over ranked tables: gain and subgradient, marginal gains, serving.

An array with a batch axis holds one row or B; row `b % rows` belongs to instance b. Types of different tasks never meet
at an option, so workers that own different tasks share no sum: `owner` (R,) is the worker of each type, of `workers` in
all, and every option's sum runs over its types in order whatever their number.
"""

from typing import Any

import numpy as np
from numba import njit, prange
from numpy.typing import NDArray

__all__ = ["gain_and_subgradient", "marginal_gains", "potential_capacity", "serve_fair", "serve_fcfs"]

Array = NDArray[Any]

_compiled: Any = njit(parallel=True, cache=True, nogil=True)
_inlined: Any = njit(inline="always")

LOADED, WANTED = 1, 2  # states of an entry for `marginal_gains`

# Options are made unsigned: numba looks whether a signed index is negative, which counts from the end. Tables are
# indexed down to the number: all threads would count a row taken out of one in and out at one place in memory.


@_inlined
def _offered(lam: Array, bl: int, y: Array, by: int, option: Array, bc: int, rho: int, k: int) -> float:
    """z = lam * y of one option, rounded to the tables' dtype, as a double."""
    return np.float64(lam[bl, rho, k] * y[by, np.uint64(option[bc, rho, k])])


@_compiled
def gain_and_subgradient(
    owner: Array,
    workers: int,
    type_task: Array,
    cost: Array,
    option: Array,
    first: Array,
    r: Array,
    lam: Array,
    y: Array,
    slope: Array,
    value: Array,
) -> None:
    """Eqs. (16) and (18): added to zeroed slope (B, V*M) and value (B, N), the gain of each task.

    A type's ranks are read up to K* only: later ones have no part in either.
    """
    types, ranks = cost.shape[1:]
    for work in prange(slope.shape[0] * workers):
        b, worker = work // workers, work % workers
        bc, br, bl, by = b % cost.shape[0], b % r.shape[0], b % lam.shape[0], b % y.shape[0]
        total = np.zeros(value.shape[1])  # this worker's own: no two of them write to one cache line
        for rho in range(types):
            if owner[rho] != worker:
                continue
            requests = r[br, rho]
            # Sums in double, rounded to the tables' dtype before they are compared, as torch does. Four ranks at a
            # time while they do not reach r: the additions of one after the other would wait for each other.
            reached = 0.0
            k = 0
            while k + 4 <= ranks:
                z0 = _offered(lam, bl, y, by, option, bc, rho, k)
                z1 = _offered(lam, bl, y, by, option, bc, rho, k + 1)
                z2 = _offered(lam, bl, y, by, option, bc, rho, k + 2)
                z3 = _offered(lam, bl, y, by, option, bc, rho, k + 3)
                after = reached + ((z0 + z1) + (z2 + z3))
                if r.dtype.type(after) >= requests:
                    break
                reached = after
                k += 4
            k_star = ranks - 1
            while k < ranks:
                reached += _offered(lam, bl, y, by, option, bc, rho, k)
                if r.dtype.type(reached) >= requests:
                    k_star = k
                    break
                k += 1
            gamma_star = cost[bc, rho, k_star]
            saved = 0.0
            for k in range(k_star):
                at = np.uint64(option[bc, rho, k])
                h = lam[bl, rho, k] * (gamma_star - cost[bc, rho, k])  # eq. (19)
                slope[b, at] += h
                saved += h * y[by, at]
            total[type_task[rho]] += saved + requests * (cost[bc, rho, first[bc, rho]] - gamma_star)
        for task in range(total.shape[0]):
            if total[task] != 0:
                value[b, task] += total[task]


@_compiled
def marginal_gains(
    owner: Array,
    workers: int,
    paths: Array,
    cost: Array,
    option: Array,
    r: Array,
    lam: Array,
    state: Array,
    sought: Array,
    gains: Array,
) -> None:
    """`G(x + e) - G(x)` added to gains (B, V*M) at the entries where state (B, V*M) is WANTED.

    sought (B, V): nodes with such entries; the types whose paths (R, J) pass none of them are left out.

    Requests left unserved, D, only fall at the ranks loaded: few, so they are kept as steps. A model that could take
    a gains `sum (gamma_{k'+1} - gamma_k') * min(a, D_k')` over the ranks from its own on.
    """
    types, ranks = cost.shape[1:]
    for work in prange(gains.shape[0] * workers):
        b, worker = work // workers, work % workers
        bc, br, bl = b % cost.shape[0], b % r.shape[0], b % lam.shape[0]
        # Step i starts at rank start[i] and leaves unserved[i]; from it on all D together are worth suffix[i].
        start = np.empty(ranks + 2, np.int64)
        unserved = np.empty(ranks + 2)
        suffix = np.empty(ranks + 2)
        rank = np.empty(ranks, np.int64)  # the wanted ones
        step = np.empty(ranks, np.int64)  # each one's
        for rho in range(types):
            requests = r[br, rho]
            if owner[rho] != worker or requests <= 0:
                continue
            met = False
            for j in range(paths.shape[1]):
                if paths[rho, j] >= 0:
                    met |= sought[b, np.uint64(paths[rho, j])]
            if not met:
                continue
            steps, count = 0, 0
            start[0], unserved[0] = 0, requests
            reached = 0.0
            k_star = ranks - 1
            for k in range(ranks):
                here = state[b, np.uint64(option[bc, rho, k])]
                if here == WANTED:
                    rank[count], step[count] = k, steps
                    count += 1
                elif here == LOADED:
                    reached += lam[bl, rho, k]
                    steps += 1
                    start[steps], unserved[steps] = k, max(requests - reached, 0.0)
                    if reached >= requests:
                        k_star = k
                        break
            if count == 0:
                continue
            start[steps + 1], suffix[steps + 1] = k_star, 0.0
            for i in range(steps, -1, -1):
                width = cost[bc, rho, start[i + 1]] - cost[bc, rho, start[i]]
                suffix[i] = suffix[i + 1] + width * unserved[i]
            for i in range(count):
                k = rank[i]
                available = np.float64(lam[bl, rho, k])
                # First step from its own on that leaves less unserved than this model could take.
                low, high = step[i], steps + 1
                while low < high:
                    middle = (low + high) // 2
                    if unserved[middle] < available:
                        high = middle
                    else:
                        low = middle + 1
                if low == step[i]:
                    available = unserved[low]
                    low += 1
                more = available * (cost[bc, rho, start[low]] - cost[bc, rho, k]) + suffix[low]
                gains[b, np.uint64(option[bc, rho, k])] += more


@_compiled
def serve_fcfs(
    owner: Array,
    workers: int,
    type_task: Array,
    order: Array,
    cost: Array,
    option: Array,
    first: Array,
    r: Array,
    x: Array,
    capacity: Array,
    served: Array,
    load: Array,
    cost_sum: Array,
    gain_sum: Array,
) -> None:
    """Serial dictatorship in the order of arrival (B or 1, R), into zeroed served (B, R, K) and load (B, V*M)."""
    for work in prange(served.shape[0] * workers):
        b, worker = work // workers, work % workers
        bo, bc, br = b % order.shape[0], b % cost.shape[0], b % r.shape[0]
        costs, gains = np.zeros(cost_sum.shape[1]), np.zeros(cost_sum.shape[1])
        for i in range(order.shape[1]):
            rho = order[bo, i]
            if owner[rho] != worker:
                continue
            total, saved = 0.0, 0.0
            left = r[br, rho]
            repository = first[bc, rho]
            gamma_rep = cost[bc, rho, repository]
            for k in range(repository + 1):
                if left <= 0:
                    break
                at = np.uint64(option[bc, rho, k])
                if not x[b, at]:
                    continue
                take = left if k == repository else min(left, capacity[at] - load[b, at])
                if take > 0:
                    served[b, rho, k] = take
                    load[b, at] += take
                    left -= take
                    total += take * cost[bc, rho, k]
                    saved += take * (gamma_rep - cost[bc, rho, k])
            costs[type_task[rho]] += total
            gains[type_task[rho]] += saved
        for task in range(costs.shape[0]):
            if costs[task] != 0 or gains[task] != 0:
                cost_sum[b, task] += costs[task]
                gain_sum[b, task] += gains[task]


@_compiled
def serve_fair(
    owner: Array,
    workers: int,
    type_task: Array,
    cost: Array,
    option: Array,
    first: Array,
    r: Array,
    x: Array,
    capacity: Array,
    served: Array,
    load: Array,
    full: Array,
    offered: Array,
    cost_sum: Array,
    gain_sum: Array,
) -> None:
    """Immediate acceptance with rationing into zeroed served, load and offered; full is True where capacity is 0."""
    for work in prange(served.shape[0] * workers):
        b, worker = work // workers, work % workers
        bc, br = b % cost.shape[0], b % r.shape[0]
        own = np.flatnonzero(owner == worker)
        count = own.shape[0]
        left = np.empty(count, r.dtype)
        rank = np.zeros(count, np.int64)
        busy = 0
        for i in range(count):
            left[i] = r[br, own[i]]
            busy += left[i] > 0
        while busy > 0:
            for i in range(count):
                if left[i] > 0:
                    rho = own[i]
                    k = rank[i]
                    while k < first[bc, rho] and (not x[b, option[bc, rho, k]] or full[b, option[bc, rho, k]]):
                        k += 1
                    rank[i] = k
                    offered[b, option[bc, rho, k]] += left[i]
            for i in range(count):
                if left[i] > 0:
                    rho = own[i]
                    k = rank[i]
                    at = option[bc, rho, k]
                    take = left[i]
                    room = capacity[at] - load[b, at]
                    if k < first[bc, rho] and offered[b, at] >= room:
                        take = left[i] * (room / offered[b, at])
                    served[b, rho, k] += take
                    cost_sum[b, type_task[rho]] += take * cost[bc, rho, k]
                    gain_sum[b, type_task[rho]] += take * (cost[bc, rho, first[bc, rho]] - cost[bc, rho, k])
            busy = 0
            for i in range(count):
                if left[i] > 0:
                    rho = own[i]
                    k = rank[i]
                    at = option[bc, rho, k]
                    if offered[b, at] > 0:  # the first type here settles the option's round
                        if k < first[bc, rho] and offered[b, at] >= capacity[at] - load[b, at]:
                            load[b, at] = capacity[at]
                            full[b, at] = True
                        else:
                            load[b, at] += offered[b, at]
                        offered[b, at] = 0
                    left[i] = max(left[i] - served[b, rho, k], 0) if full[b, at] else 0
                    busy += left[i] > 0


@_compiled
def potential_capacity(option: Array, count: Array, r: Array, left: Array, served: Array, lam: Array) -> None:
    """Eq. (7): `min(left + served, r)` with left (B, V*M), inf at repositories; 0 from rank count[rho] on."""
    types, ranks = lam.shape[1:]
    for work in prange(lam.shape[0] * types):
        b, rho = work // types, work % types
        bo, br = b % option.shape[0], b % r.shape[0]
        requests = r[br, rho]
        for k in range(count[rho]):
            lam[b, rho, k] = min(left[b, np.uint64(option[bo, rho, k])] + served[b, rho, k], requests)
        for k in range(count[rho], ranks):
            lam[b, rho, k] = 0
