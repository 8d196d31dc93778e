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
_PRICE, _LOW, _SURPLUS, _MASS, _SURPLUS_0, _MASS_0 = range(6)
SCRATCH = 6

_compiled: Any = njit(parallel=True, cache=True, nogil=True)
_inner: Any = njit(cache=True, nogil=True)
_sums: Any = njit(cache=True, nogil=True, fastmath={"reassoc", "nsz", "contract"})  # in vectors


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
                at[o, _MASS], at[o, _SURPLUS], at[o, _MASS_0], at[o, _SURPLUS_0] = 0, 0, 0, 0
        asks = _close_nu(owner, worker, *tables, requests, passes, nu[b], closed[b], at)
        _close_mu(owner, worker, own, models, *tables, requests, capacity, asks, passes, closed[b], at, slope[b])


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
    # Bare numbers are doubles: they would turn float32 arithmetic into float64, at twice the time.
    number = np.array([0.5 * w, 0.0]).astype(cost.dtype)
    half, zero = number[0], number[1]
    for turn in range(iterations):
        for rho in range(types):
            if owner[rho] != worker:
                continue
            last = first[rho]
            price, requests = nu[rho], r[rho]
            limit = cost[rho, last] - price
            total = zero
            if turn == 0:
                used[rho] = last
                for k in range(last):
                    at[option[rho, k], _REACH] += requests
            end = 0
            for k in range(last):
                worth = limit - cost[rho, k]
                if worth <= 0 and k >= used[rho]:
                    break  # costs rise and mu >= 0: no later rank gets a flow
                o = option[rho, k]
                before = flow[rho, k]
                after = min(max(before + half * (worth - at[o, _MU]), zero), at[o, _Y])
                flow[rho, k] = after
                if after > 0:
                    end = k + 1
                ahead = after + after - before
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


@_sums
def _above(value: Array, share: Array, count: int, price: float) -> tuple[float, float]:
    """What of the first `count` is worth more than a price: how much, and its surplus."""
    mass = surplus = 0.0
    for i in range(count):
        more = value[i] - price
        part = share[i] if more > 0 else 0.0
        mass += part
        surplus += part * more
    return mass, surplus


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
) -> int:
    """The best nu of each type for these mu; at each option what types ask of it then, for nothing and at its mu.

    Returns the number of pairs of a type and an option that it asks for.
    """
    types, ranks = cost.shape
    value, share = np.empty(ranks), np.empty(ranks)
    asks = 0
    for rho in range(types):
        if owner[rho] != worker:
            continue
        last = first[rho]
        gamma_rep = cost[rho, last]
        low = high = 0.0
        count = 0
        for k in range(last):
            o = option[rho, k]
            worth = gamma_rep - cost[rho, k] - at[o, _MU]
            if worth > 0 and at[o, _Y] > 0:
                value[count], share[count] = worth, at[o, _Y]
                count += 1
                high = max(high, worth)
        mass, surplus = _above(value, share, count, 0.0)
        if mass > 1:
            low_height, low_slope, high_height, high_slope = surplus, 1 - mass, high, 1.0
            price = min(nu[rho], high)
            for _ in range(passes):
                mass, surplus = _above(value, share, count, price)
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
            at[o, _MASS_0] += requests
            at[o, _SURPLUS_0] += requests * above
            if above > at[o, _MU]:
                at[o, _MASS] += requests
                at[o, _SURPLUS] += requests * (above - at[o, _MU])
            asks += 1
    return asks


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
    asks: int,
    passes: int,
    closed: Array,
    at: Array,
    slope: Array,
) -> None:
    """The best mu of each option for the closed nu: what the bound rises by with y."""
    count = 0
    for first_option in range(0, capacity.shape[0], models):
        for m in own:
            o = first_option + m
            if at[o, _MASS_0] <= capacity[o]:
                slope[o] = at[o, _SURPLUS_0]
                at[o, _PRICE] = at[o, _LOW] = np.inf  # capacity to spare: 0 is the best price, and nobody asks again
            else:
                count += 1
    # Tangents at either end of a scarce option's bracket, price -> height + bend * price, and the least height seen.
    scarce, least = np.empty(count, np.int64), np.empty(count)
    low, low_height, low_bend = np.zeros(count), np.empty(count), np.empty(count)
    high, high_height, high_bend = np.full(count, np.inf), np.zeros(count), np.empty(count)
    i = 0
    for first_option in range(0, capacity.shape[0], models):
        for m in own:
            o = first_option + m
            if at[o, _PRICE] < np.inf:
                scarce[i], least[i] = o, at[o, _SURPLUS_0]
                low_height[i], low_bend[i] = at[o, _SURPLUS_0], capacity[o] - at[o, _MASS_0]
                high_bend[i] = capacity[o]
                i += 1

    # Who asks for scarce options, (option, type's requests, worth), read once: the tables are large.
    asked, amount, value = np.empty(asks, np.int32), np.empty(asks, r.dtype), np.empty(asks, cost.dtype)
    entries = 0
    for turn in range(passes):
        if turn == 1:
            for rho in range(cost.shape[0]):
                if owner[rho] != worker or r[rho] <= 0:
                    continue
                best = cost[rho, first[rho]] - closed[rho]
                for k in range(first[rho]):
                    above = best - cost[rho, k]
                    if above <= 0:
                        break
                    o = option[rho, k]
                    if above > at[o, _PRICE]:
                        at[o, _MASS] += r[rho]
                        at[o, _SURPLUS] += r[rho] * (above - at[o, _PRICE])
                    if above > at[o, _LOW]:
                        asked[entries], amount[entries], value[entries] = o, r[rho], above
                        entries += 1
        elif turn > 1:
            for e in range(entries):
                o = asked[e]
                above = value[e] - at[o, _PRICE]
                if above > 0:
                    at[o, _MASS] += amount[e]
                    at[o, _SURPLUS] += amount[e] * above
        for i in range(count):
            o = scarce[i]
            price, surplus, bend = at[o, _PRICE], at[o, _SURPLUS], capacity[o] - at[o, _MASS]
            least[i] = min(least[i], surplus + capacity[o] * price)
            height = surplus + at[o, _MASS] * price
            if bend < 0:
                low[i], low_height[i], low_bend[i] = price, height, bend
            else:
                high[i], high_height[i], high_bend[i] = price, height, bend
            price = (high_height[i] - low_height[i]) / (low_bend[i] - high_bend[i])
            at[o, _PRICE] = min(max(price, low[i]), high[i])
            at[o, _LOW] = low[i]
            at[o, _MASS] = at[o, _SURPLUS] = 0
    for i in range(count):
        slope[scarce[i]] = least[i]
