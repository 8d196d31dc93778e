"""Compiled CPU kernels that serve many allocations by fcfs in one walk along the tables.

The tables of a large network take longer to read than to use, and allocations that are compared differ at few nodes.
`owner` (R,) is the worker of each type, of `workers` in all.
"""

from typing import Any

import numpy as np
from numba import njit, prange
from numpy.typing import NDArray

from idn_torch.shared.compiled_search import longer, room_left

__all__ = ["add_in_groups", "gains"]

Array = NDArray[Any]

_compiled: Any = njit(parallel=True, cache=True, nogil=True)


@_compiled
def gains(
    owner: Array,
    workers: int,
    type_task: Array,
    order: Array,
    cost: Array,
    option: Array,
    first: Array,
    r: Array,
    place: Array,
    x: Array,
    capacity: Array,
    load: Array,
    saved: Array,
    gain: Array,
) -> None:
    """What `compiled_search.evaluate` has for gains, of B allocations, by fcfs in one order (R,).

    Tables without a batch axis. place (V*M,): of an option among the C that any of the allocations loads, or -1; x
    (C, B) bool; capacity (C,); r (B or 1, R); load (C, B), saved (B, R) and gain (B, N) float64 are zeroed.
    """
    instances = x.shape[1]
    for worker in prange(workers):
        left = np.empty(instances, r.dtype)
        total = np.empty(instances)
        for i in range(order.shape[0]):
            rho = order[i]
            if owner[rho] != worker:
                continue
            busy = 0
            for b in range(instances):
                left[b] = r[b % r.shape[0], rho]
                total[b] = 0
                busy += left[b] > 0
            gamma_rep = cost[rho, first[rho]]
            for k in range(first[rho]):
                if busy == 0:
                    break
                at = place[option[rho, k]]
                if at < 0:
                    continue
                for b in range(instances):
                    if x[at, b] and left[b] > 0:
                        take = min(left[b], capacity[at] - load[at, b])
                        if take > 0:
                            load[at, b] += take
                            left[b] -= take
                            total[b] += take * (gamma_rep - cost[rho, k])
                            busy -= left[b] <= 0
            for b in range(instances):
                saved[b, rho] = total[b]
                gain[b, type_task[rho]] += total[b]


@_compiled
def add_in_groups(
    owner: Array,
    workers: int,
    group: Array,
    order: Array,
    cost: Array,
    option: Array,
    first: Array,
    r: Array,
    place: Array,
    x: Array,
    capacity: Array,
    load: Array,
    sizes: Array,
    budgets: Array,
    slack: Array,
    able: Array,
    limit: Array,
    rows: Array,
    wanted: Array,
    mass: Array,
    add: Array,
) -> None:
    """`groups.add_in_groups`; arguments as in `gains`.

    Instance g*E + e of x (C, B) and load is batch element e with the rows (E, V*M) of group g; group (V,). wanted (E,
    V*M) int32, mass and add (E, V*M) are zeroed.
    """
    nodes, models = sizes.shape
    elements = rows.shape[0]
    instances = x.shape[1]
    for work in prange(elements * nodes):
        e, v = work // nodes, work % nodes
        room = room_left(sizes[v], budgets[v], slack[v], rows[e, v * models : (v + 1) * models])
        for m in range(models):
            o = v * models + m
            if able[v, m] and not rows[e, o] and sizes[v, m] <= room:
                wanted[e, o] = group[v] * elements + e + 1  # the instance, from 1
    for worker in prange(workers):
        left, behind, kept = np.empty(instances, r.dtype), np.empty(instances), np.empty(instances)
        rank, who, amount = np.empty(1024, np.int32), np.empty(1024, np.int32), np.empty(1024, r.dtype)
        for i in range(order.shape[0]):
            rho = order[i]
            if owner[rho] != worker:
                continue
            busy = 0
            for b in range(instances):
                left[b] = r[b % r.shape[0], rho]
                busy += left[b] > 0
            if busy == 0:
                continue
            last = first[rho]
            count = 0
            for k in range(last):
                if busy == 0:
                    break
                at = place[option[rho, k]]
                if at < 0:
                    continue
                for b in range(instances):
                    if x[at, b] and left[b] > 0:
                        take = min(left[b], capacity[at] - load[at, b])
                        if take > 0:
                            load[at, b] += take
                            left[b] -= take
                            busy -= left[b] <= 0
                            if count == rank.shape[0]:
                                rank, who, amount = longer(rank), longer(who), longer(amount)
                            rank[count], who[count], amount[count] = k, b, take
                            count += 1
            for b in range(instances):
                behind[b], kept[b] = left[b], 0
            # What is served needs no look at who else is: capacities that others leave only matter to losses.
            for k in range((last if busy > 0 else rank[count - 1] + 1) - 1, -1, -1):
                o = option[rho, k]
                saving = cost[rho, last] - cost[rho, k]
                for e in range(elements):
                    b = wanted[e, o] - 1
                    if b >= 0 and behind[b] > 0:
                        add[e, o] += max(saving * behind[b] - kept[b], 0.0)
                        mass[e, o] += behind[b]
                while count > 0 and rank[count - 1] == k:
                    count -= 1
                    behind[who[count]] += amount[count]
                    kept[who[count]] += amount[count] * saving
    for work in prange(elements * nodes):
        e, v = work // nodes, work % nodes
        for o in range(v * models, (v + 1) * models):
            full = limit[o]
            if mass[e, o] > full:
                add[e, o] *= full / mass[e, o]
