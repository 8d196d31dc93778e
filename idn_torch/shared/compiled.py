"""Compiled CPU kernels of the shared-capacity gain, in the manner of `idn_torch.kernels`: threads own whole tasks.

An array with a batch axis holds one row or B; row `b % rows` belongs to instance b. `owner` (R,) is the worker of each
type, of `workers` in all, `model_owner` (M,) that of each model.
"""

from typing import Any

import numpy as np
from numba import njit, prange
from numpy.typing import NDArray

__all__ = ["SCRATCH", "marginals", "primal_dual"]

Array = NDArray[Any]

# What an option's row of the scratch array holds: together, so that an entry costs one cache line.
_PRICE, _MASS, _SURPLUS, _REACH, _LOAD, _LOW, _LOW_AT, _LOW_BEND, _HIGH, _HIGH_AT, _HIGH_BEND = range(11)
SCRATCH = 11

_compiled: Any = njit(parallel=True, cache=True, nogil=True)


@_compiled
def primal_dual(
    owner: Array,
    workers: int,
    model_owner: Array,
    cost: Array,
    option: Array,
    first: Array,
    r: Array,
    y: Array,
    capacity: Array,
    scale: Array,
    iterations: int,
    passes: int,
    flow: Array,
    nu: Array,
    mu: Array,
    closed: Array,
    scratch: Array,
    slope: Array,
) -> None:
    """`gain._primal_dual` on flow (B, R, K), nu (B, R), mu (B, V*M) in place; `gain._close` into closed (B, R), slope.

    y and capacity (V*M,) are 0 on repository entries. scratch (B, V*M, SCRATCH) is zero; no two workers
    meet in it.
    """
    types, ranks = cost.shape[1:]
    models = model_owner.shape[0]
    nodes = capacity.shape[0] // models
    for work in prange(slope.shape[0] * workers):
        b, worker = work // workers, work % workers
        bc, br, by = b % cost.shape[0], b % r.shape[0], b % y.shape[0]
        w = scale[b]
        at = scratch[b]
        for rho in range(types):
            if owner[rho] == worker:
                for k in range(first[bc, rho]):
                    at[option[bc, rho, k], _REACH] += r[br, rho]

        for _ in range(iterations):
            for rho in range(types):
                if owner[rho] != worker:
                    continue
                last = first[bc, rho]
                gamma_rep = cost[bc, rho, last]
                total = 0.0
                for k in range(last):
                    o = option[bc, rho, k]
                    before = flow[b, rho, k]
                    reduced = gamma_rep - cost[bc, rho, k] - nu[b, rho] - mu[b, o]
                    after = min(max(before + 0.5 * w * reduced, 0.0), y[by, o])
                    flow[b, rho, k] = after
                    ahead = 2 * after - before
                    total += ahead
                    at[o, _LOAD] += r[br, rho] * ahead
                nu[b, rho] = max(nu[b, rho] + (total - 1) / (max(last, 1) * w), 0.0)
            for v in range(nodes):
                for m in range(models):
                    o = v * models + m
                    if model_owner[m] == worker and at[o, _REACH] > 0:
                        over = at[o, _LOAD] - capacity[o] * y[by, o]
                        mu[b, o] = max(mu[b, o] + over / (at[o, _REACH] * w), 0.0)
                        at[o, _LOAD] = 0

        # The best nu of each type for these mu.
        value, share = np.empty(ranks), np.empty(ranks)
        for rho in range(types):
            if owner[rho] != worker:
                continue
            last = first[bc, rho]
            gamma_rep = cost[bc, rho, last]
            low = high = mass = surplus = 0.0
            count = 0
            for k in range(last):
                o = option[bc, rho, k]
                worth = gamma_rep - cost[bc, rho, k] - mu[b, o]
                if y[by, o] > 0 and worth > 0:
                    value[count], share[count] = worth, y[by, o]
                    count += 1
                    high = max(high, worth)
                    mass += y[by, o]
                    surplus += y[by, o] * worth
            if mass <= 1:
                continue
            low_height, low_slope, high_height, high_slope = surplus, 1 - mass, high, 1.0
            price = min(nu[b, rho], high)
            for _ in range(passes):
                mass = surplus = 0.0
                for i in range(count):
                    if value[i] > price:
                        mass += share[i]
                        surplus += share[i] * (value[i] - price)
                if mass > 1:
                    low, low_height, low_slope = price, price + surplus, 1 - mass
                else:
                    high, high_height, high_slope = price, price + surplus, 1 - mass
                cross = high_height - low_height + low_slope * low - high_slope * high
                price = min(max(cross / (low_slope - high_slope), low), high)
            closed[b, rho] = low if low_height < high_height else high

        # The best mu of each option for these nu.
        scarce = np.empty(nodes * models, np.int64)
        count = 0
        for turn in range(passes + 1):
            for rho in range(types):
                if owner[rho] != worker or r[br, rho] <= 0:
                    continue
                requests = r[br, rho]
                best = cost[bc, rho, first[bc, rho]] - closed[b, rho]
                for k in range(first[bc, rho]):
                    if cost[bc, rho, k] >= best:
                        break  # costs rise: no later rank is worth its price either
                    o = option[bc, rho, k]
                    above = best - cost[bc, rho, k] - at[o, _PRICE]
                    if above > 0:
                        at[o, _MASS] += requests
                        at[o, _SURPLUS] += requests * above
                        if turn == 0:
                            at[o, _HIGH] = max(at[o, _HIGH], above)
            if turn == 0:
                for v in range(nodes):
                    for m in range(models):
                        o = v * models + m
                        if model_owner[m] != worker or at[o, _REACH] <= 0:
                            continue
                        full = capacity[o]
                        slope[b, o] = at[o, _SURPLUS]
                        if at[o, _MASS] <= full:
                            at[o, _PRICE] = np.inf  # capacity to spare: 0 is the best price, and nobody asks again
                            continue
                        at[o, _LOW_AT], at[o, _LOW_BEND] = at[o, _SURPLUS], full - at[o, _MASS]
                        at[o, _HIGH_AT], at[o, _HIGH_BEND] = full * at[o, _HIGH], full
                        at[o, _PRICE] = min(mu[b, o], at[o, _HIGH])
                        at[o, _MASS] = at[o, _SURPLUS] = 0
                        scarce[count] = o
                        count += 1
                continue
            for i in range(count):
                o = scarce[i]
                full = capacity[o]
                height = full * at[o, _PRICE] + at[o, _SURPLUS]
                bend = full - at[o, _MASS]
                at[o, _MASS] = at[o, _SURPLUS] = 0
                if bend < 0:
                    at[o, _LOW], at[o, _LOW_AT], at[o, _LOW_BEND] = at[o, _PRICE], height, bend
                else:
                    at[o, _HIGH], at[o, _HIGH_AT], at[o, _HIGH_BEND] = at[o, _PRICE], height, bend
                cross = at[o, _HIGH_AT] - at[o, _LOW_AT]
                cross += at[o, _LOW_BEND] * at[o, _LOW] - at[o, _HIGH_BEND] * at[o, _HIGH]
                price = cross / (at[o, _LOW_BEND] - at[o, _HIGH_BEND])
                at[o, _PRICE] = min(max(price, at[o, _LOW]), at[o, _HIGH])
        for i in range(count):
            o = scarce[i]
            slope[b, o] = min(at[o, _LOW_AT], at[o, _HIGH_AT])


@_compiled
def marginals(
    owner: Array,
    workers: int,
    model_owner: Array,
    cost: Array,
    option: Array,
    first: Array,
    r: Array,
    x: Array,
    served: Array,
    load: Array,
    capacity: Array,
    mass: Array,
    add: Array,
    loss: Array,
    saved: Array,
) -> None:
    """`marginals.shared_marginals` into zeroed add, loss (B, V*M) and saved (B, R); mass (B, V*M) is zeroed scratch."""
    types = cost.shape[1]
    models = model_owner.shape[0]
    nodes = capacity.shape[0] // models
    for work in prange(add.shape[0] * workers):
        b, worker = work // workers, work % workers
        bc, br, bx = b % cost.shape[0], b % r.shape[0], b % x.shape[0]
        for rho in range(types):
            if owner[rho] != worker or r[br, rho] <= 0:
                continue
            last = first[bc, rho]
            gamma_rep = cost[bc, rho, last]
            behind = served[b, rho, last]
            kept = 0.0
            fallback = 0.0
            end = last
            if behind <= 0:
                # Nothing reaches the repository: only what follows the last option in use matters.
                while end > 0 and served[b, rho, end - 1] <= 0:
                    end -= 1
                for k in range(end, last):
                    o = option[bc, rho, k]
                    if x[bx, o] and load[b, o] < capacity[o]:
                        fallback = gamma_rep - cost[bc, rho, k]
                        break
            for k in range(end - 1, -1, -1):
                o = option[bc, rho, k]
                saving = gamma_rep - cost[bc, rho, k]
                if not x[bx, o]:
                    add[b, o] += max(saving * behind - kept, 0.0)
                    mass[b, o] += behind
                    continue
                here = served[b, rho, k]
                if here > 0:
                    loss[b, o] += here * (saving - fallback)
                    behind += here
                    kept += here * saving
                if load[b, o] < capacity[o]:
                    fallback = saving
            saved[b, rho] = kept
        for v in range(nodes):
            for m in range(models):
                o = v * models + m
                if model_owner[m] == worker and mass[b, o] > capacity[o]:
                    add[b, o] *= capacity[o] / mass[b, o]
