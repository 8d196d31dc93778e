"""Compiled kernels of the averaged gain, `l = min(L, r)`: one pass over the ranked tables for all rows of requests.

Batch axes, owners and workers as in `idn_torch.kernels.tables`.
"""

from typing import Any

import numpy as np
from numba import njit, prange
from numpy.typing import NDArray

__all__ = ["marginals", "respond"]

Array = NDArray[Any]

_compiled: Any = njit(parallel=True, cache=True, nogil=True)


@_compiled
def respond(
    owner: Array,
    workers: int,
    type_task: Array,
    capacity: Array,
    share: Array,
    cost: Array,
    option: Array,
    first: Array,
    r: Array,
    y: Array,
    before: Array,
    step: Array,
    prices: Array,
    slope: Array,
    value: Array,
) -> None:
    """Writes prices (B, S, R), adds to zeroed slope (B, V*M) and value (B, N), the mean gain of each task at y.

    A step (B,) of inf asks for the exact response, to which the prices before do not matter.
    """
    types = cost.shape[1]
    for work in prange(slope.shape[0] * workers):
        b, worker = work // workers, work % workers
        bc, br, by = b % cost.shape[0], b % r.shape[0], b % y.shape[0]
        bo, stride = b % before.shape[0], step[b % step.shape[0]]
        rounded = np.empty(1, y.dtype)
        for rho in range(types):
            if owner[rho] != worker:
                continue
            gamma, at, last = cost[bc, rho], option[bc, rho], first[bc, rho]
            gamma_rep = gamma[last]
            scale = max(gamma_rep - gamma[0], 0.0)
            for s in range(share.shape[0]):
                requests, old = r[br, s, rho], before[bo, s, rho]
                exact = stride == np.inf or scale <= 0.0
                pace = stride * scale / max(requests, 1.0)
                reached, saved, price = 0.0, 0.0, 0.0
                found = False
                for k in range(last + 1):
                    saving = gamma_rep - gamma[k]
                    prior = reached
                    if k == last:
                        reached += requests
                    else:
                        reached += min(capacity[at[k]], requests) * y[by, at[k]]
                    saved += (min(reached, requests) - min(prior, requests)) * saving
                    rounded[0] = reached  # as torch sums float32: in double, rounded before it is compared
                    if not found:
                        if exact:
                            if rounded[0] >= requests:
                                price, found = saving, True
                        elif rounded[0] >= requests + (saving - old) / pace:
                            price, found = max(saving, old + pace * (prior - requests)), True
                    if found and rounded[0] >= requests:
                        break
                price = max(price, 0.0)
                prices[b, s, rho] = price
                value[b, type_task[rho]] += share[s] * saved
                for k in range(last):
                    above = gamma_rep - gamma[k] - price
                    if above <= 0.0:
                        break
                    slope[b, at[k]] += share[s] * min(capacity[at[k]], requests) * above


@_compiled
def marginals(
    owner: Array,
    workers: int,
    capacity: Array,
    share: Array,
    cost: Array,
    option: Array,
    first: Array,
    r: Array,
    x: Array,
    wanted: Array,
    gains: Array,
) -> None:
    """Mean of `G(x + e) - G(x)` over the rows, added to zeroed gains (B, V*M) at the entries where wanted is True."""
    types = cost.shape[1]
    for work in prange(gains.shape[0] * workers):
        b, worker = work // workers, work % workers
        bc, br, bx, bw = b % cost.shape[0], b % r.shape[0], b % x.shape[0], b % wanted.shape[0]
        unserved = np.empty(cost.shape[2])
        suffix = np.empty(cost.shape[2])
        for rho in range(types):
            if owner[rho] != worker:
                continue
            gamma, at, last = cost[bc, rho], option[bc, rho], first[bc, rho]
            sought = False
            for k in range(last):
                sought |= wanted[bw, at[k]] and not x[bx, at[k]]
            if not sought:
                continue
            for s in range(share.shape[0]):
                requests = r[br, s, rho]
                reached = 0.0
                k_star = last  # the repository serves all that is left
                for k in range(last):
                    if x[bx, at[k]]:
                        reached += min(capacity[at[k]], requests)
                    unserved[k] = max(requests - reached, 0.0)
                    if reached >= requests:
                        k_star = k
                        break
                suffix[k_star] = 0.0
                unserved[k_star] = 0.0
                for k in range(k_star - 1, -1, -1):
                    suffix[k] = suffix[k + 1] + (gamma[k + 1] - gamma[k]) * unserved[k]
                for k in range(k_star):
                    if not wanted[bw, at[k]] or x[bx, at[k]]:
                        continue
                    available = min(capacity[at[k]], requests)
                    # First rank from k on that leaves less unserved than this model could take.
                    low, high = k, k_star
                    while low < high:
                        middle = (low + high) // 2
                        if unserved[middle] < available:
                            high = middle
                        else:
                            low = middle + 1
                    gains[b, at[k]] += share[s] * (available * (gamma[low] - gamma[k]) + suffix[low])
