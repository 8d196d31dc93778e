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
        rounded = np.empty(1, lam.dtype)
        z = np.empty(ranks, lam.dtype)
        for rho in range(types):
            if owner[rho] != worker:
                continue
            requests = r[br, rho]
            gamma, at, available = cost[bc, rho], option[bc, rho], lam[bl, rho]
            reached = 0.0
            k_star = ranks - 1
            for k in range(ranks):
                z[k] = available[k] * y[by, at[k]]
                reached += z[k]
                rounded[0] = reached  # as torch sums float32: in double, rounded before it is compared
                if rounded[0] >= requests:
                    k_star = k
                    break
            gamma_star = gamma[k_star]
            saved = 0.0
            for k in range(k_star):
                above = gamma_star - gamma[k]
                slope[b, at[k]] += available[k] * above  # eq. (19)
                saved += z[k] * above
            value[b, type_task[rho]] += saved + requests * (gamma[first[bc, rho]] - gamma_star)


@_compiled
def marginal_gains(
    owner: Array,
    workers: int,
    cost: Array,
    option: Array,
    r: Array,
    lam: Array,
    x: Array,
    wanted: Array,
    gains: Array,
) -> None:
    """`G(x + e) - G(x)` added to gains (B, V*M) at the entries where wanted (B, V*M) is True."""
    types, ranks = cost.shape[1:]
    for work in prange(gains.shape[0] * workers):
        b, worker = work // workers, work % workers
        bc, br, bl = b % cost.shape[0], b % r.shape[0], b % lam.shape[0]
        unserved = np.empty(ranks)
        suffix = np.empty(ranks)
        for rho in range(types):
            requests = r[br, rho]
            if owner[rho] != worker or requests <= 0:
                continue
            gamma, at = cost[bc, rho], option[bc, rho]
            reached, sought = 0.0, False
            k_star = ranks - 1
            for k in range(ranks):
                sought |= wanted[b, at[k]]
                if x[b, at[k]]:
                    reached += lam[bl, rho, k]
                unserved[k] = max(requests - reached, 0.0)
                if reached >= requests:
                    k_star = k
                    break
            if not sought:
                continue
            suffix[k_star] = 0.0
            for k in range(k_star - 1, -1, -1):
                suffix[k] = suffix[k + 1] + (gamma[k + 1] - gamma[k]) * unserved[k]
            for k in range(k_star):
                if not wanted[b, at[k]]:
                    continue
                available = lam[bl, rho, k]
                # First rank from k on that leaves less unserved than this model could take.
                low, high = k, k_star
                while low < high:
                    middle = (low + high) // 2
                    if unserved[middle] < available:
                        high = middle
                    else:
                        low = middle + 1
                gains[b, at[k]] += available * (gamma[low] - gamma[k]) + suffix[low]


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
                at = option[bc, rho, k]
                if not x[b, at]:
                    continue
                take = left if k == repository else min(left, capacity[at] - load[b, at])
                if take > 0:
                    served[b, rho, k] = take
                    load[b, at] += take
                    left -= take
                    total += take * cost[bc, rho, k]
                    saved += take * (gamma_rep - cost[bc, rho, k])
            cost_sum[b, type_task[rho]] += total
            gain_sum[b, type_task[rho]] += saved


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
            lam[b, rho, k] = min(left[b, option[bo, rho, k]] + served[b, rho, k], requests)
        for k in range(count[rho], ranks):
            lam[b, rho, k] = 0
