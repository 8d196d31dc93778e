"""Compiled CPU kernels of the local search: what an allocation gains, what one model more or less would change.

Nothing of the size of the ranked tables is written: a type is served at few ranks, which it keeps as a linked list.
Arrays with a batch axis, `owner` and `model_owner` are as in `idn_torch.shared.compiled`.
"""

from typing import Any

import numpy as np
from numba import njit, prange
from numpy.typing import NDArray

__all__ = ["evaluate", "fill", "longer", "room_left"]

Array = NDArray[Any]

# What an option is to the scan of a type's ranks.
_IDLE, _WANTED, _FULL, _OPEN = range(4)

_compiled: Any = njit(parallel=True, cache=True, nogil=True)
_inner: Any = njit(cache=True, nogil=True)


@_inner
def longer(values: Array) -> Array:
    """The same values with room for as many more."""
    out = np.empty(2 * values.shape[0], values.dtype)
    out[: values.shape[0]] = values
    return out


@_inner
def room_left(sizes: Array, budget: float, slack: float, x: Array) -> float:
    """Budget that x leaves at a node, 0 where that is a rounding error."""
    used = 0.0
    for m in range(x.shape[0]):
        if x[m]:
            used += sizes[m]
    room = budget - used
    return room if abs(room) > slack else 0.0


@_inner
def _serve_fcfs(
    worker: int,
    owner: Array,
    order: Array,
    cost: Array,
    option: Array,
    first: Array,
    r: Array,
    x: Array,
    capacity: Array,
    load: Array,
    tail: Array,
    total: Array,
) -> tuple[Array, Array, Array]:
    """As `kernels.tables.serve_fcfs`: rank, amount and predecessor of each entry.

    Into tail (R,), filled with -1, goes a type's last entry, into the zeroed total (R,) float64 its gain.
    """
    size = 2 * tail.shape[0]
    rank, before, amount = np.empty(size, np.int32), np.empty(size, np.int32), np.empty(size, r.dtype)
    count = 0
    for i in range(order.shape[0]):
        rho = order[i]
        if owner[rho] != worker:
            continue
        left = r[rho]
        repository = first[rho]
        for k in range(repository + 1):
            if left <= 0:
                break
            at = option[rho, k]
            if not x[at]:
                continue
            take = left if k == repository else min(left, capacity[at] - load[at])
            if take > 0:
                load[at] += take
                left -= take
                total[rho] += take * (cost[rho, repository] - cost[rho, k])
                if count == rank.shape[0]:
                    rank, before, amount = longer(rank), longer(before), longer(amount)
                rank[count], amount[count], before[count] = k, take, tail[rho]
                tail[rho] = count
                count += 1
    return rank, amount, before


@_inner
def _serve_fair(
    worker: int,
    owner: Array,
    cost: Array,
    option: Array,
    first: Array,
    r: Array,
    x: Array,
    capacity: Array,
    load: Array,
    offered: Array,
    tail: Array,
    total: Array,
) -> tuple[Array, Array, Array]:
    """As `kernels.tables.serve_fair`, with the result of `_serve_fcfs`; offered (V*M,) is zeroed scratch."""
    size = 2 * tail.shape[0]
    rank, before, amount = np.empty(size, np.int32), np.empty(size, np.int32), np.empty(size, r.dtype)
    count = 0
    busy = np.flatnonzero(owner == worker)
    busy = busy[r[busy] > 0]
    left = r[busy]
    at_rank = np.zeros(busy.shape[0], np.int32)
    full = np.zeros(load.shape[0], np.bool_)
    while busy.shape[0] > 0:
        for i in range(busy.shape[0]):
            rho = busy[i]
            k = at_rank[i]
            while k < first[rho]:
                at = option[rho, k]
                if x[at] and not full[at] and capacity[at] > 0:
                    break
                k += 1
            at_rank[i] = k
            offered[option[rho, k]] += left[i]
        for i in range(busy.shape[0]):
            rho, k = busy[i], at_rank[i]
            at = option[rho, k]
            take = left[i]
            room = capacity[at] - load[at]
            if k < first[rho] and offered[at] >= room:
                take = left[i] * (room / offered[at])
            total[rho] += take * (cost[rho, first[rho]] - cost[rho, k])
            if count == rank.shape[0]:
                rank, before, amount = longer(rank), longer(before), longer(amount)
            rank[count], amount[count], before[count] = k, take, tail[rho]
            tail[rho] = count
            count += 1
        kept = 0
        for i in range(busy.shape[0]):
            rho, k = busy[i], at_rank[i]
            at = option[rho, k]
            if offered[at] > 0:  # the first type here settles the option's round
                if k < first[rho] and offered[at] >= capacity[at] - load[at]:
                    load[at] = capacity[at]
                    full[at] = True
                else:
                    load[at] += offered[at]
                offered[at] = 0
            if full[at]:
                rest = max(left[i] - amount[tail[rho]], 0)
                if rest > 0:
                    busy[kept], left[kept], at_rank[kept] = rho, rest, k
                    kept += 1
        busy, left, at_rank = busy[:kept], left[:kept], at_rank[:kept]
    return rank, amount, before


@_compiled
def evaluate(
    owner: Array,
    workers: int,
    model_owner: Array,
    type_task: Array,
    fair: bool,
    order: Array,
    cost: Array,
    option: Array,
    first: Array,
    r: Array,
    x: Array,
    into: Array,
    sizes: Array,
    budgets: Array,
    slack: Array,
    able: Array,
    everything: bool,
    around: bool,
    capacity: Array,
    load: Array,
    mass: Array,
    add: Array,
    loss: Array,
    saved: Array,
    gain: Array,
) -> None:
    """Gain of each type, saved (B, R), and task, gain (B, N) float64; around: the marginals too.

    All of the arrays from load (B, V*M) on are zeroed. add is taken of the models that are able and fit at the nodes
    where into (B or 1, V) is True, or of everything not loaded. `marginals.shared_marginals` has the formulas.
    """
    types = cost.shape[1]
    models = model_owner.shape[0]
    nodes = capacity.shape[0] // models
    for work in prange(load.shape[0] * workers):
        b, worker = work // workers, work % workers
        bc, br, bx = b % cost.shape[0], b % r.shape[0], b % x.shape[0]
        bo, bi = b % order.shape[0], b % into.shape[0]
        gammas, options, repository = cost[bc], option[bc], first[bc]
        tail, total = np.full(types, -1, np.int32), np.zeros(types)
        if fair:
            rank, amount, before = _serve_fair(
                worker,
                owner,
                gammas,
                options,
                repository,
                r[br],
                x[bx],
                capacity,
                load[b],
                np.zeros_like(load[b]),
                tail,
                total,
            )
        else:
            rank, amount, before = _serve_fcfs(
                worker, owner, order[bo], gammas, options, repository, r[br], x[bx], capacity, load[b], tail, total
            )
        for rho in range(types):
            if owner[rho] != worker:
                continue
            saved[b, rho] = total[rho]
            gain[b, type_task[rho]] += total[rho]
        if not around:
            continue

        kind = np.zeros(nodes * models, np.uint8)
        for v in range(nodes):
            room = (
                np.inf
                if everything
                else room_left(sizes[v], budgets[v], slack[v], x[bx, v * models : (v + 1) * models])
            )
            for m in range(models):
                o = v * models + m
                if model_owner[m] != worker:
                    continue
                if x[bx, o]:
                    kind[o] = _OPEN if load[b, o] < capacity[o] else _FULL
                elif everything or (into[bi, v] and able[v, m] and sizes[v, m] <= room):
                    kind[o] = _WANTED
        for rho in range(types):
            if owner[rho] != worker or tail[rho] < 0:
                continue
            last = repository[rho]
            gamma_rep = gammas[rho, last]
            entry = tail[rho]
            behind = np.float64(0.0)
            kept = 0.0
            fallback = 0.0
            end = last
            if rank[entry] == last:
                behind = amount[entry]
                entry = before[entry]
            else:
                # Nothing reaches the repository: only what follows the last option in use matters.
                end = rank[entry] + 1
                for k in range(end, last):
                    if kind[options[rho, k]] == _OPEN:
                        fallback = gamma_rep - gammas[rho, k]
                        break
            for k in range(end - 1, -1, -1):
                o = options[rho, k]
                what = kind[o]
                if what == _IDLE:
                    continue
                saving = gamma_rep - gammas[rho, k]
                if what == _WANTED:
                    add[b, o] += max(saving * behind - kept, 0.0)
                    mass[b, o] += behind
                    continue
                if entry >= 0 and rank[entry] == k:
                    here = amount[entry]
                    entry = before[entry]
                    loss[b, o] += here * (saving - fallback)
                    behind += here
                    kept += here * saving
                if what == _OPEN:
                    fallback = saving
        for v in range(nodes):
            for m in range(models):
                o = v * models + m
                if kind[o] == _WANTED and mass[b, o] > capacity[o]:
                    add[b, o] *= capacity[o] / mass[b, o]


@_compiled
def fill(
    sizes: Array,
    budgets: Array,
    slack: Array,
    able: Array,
    model_task: Array,
    tasks: int,
    several: int,
    where: Array,
    add: Array,
    x: Array,
) -> None:
    """`local_search.fill` on loaded models x (B, V, M) bool in place; add (B, V, M), where (B or 1, V)."""
    nodes, models = sizes.shape
    for work in prange(x.shape[0] * nodes):
        b, v = work // nodes, work % nodes
        if not where[b % where.shape[0], v]:
            continue
        room = room_left(sizes[v], budgets[v], slack[v], x[b, v])
        if room <= 0:
            continue
        best = np.zeros(tasks, add.dtype)
        which = np.full(tasks, -1)
        for m in range(models):
            task = model_task[m]
            if add[b, v, m] > best[task] and able[v, m] and sizes[v, m] <= room:
                best[task], which[task] = add[b, v, m], m
        used = 0.0
        for _ in range(several):
            task = np.argmax(best)
            used += sizes[v, which[task]]
            if best[task] <= 0 or used > room:
                break
            x[b, v, which[task]] = True
            best[task] = 0
