"""Compiled CPU kernel of the shared-capacity gain, in the manner of `idn_torch.kernels`: threads own whole tasks.

An array with a batch axis holds one row or B; row `b % rows` belongs to instance b. `owner` (R,) is the worker of each
type, of `workers` in all, `model_owner` (M,) that of each model.
"""

from typing import Any

import numpy as np
from numba import njit, prange
from numpy.typing import NDArray

__all__ = ["SCRATCH", "primal_dual"]

Array = NDArray[Any]

# What an option's row of the scratch array holds, together, so that an entry costs one cache line: while the prices are
# sought, and while they are closed.
_MU, _Y, _LOAD, _REACH = range(4)
_PRICE, _SURPLUS, _MASS, _HIGH = 0, 2, 3, 4
SCRATCH = 5

_compiled: Any = njit(parallel=True, cache=True, nogil=True)
_inner: Any = njit(cache=True, nogil=True)


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

    y and capacity (V*M,) are 0 on repository entries, closed and slope are zeroed, scratch (B, V*M, SCRATCH) may hold
    anything. No two workers meet in it.
    """
    models = model_owner.shape[0]
    nodes = capacity.shape[0] // models
    for work in prange(slope.shape[0] * workers):
        b, worker = work // workers, work % workers
        tables = cost[b % cost.shape[0]], option[b % option.shape[0]], first[b % first.shape[0]]
        requests, at = r[b % r.shape[0]], scratch[b]
        own = np.flatnonzero(model_owner == worker)
        for v in range(nodes):
            for m in own:
                o = v * models + m
                at[o, _MU], at[o, _Y], at[o, _LOAD], at[o, _REACH] = mu[b, o], y[b % y.shape[0], o], 0, 0
        _iterate(owner, worker, own, models, *tables, requests, capacity, scale[b], iterations, flow[b], nu[b], at)
        for v in range(nodes):
            for m in own:
                o = v * models + m
                mu[b, o] = at[o, _MU]
                at[o, _MASS], at[o, _SURPLUS], at[o, _HIGH] = 0, 0, 0
        _close_nu(owner, worker, *tables, requests, passes, nu[b], closed[b], at)
        _close_mu(owner, worker, own, models, *tables, requests, capacity, passes, mu[b], closed[b], at, slope[b])


@_inner
def _iterate(
    owner: Array,
    worker: int,
    own: Array,
    models: int,
    cost: Array,
    option: Array,
    first: Array,
    r: Array,
    capacity: Array,
    w: float,
    iterations: int,
    flow: Array,
    nu: Array,
    at: Array,
) -> None:
    types = cost.shape[0]
    used = np.empty(types, np.int32)  # no flow from this rank on
    for turn in range(iterations):
        for rho in range(types):
            if owner[rho] != worker:
                continue
            last = first[rho]
            gamma_rep = cost[rho, last]
            price, requests = nu[rho], r[rho]
            total = 0.0
            if turn == 0:
                used[rho] = last
                for k in range(last):
                    at[option[rho, k], _REACH] += requests
            end = 0
            for k in range(last):
                worth = gamma_rep - cost[rho, k] - price
                if worth <= 0 and k >= used[rho]:
                    break  # costs rise and mu >= 0: no later rank gets a flow
                o = option[rho, k]
                before = flow[rho, k]
                worth -= at[o, _MU]
                if worth <= 0 and before == 0:
                    continue
                after = min(max(before + 0.5 * w * worth, 0.0), at[o, _Y])
                flow[rho, k] = after
                if after > 0:
                    end = k + 1
                ahead = 2 * after - before
                total += ahead
                at[o, _LOAD] += requests * ahead
            used[rho] = end
            nu[rho] = max(price + (total - 1) / (max(last, 1) * w), 0.0)
        for first_option in range(0, capacity.shape[0], models):
            for m in own:
                o = first_option + m
                if at[o, _REACH] > 0:
                    over = at[o, _LOAD] - capacity[o] * at[o, _Y]
                    at[o, _MU] = max(at[o, _MU] + over / (at[o, _REACH] * w), 0.0)
                    at[o, _LOAD] = 0


@_inner
def _close_nu(
    owner: Array,
    worker: int,
    cost: Array,
    option: Array,
    first: Array,
    r: Array,
    passes: int,
    nu: Array,
    closed: Array,
    at: Array,
) -> None:
    """The best nu of each type for these mu; at each option what its types want of it for nothing at these nu."""
    types, ranks = cost.shape
    value, share = np.empty(ranks), np.empty(ranks)
    for rho in range(types):
        if owner[rho] != worker:
            continue
        last = first[rho]
        gamma_rep = cost[rho, last]
        low = high = mass = surplus = 0.0
        count = 0
        for k in range(last):
            o = option[rho, k]
            worth = gamma_rep - cost[rho, k] - at[o, _MU]
            if worth > 0 and at[o, _Y] > 0:
                value[count], share[count] = worth, at[o, _Y]
                count += 1
                high = max(high, worth)
                mass += at[o, _Y]
                surplus += at[o, _Y] * worth
        if mass > 1:
            low_height, low_slope, high_height, high_slope = surplus, 1 - mass, high, 1.0
            price = min(nu[rho], high)
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
            closed[rho] = low if low_height < high_height else high
        requests = r[rho]
        if requests <= 0:
            continue
        best = gamma_rep - closed[rho]
        for k in range(last):
            above = best - cost[rho, k]
            if above <= 0:
                break  # costs rise: no later rank is worth its price either
            o = option[rho, k]
            at[o, _MASS] += requests
            at[o, _SURPLUS] += requests * above
            at[o, _HIGH] = max(at[o, _HIGH], above)


@_inner
def _close_mu(
    owner: Array,
    worker: int,
    own: Array,
    models: int,
    cost: Array,
    option: Array,
    first: Array,
    r: Array,
    capacity: Array,
    passes: int,
    mu: Array,
    closed: Array,
    at: Array,
    slope: Array,
) -> None:
    """The best mu of each option for the closed nu: what the bound rises by with y."""
    number = np.empty(capacity.shape[0], np.int32)
    count = entries = 0
    for first_option in range(0, capacity.shape[0], models):
        for m in own:
            o = first_option + m
            if at[o, _MASS] <= capacity[o]:
                slope[o] = at[o, _SURPLUS]
                at[o, _PRICE] = np.inf  # capacity to spare: 0 is the best price, and nobody asks again
            else:
                number[o] = count
                at[o, _PRICE] = min(mu[o], at[o, _HIGH])
                count += 1
    # Price, height and slope of the bound at either end of a scarce option's bracket, and the price to try next.
    option_of = np.empty(count, np.int64)
    low, low_at, low_bend = np.zeros(count), np.empty(count), np.empty(count)
    high, high_at, high_bend = np.empty(count), np.empty(count), np.empty(count)
    price = np.empty(count)
    for first_option in range(0, capacity.shape[0], models):
        for m in own:
            o = first_option + m
            if at[o, _PRICE] < np.inf:
                i = number[o]
                full = capacity[o]
                option_of[i], price[i], high[i] = o, at[o, _PRICE], at[o, _HIGH]
                low_at[i], low_bend[i] = at[o, _SURPLUS], full - at[o, _MASS]
                high_at[i], high_bend[i] = full * at[o, _HIGH], full

    # Who asks for scarce options, (option, type's requests, worth), read once: the tables are large.
    asked, amount, value = np.empty(1024, np.int32), np.empty(1024, r.dtype), np.empty(1024, cost.dtype)
    for rho in range(cost.shape[0]):
        if owner[rho] != worker or r[rho] <= 0:
            continue
        best = cost[rho, first[rho]] - closed[rho]
        for k in range(first[rho]):
            above = best - cost[rho, k]
            if above <= 0:
                break
            o = option[rho, k]
            if at[o, _PRICE] < np.inf:
                if entries == asked.shape[0]:
                    asked, amount, value = _longer(asked), _longer(amount), _longer(value)
                asked[entries], amount[entries], value[entries] = number[o], r[rho], above
                entries += 1

    mass, surplus = np.empty(count), np.empty(count)
    for _ in range(passes):
        mass[:] = 0
        surplus[:] = 0
        for e in range(entries):
            i = asked[e]
            above = value[e] - price[i]
            if above > 0:
                mass[i] += amount[e]
                surplus[i] += amount[e] * above
        for i in range(count):
            full = capacity[option_of[i]]
            height = full * price[i] + surplus[i]
            bend = full - mass[i]
            if bend < 0:
                low[i], low_at[i], low_bend[i] = price[i], height, bend
            else:
                high[i], high_at[i], high_bend[i] = price[i], height, bend
            cross = high_at[i] - low_at[i] + low_bend[i] * low[i] - high_bend[i] * high[i]
            price[i] = min(max(cross / (low_bend[i] - high_bend[i]), low[i]), high[i])
    for i in range(count):
        slope[option_of[i]] = min(low_at[i], high_at[i])


@_inner
def _longer(values: Array) -> Array:
    out = np.empty(2 * values.shape[0], values.dtype)
    out[: values.shape[0]] = values
    return out
