"""The oracle: every formula of the IDN core as plain float64 loops over one instance.

No torch, no batch, nothing clever: each line is meant to be checked by eye against the paper ("Towards Inference
Delivery Networks", numbers in the comments are its equations) or against the design's own formulas. The batched
kernels are tested against this module and share no code with it.

Shapes: V nodes, M models, R request types, K ranks (the most any type has), T slots. Ranked arrays are padded like
the library's: mask False, option 0, cost = the type's last real cost, lam = 0. Ranks are counted from 0.

Throughout, an allocation `y` (V,M) holds 1 on the repository entries.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]

# --------------------------------------------------------------------------------------------- the instance


class Ranked(NamedTuple):
    """Costs of every type in increasing order: `cost` (R,K), `option` (R,K) = v*M+m, `mask` (R,K)."""

    cost: Array
    option: Ints
    mask: Bools


@dataclass(frozen=True, eq=False)
class Instance:
    """One problem in plain arrays. `cost[rho]` (J_rho, Q_rho): models of the type's task in catalog order."""

    sizes: Array  # (V,M) > 0
    budgets: Array  # (V,), totals: repository models included
    repository: Bools  # (V,M), omega
    capacity: Array  # (V,M) whole requests a slot, ignored on repository entries
    model_task: Sequence[int]  # (M,)
    paths: Sequence[Sequence[int]]  # R lists of nodes
    type_task: Sequence[int]  # (R,)
    cost: Sequence[Array]  # R arrays (J_rho, Q_rho)

    def __post_init__(self) -> None:
        for rho, path in enumerate(self.paths):
            models = self.models_of(self.type_task[rho])
            if self.cost[rho].shape != (len(path), len(models)):
                raise ValueError(f"type {rho}: cost must have shape {(len(path), len(models))}")
            if len(set(path)) != len(path):
                raise ValueError(f"type {rho}: the path repeats a node")
            if not any(self.repository[v, m] for v in path for m in models):
                raise ValueError(f"type {rho}: no repository of its task on its path")

    @classmethod
    def from_problem(cls, problem: Any) -> Instance:
        """Reads a `Problem` through plain lists; padding of `paths` (-1) and of `cost_table()` is cut off."""
        model_task = [int(i) for i in problem.model_task.tolist()]
        type_task = [int(i) for i in problem.type_task.tolist()]
        paths = [[int(v) for v in row if v >= 0] for row in problem.paths.tolist()]
        cost = []
        for rho, table in enumerate(problem.cost_table().tolist()):
            models = sum(i == type_task[rho] for i in model_task)
            rows = [table[j][:models] for j in range(len(paths[rho]))]
            cost.append(np.array(rows, dtype=np.float64))
        return cls(
            sizes=np.array(problem.sizes.tolist(), dtype=np.float64),
            budgets=np.array(problem.budgets.tolist(), dtype=np.float64),
            repository=np.array(problem.repository.tolist(), dtype=np.bool_),
            capacity=np.array(problem.capacity.tolist(), dtype=np.float64),
            model_task=model_task,
            paths=paths,
            type_task=type_task,
            cost=cost,
        )

    def models_of(self, task: int) -> list[int]:
        """M_i: the models of a task in catalog order."""
        return [m for m, i in enumerate(self.model_task) if i == task]

    @property
    def omega(self) -> Array:
        """The minimal allocation of eq. (3) as 0/1 floats (V,M)."""
        return self.repository.astype(np.float64)

    @cached_property
    def ranked(self) -> Ranked:
        """`ranked_table` of this instance, computed once."""
        return ranked_table(self)

    @cached_property
    def options(self) -> list[list[tuple[int, int]]]:
        """For every type its (v, m) in rank order, real ranks only."""
        models = self.sizes.shape[1]
        option, mask = self.ranked.option, self.ranked.mask
        return [
            [divmod(int(o), models) for o, real in zip(option[rho], mask[rho], strict=True) if real]
            for rho in range(len(self.paths))
        ]

    @cached_property
    def feasible(self) -> FeasibleSet:
        """`feasible_set` of this instance, computed once."""
        return feasible_set(self.sizes, self.budgets, self.repository)


def eq6_cost(
    paths: Sequence[Sequence[int]],
    type_task: Sequence[int],
    model_task: Sequence[int],
    latency: Mapping[tuple[int, int], float] | Array,
    delay: Array,
    accuracy: Sequence[float] | Array,
    alpha: float | Sequence[float],
) -> list[Array]:
    """Eq. (6): C[rho][j,q] = sum_{j'<j} w[p_j',p_j'+1] + d[p_j,m] + alpha*(1-a_m).

    `latency[u, v]` (round trip, a matrix or a mapping), `delay` (V,M), `accuracy` (M,), `alpha` a number or one
    per task.
    """
    out = []
    for path, task in zip(paths, type_task, strict=True):
        weight = float(alpha if isinstance(alpha, (int, float)) else alpha[task])
        models = [m for m, i in enumerate(model_task) if i == task]
        table = np.zeros((len(path), len(models)))
        network = 0.0
        for j, v in enumerate(path):
            if j > 0:
                network += float(latency[path[j - 1], v])
            for q, m in enumerate(models):
                table[j, q] = network + (float(delay[v, m]) + weight * (1.0 - float(accuracy[m])))
        out.append(table)
    return out


def ranked_table(inst: Instance) -> Ranked:
    """Sec. III-E: each type's costs in increasing order, ties by (path position, model index)."""
    rows = []
    for rho, path in enumerate(inst.paths):
        models = inst.models_of(inst.type_task[rho])
        entries = [(float(inst.cost[rho][j, q]), j, m, v) for j, v in enumerate(path) for q, m in enumerate(models)]
        rows.append(sorted(entries))
    ranks = max((len(row) for row in rows), default=0)
    cost = np.zeros((len(rows), ranks))
    option = np.zeros((len(rows), ranks), dtype=np.int64)
    mask = np.zeros((len(rows), ranks), dtype=np.bool_)
    for rho, row in enumerate(rows):
        cost[rho, :] = row[-1][0]  # padding repeats the last real cost
        for k, (gamma, _, m, v) in enumerate(row):
            cost[rho, k] = gamma
            option[rho, k] = v * inst.sizes.shape[1] + m
            mask[rho, k] = True
    return Ranked(cost, option, mask)


# --------------------------------------------------------------------------------- capacities, cost and gain


def potential_capacity(inst: Instance, r: Array) -> Array:
    """lam (R,K) of an idle network: min(L, r); r at repositories; 0 at padding."""
    lam = np.zeros(inst.ranked.cost.shape)
    for rho, options in enumerate(inst.options):
        for k, (v, m) in enumerate(options):
            lam[rho, k] = r[rho] if inst.repository[v, m] else min(inst.capacity[v, m], r[rho])
    return lam


def effective_capacity(inst: Instance, r: Array, x: Array, served: Any, full: Bools | None = None) -> Array:
    """lam (R,K) of eq. (7) from the realised loads `served` (R,K), an array or exact numbers in nested lists.

    Eq. (7) is exact for exact `served`. For rounded `served` pass `full` (V,M): at a full option l is what the type
    got there, whatever L minus the other loads came to in floats.
    """
    load: dict[tuple[int, int], Any] = {}
    for rho, options in enumerate(inst.options):
        for k, place in enumerate(options):
            load[place] = load.get(place, 0) + served[rho][k]
    lam = np.zeros(inst.ranked.cost.shape)
    for rho, options in enumerate(inst.options):
        for k, (v, m) in enumerate(options):
            if inst.repository[v, m]:
                lam[rho, k] = r[rho]  # never saturated, wherever on the path
            elif x[v, m] == 0:
                lam[rho, k] = min(inst.capacity[v, m], r[rho])
            elif full is not None and full[v, m]:
                lam[rho, k] = served[rho][k]
            else:
                others = load[v, m] - served[rho][k]
                lam[rho, k] = min(int(inst.capacity[v, m]) - others, r[rho])  # Eq. (7)
    return lam


def cumulative(inst: Instance, lam: Array, y: Array) -> list[list[float]]:
    """S_k = sum_{k'<=k} z_k' per type, real ranks only; z = lam * y[option], eq. (11)."""
    out = []
    for rho, options in enumerate(inst.options):
        total, row = 0.0, []
        for k, (v, m) in enumerate(options):
            total += float(lam[rho, k]) * float(y[v, m])
            row.append(total)
        out.append(row)
    return out


def serving_cost(inst: Instance, r: Array, lam: Array, y: Array) -> float:
    """Eq. (12): every type fills its ranks in order of cost, each up to its effective capacity z."""
    total = 0.0
    for rho, options in enumerate(inst.options):
        before = 0.0  # sum_{k'<k} z_k'
        for k, (v, m) in enumerate(options):
            z = float(lam[rho, k]) * float(y[v, m])  # Eq. (11)
            if before < r[rho]:  # the indicator
                total += float(inst.ranked.cost[rho, k]) * min(float(r[rho]) - before, z)
            before += z
    return total


def gain_cost_difference(inst: Instance, r: Array, lam: Array, y: Array) -> float:
    """Eq. (13): G = C(omega) - C(y)."""
    return serving_cost(inst, r, lam, inst.omega) - serving_cost(inst, r, lam, y)


def gain(inst: Instance, r: Array, lam: Array, y: Array) -> float:
    """Eq. (16): G = sum_rho sum_{k<K} (gamma_{k+1} - gamma_k) * (Z_k(y) - Z_k(omega)), Z_k = min(r, S_k)."""
    with_y, with_omega = cumulative(inst, lam, y), cumulative(inst, lam, inst.omega)
    total = 0.0
    for rho, options in enumerate(inst.options):
        for k in range(len(options) - 1):
            step = float(inst.ranked.cost[rho, k + 1] - inst.ranked.cost[rho, k])
            z_y = min(float(r[rho]), with_y[rho][k])  # Eq. (15)
            z_omega = min(float(r[rho]), with_omega[rho][k])  # Eq. (15)
            total += step * (z_y - z_omega)
    return total


def k_star(inst: Instance, r: Array, lam: Array, y: Array) -> Ints:
    """K* (R,): the first rank with S >= r, from 0; the last real rank where there is none."""
    out = np.zeros(len(inst.paths), dtype=np.int64)
    for rho, sums in enumerate(cumulative(inst, lam, y)):
        out[rho] = next((k for k, total in enumerate(sums) if total >= r[rho]), len(sums) - 1)
    return out


def subgradient(inst: Instance, r: Array, lam: Array, y: Array, form: str = "indicator") -> Array:
    """Eq. (18): g[v,m] = sum_rho lam * (gamma_K* - gamma_kappa) * 1{kappa < K*}; `form="relu"` is the other form."""
    g = np.zeros(inst.sizes.shape)
    worst = k_star(inst, r, lam, y)
    for rho, options in enumerate(inst.options):
        for k, (v, m) in enumerate(options):
            difference = float(inst.ranked.cost[rho, worst[rho]] - inst.ranked.cost[rho, k])
            counts = k < worst[rho] if form == "indicator" else difference > 0
            if counts:
                g[v, m] += float(lam[rho, k]) * difference
    return g


def marginal_gains(inst: Instance, r: Array, lam: Array, x: Array) -> Array:
    """G(x + e_vm) - G(x) (V,M) at fixed lam for every free entry with x = 0; 0 elsewhere."""
    base = gain(inst, r, lam, x)
    out = np.zeros(inst.sizes.shape)
    for v in range(inst.sizes.shape[0]):
        for m in range(inst.sizes.shape[1]):
            if x[v, m] == 0 and not inst.repository[v, m]:
                more = x.copy()
                more[v, m] = 1.0
                out[v, m] = gain(inst, r, lam, more) - base
    return out


# -------------------------------------------------------------------------------------------------- serving


class Served(NamedTuple):
    """Outcome of a slot: `served` (R,K), `load` (V,M), `full` (V,M), `capacity` (R,K) = lam of eq. (7), `cost`."""

    served: Array
    load: Array
    full: Bools
    capacity: Array
    cost: float
    rounds: int


def serve_fcfs(inst: Instance, r: Array, x: Array, order: Sequence[int] | None = None) -> Served:
    """Serial dictatorship: types in `order`, each takes its cheapest deployed unsaturated options. Whole numbers."""
    left = _whole_capacity(inst)
    served: list[list[int]] = [[0] * len(options) for options in inst.options]
    for rho in range(len(inst.paths)) if order is None else order:
        todo = _whole(r[rho])
        for k, (v, m) in enumerate(inst.options[rho]):
            if x[v, m] == 0:
                continue
            take = todo if inst.repository[v, m] else min(todo, left[v][m])
            served[rho][k] = take
            todo -= take
            left[v][m] -= take
        assert todo == 0  # a repository is on the path
    return _outcome(inst, r, x, served, [[c == 0 for c in row] for row in left], rounds=0)


def serve_fair(inst: Instance, r: Array, x: Array) -> Served:
    """Fluid immediate acceptance, in exact rationals.

    Each round every type with something left offers all of it to its cheapest deployed unsaturated option. An option
    offered as much as it has left, or more, rations in proportion to the offers and is saturated from then on; a
    capacity of 0 is saturated from the start.
    """
    left = [[Fraction(c) for c in row] for row in _whole_capacity(inst)]
    saturated = [[c == 0 for c in row] for row in left]  # repository entries are never looked up here
    todo = [Fraction(_whole(count)) for count in r]
    served: list[list[Fraction]] = [[Fraction(0)] * len(options) for options in inst.options]
    rounds = 0
    while any(amount > 0 for amount in todo):
        rounds += 1
        offers: dict[tuple[int, int], list[tuple[int, int]]] = {}  # option -> the (type, rank) that offer there
        for rho, options in enumerate(inst.options):
            if todo[rho] > 0:
                for k, (v, m) in enumerate(options):
                    if x[v, m] != 0 and (inst.repository[v, m] or not saturated[v][m]):
                        offers.setdefault((v, m), []).append((rho, k))
                        break
        for (v, m), offering in offers.items():
            total = sum((todo[rho] for rho, _ in offering), Fraction(0))
            share = Fraction(1)
            if not inst.repository[v, m]:
                if total >= left[v][m]:
                    share = left[v][m] / total
                    saturated[v][m] = True
                left[v][m] -= share * total
            for rho, k in offering:
                served[rho][k] += share * todo[rho]
                todo[rho] -= share * todo[rho]
    return _outcome(inst, r, x, served, saturated, rounds)


def _whole(value: Any) -> int:
    if int(value) != value or value < 0:
        raise ValueError(f"{value} is not a whole number >= 0")
    return int(value)


def _whole_capacity(inst: Instance) -> list[list[int]]:
    """L as ints; 0 on repository entries, where it is ignored."""
    nodes, models = inst.capacity.shape
    return [[0 if inst.repository[v, m] else _whole(inst.capacity[v, m]) for m in range(models)] for v in range(nodes)]


def _outcome(
    inst: Instance, r: Array, x: Array, served: Sequence[Sequence[Any]], full: list[list[bool]], rounds: int
) -> Served:
    amount = np.zeros(inst.ranked.cost.shape)
    load = [[Fraction(0)] * inst.sizes.shape[1] for _ in range(inst.sizes.shape[0])]
    cost = 0.0
    for rho, options in enumerate(inst.options):
        for k, (v, m) in enumerate(options):
            amount[rho, k] = served[rho][k]
            load[v][m] += served[rho][k]
            cost += float(inst.ranked.cost[rho, k]) * float(served[rho][k])
    flags = np.array(full, dtype=np.bool_) & (x != 0) & ~inst.repository
    capacity = effective_capacity(inst, r, x, served)  # exact numbers: eq. (7) as printed, no flag needed
    return Served(amount, np.array(load, dtype=np.float64), flags, capacity, cost, rounds)


# ------------------------------------------------------------------------ feasible sets, y_1, projections


# Sums of sizes are compared with budgets up to this share of b: 0.1 + 0.2 fits in 0.3. No effect on whole sizes.
ROUNDING = 1e-12


class FeasibleSet(NamedTuple):
    """Y of Sec. IV: `budget` b' (V,), `movable` (V,M), `held` (V,M) = the value of the entries that do not move."""

    budget: Array
    movable: Bools
    held: Array


def feasible_set(sizes: Array, budgets: Array, fixed: Bools | None = None) -> FeasibleSet:
    """b' = b - sizes of the fixed entries; models with s > b' are 0; where the rest fits it is 1; else it moves."""
    nodes, models = sizes.shape
    budget = np.zeros(nodes)
    movable = np.zeros(sizes.shape, dtype=np.bool_)
    held = np.zeros(sizes.shape)
    for v in range(nodes):
        fixed_here = [fixed is not None and bool(fixed[v, m]) for m in range(models)]
        budget[v] = budgets[v] - math.fsum(float(sizes[v, m]) for m in range(models) if fixed_here[m])
        slack = ROUNDING * budgets[v]
        if budget[v] < -slack:
            raise ValueError(f"node {v}: the fixed models take more than the budget {budgets[v]}")
        budget[v] = max(0.0, budget[v])
        rest = [m for m in range(models) if not fixed_here[m] and sizes[v, m] <= budget[v] + slack]
        fits = math.fsum(float(sizes[v, m]) for m in rest) <= budget[v] + slack
        for m in range(models):
            held[v, m] = 1.0 if fixed_here[m] else 0.0
        for m in rest:
            if fits:
                held[v, m] = 1.0
            else:
                movable[v, m] = True
    return FeasibleSet(budget, movable, held)


def negentropy_row(log_y: Sequence[float], s: Sequence[float], budget: float) -> list[float]:
    """y = min(1, c*y') with sum s*y = b', given log y'. All of the row moves; sum s > b'.

    Exact breakpoints: with the n largest y' clipped at 1, c follows from the rest; the least n that clips nothing
    more is right, because c grows with n. Entries at 0 stay at 0, also where the others cannot fill the budget.
    """
    order = sorted((m for m in range(len(s)) if log_y[m] > -math.inf), key=lambda m: -log_y[m])
    y = [0.0] * len(s)
    for n, top in enumerate(order):
        free = order[n:]
        left = max(0.0, budget - math.fsum(s[m] for m in order[:n]))
        weights = [math.exp(log_y[m] - log_y[top]) for m in free]  # y' over its largest free entry
        scale = left / math.fsum(s[m] * w for m, w in zip(free, weights, strict=True))
        if scale <= 1.0:  # c*y' of the largest free entry
            for m, w in zip(free, weights, strict=True):
                y[m] = scale * w
            break
        y[top] = 1.0
    return y


def euclidean_row(y: Sequence[float], s: Sequence[float], budget: float) -> list[float]:
    """y = clip(y' - tau*s, 0, 1) with sum s*y = b'. All of the row moves; 0 < b' <= sum s.

    Exact breakpoints, in rationals so that a y' far from [0,1] cancels without loss: sum s*y falls with tau and is
    linear between the tau where an entry meets 0 or 1.
    """
    raw, size, full = [Fraction(value) for value in y], [Fraction(value) for value in s], Fraction(budget)

    def at(tau: Fraction) -> list[Fraction]:
        return [min(Fraction(1), max(Fraction(0), y_m - tau * s_m)) for y_m, s_m in zip(raw, size, strict=True)]

    def used(tau: Fraction) -> Fraction:
        return sum((s_m * y_m for s_m, y_m in zip(size, at(tau), strict=True)), Fraction(0))

    points = [(y_m - 1) / s_m for y_m, s_m in zip(raw, size, strict=True)]
    points += [y_m / s_m for y_m, s_m in zip(raw, size, strict=True)]
    tau = max((p for p in points if used(p) >= full), default=min(points))  # used(min) = sum s, used(max) = 0
    after = min((p for p in points if p > tau), default=tau)
    if used(tau) > full and after > tau:
        tau += (after - tau) * (used(tau) - full) / (used(tau) - used(after))  # linear in between
    return [float(value) for value in at(tau)]


def project(
    y: Array, sizes: Array, budgets: Array, fixed: Bools | None = None, mirror_map: str = "negentropy"
) -> Array:
    """Bregman projection of y' (V,M) onto Y, line 6 of Algorithm 1."""
    if mirror_map == "negentropy":
        return _project_rows(_log(y), sizes, budgets, fixed, mirror_map)
    return _project_rows(y, sizes, budgets, fixed, mirror_map)


def mirror_ascent_step(
    y: Array,
    g: Array,
    lr: float | Array,
    sizes: Array,
    budgets: Array,
    fixed: Bools | None = None,
    mirror_map: str = "negentropy",
) -> Array:
    """Lines 3-6 of Algorithm 1: y' = y*exp(eta*g/s) or y' = y + eta*g, then the projection. `lr` scalar or (V,)."""
    start = _log(y) if mirror_map == "negentropy" else y
    moved = np.zeros(y.shape)
    for v in range(y.shape[0]):
        eta = float(lr[v]) if isinstance(lr, np.ndarray) and lr.ndim else float(lr)
        for m in range(y.shape[1]):
            per_size = float(g[v, m]) / float(sizes[v, m])
            moved[v, m] = start[v, m] + eta * (per_size if mirror_map == "negentropy" else float(g[v, m]))
    return _project_rows(moved, sizes, budgets, fixed, mirror_map)


def _log(y: Array) -> Array:
    return np.array([[math.log(value) if value > 0 else -math.inf for value in row] for row in y])


def _project_rows(dual: Array, sizes: Array, budgets: Array, fixed: Bools | None, mirror_map: str) -> Array:
    """Projects row by row; `dual` holds log y' for the negative entropy, y' for the Euclidean map."""
    if mirror_map not in ("negentropy", "euclidean"):
        raise ValueError(f"unknown mirror map {mirror_map!r}")
    row = negentropy_row if mirror_map == "negentropy" else euclidean_row
    allowed = feasible_set(sizes, budgets, fixed)
    out = allowed.held.copy()
    for v in range(dual.shape[0]):
        moves = [m for m in range(dual.shape[1]) if allowed.movable[v, m]]
        if moves:
            values = row(
                [float(dual[v, m]) for m in moves],
                [float(sizes[v, m]) for m in moves],
                float(allowed.budget[v]),
            )
            for m, value in zip(moves, values, strict=True):
                out[v, m] = value
    return out


def initial_state(sizes: Array, budgets: Array, fixed: Bools | None = None, mirror_map: str = "negentropy") -> Array:
    """y_1 = argmin of the mirror map over Y: b'/||s||_1 everywhere, or the projection of 0."""
    if mirror_map == "euclidean":
        return project(np.zeros(sizes.shape), sizes, budgets, fixed, mirror_map)
    allowed = feasible_set(sizes, budgets, fixed)
    y = allowed.held.copy()
    for v in range(y.shape[0]):
        moves = [m for m in range(y.shape[1]) if allowed.movable[v, m]]
        for m in moves:
            y[v, m] = float(allowed.budget[v]) / math.fsum(float(sizes[v, j]) for j in moves)
    return y


def apply_floor(y: Array, sizes: Array, budgets: Array, fixed: Bools | None, delta: float) -> Array:
    """y <- (1-delta)*y + delta*b'/||s||_1 on the entries that move."""
    allowed = feasible_set(sizes, budgets, fixed)
    uniform = initial_state(sizes, budgets, fixed)
    return np.where(allowed.movable, (1.0 - delta) * y + delta * uniform, y)


# ------------------------------------------------------------------------------------------------ step sizes


def scale_free_step(
    c: float, g: Array, sizes: Array, movable: Bools, sums: Array, mirror_map: str = "negentropy"
) -> tuple[Array, Array]:
    """eta_v = c / sqrt(sum_{tau<=t} max_m (g/s)^2) over the entries that move -> (eta (V,), sums (V,)).

    The Euclidean map has its own dual norm instead, sum_m g^2: with g/s its step would depend on the unit of size.
    """
    new, eta = sums.copy(), np.zeros(sums.shape)
    for v in range(len(sums)):
        moves = [m for m in range(g.shape[1]) if movable[v, m]]
        if mirror_map == "negentropy":
            new[v] += max(((float(g[v, m]) / float(sizes[v, m])) ** 2 for m in moves), default=0.0)
        else:
            new[v] += math.fsum(float(g[v, m]) ** 2 for m in moves)
        eta[v] = c / math.sqrt(new[v]) if new[v] > 0 else 0.0  # a node with nothing to gain does not move
    return eta, new


def sqrt_step(c: float, t: int) -> float:
    """eta = c / sqrt(t), slots counted from 1."""
    return c / math.sqrt(t)


class Theory(NamedTuple):
    """Constants of the guarantee for the negative entropy: eta and the regret psi*norm*sqrt(2*D*T/theta)."""

    psi: float
    theta: float
    D: float
    norm: float
    eta: float
    regret: float


def theoretical_step(inst: Instance, norm: float, slots: int) -> Theory:
    """psi = 1-1/e, theta = 1/sum b', D = sum b'*log(||s||_1/b'), eta = sqrt(2*theta*D/T)/norm; moving nodes only."""
    total_budget, diameter = 0.0, 0.0
    for v in range(inst.sizes.shape[0]):
        moves = [m for m in range(inst.sizes.shape[1]) if inst.feasible.movable[v, m]]
        if moves:
            budget = float(inst.feasible.budget[v])
            total_budget += budget
            diameter += budget * math.log(math.fsum(float(inst.sizes[v, m]) for m in moves) / budget)
    psi = 1.0 - 1.0 / math.e
    theta = 1.0 / total_budget if total_budget > 0 else math.inf
    eta = math.sqrt(2.0 * theta * diameter / slots) / norm if total_budget > 0 and norm > 0 else 0.0
    regret = psi * norm * math.sqrt(2.0 * diameter * slots / theta)
    return Theory(psi, theta, diameter, norm, eta, regret)


def dual_norm(inst: Instance, g: Array) -> float:
    """max |g|/s over the entries that move."""
    moves = zip(*np.nonzero(inst.feasible.movable), strict=True)
    return max((abs(float(g[v, m])) / float(inst.sizes[v, m]) for v, m in moves), default=0.0)


def norm_bound(inst: Instance, r: Array) -> float:
    """A-priori bound on max |g|/s for any y and any l <= min(L, r): K* is at most the first repository rank."""
    lam = potential_capacity(inst, r)
    return dual_norm(inst, subgradient(inst, r, lam, inst.omega))


# ------------------------------------------------------------------------------------------------- rounding

MASK32 = 0xFFFFFFFF


def philox4x32(counter: Sequence[int], key: Sequence[int], rounds: int = 10) -> tuple[int, int, int, int]:
    """Philox4x32-10 of Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (2011)."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for i in range(rounds):
        if i > 0:
            k0, k1 = (k0 + 0x9E3779B9) & MASK32, (k1 + 0xBB67AE85) & MASK32
        product0, product1 = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = (
            (product1 >> 32) ^ c1 ^ k0,
            product1 & MASK32,
            (product0 >> 32) ^ c3 ^ k1,
            product0 & MASK32,
        )
    return c0, c1, c2, c3


def philox_uniforms(seed: int, nodes: int, models: int, slot: int | None = None, bits: int = 53) -> Array:
    """Uniforms (V,M) in [0,1), a function of (seed, node, model) and, for fresh draws, the slot.

    key = (seed low, seed high word); counter = (m // 2, node, slot or 0, 1 with a slot else 0); models 2i and 2i+1
    take the words (0, 1) and (2, 3) of the same block, first word leading, cut to `bits` (24 for float32).
    """
    key = (seed & MASK32, (seed >> 32) & MASK32)
    out = np.zeros((nodes, models))
    for v in range(nodes):
        for m in range(models):
            counter = (m // 2, v, 0, 0) if slot is None else (m // 2, v, slot, 1)
            words = philox4x32(counter, key)
            high, low = words[2 * (m % 2)], words[2 * (m % 2) + 1]
            out[v, m] = ((high << 32 | low) >> (64 - bits)) / 2.0**bits
    return out


def depround_pair(y_i: Any, y_j: Any, s_i: Any, s_j: Any) -> tuple[Any, tuple[Any, Any], tuple[Any, Any]]:
    """One match of DepRound: P(up), (y_i, y_j) after up, (y_i, y_j) after down. Works on any exact number too."""
    a = min(1 - y_i, s_j / s_i * y_j)
    b = min(y_i, s_j / s_i * (1 - y_j))
    one, zero = type(y_i)(1), type(y_i)(0)
    if 1 - y_i <= s_j / s_i * y_j:  # up: the limiting entry gets its value exactly
        up = (one, max(zero, y_j - s_i / s_j * (1 - y_i)))
    else:
        up = (min(one, y_i + s_j / s_i * y_j), zero)
    if 1 - y_j <= s_i / s_j * y_i:  # down: the mirror image, i and j exchanged
        down = (max(zero, y_i - s_j / s_i * (1 - y_j)), one)
    else:
        down = (zero, min(one, y_j + s_i / s_j * y_i))
    return b / (a + b), up, down


def depround_tree(y: Array, sizes: Array, uniforms: Array) -> Array:
    """DepRound over a perfect binary tree of model indices: at most one fractional entry a node is left.

    The match whose right half starts at model j uses uniform j. i is the left half's entry, j the right half's.
    """
    state = y.astype(np.float64)
    models = y.shape[1]
    for v in range(y.shape[0]):
        half = 1
        while half < models:
            for middle in range(half, models, 2 * half):
                i = _fractional(state[v], middle - half, middle)
                j = _fractional(state[v], middle, middle + half)
                if i is None or j is None:
                    continue
                chance, up, down = depround_pair(
                    float(state[v, i]), float(state[v, j]), float(sizes[v, i]), float(sizes[v, j])
                )
                state[v, i], state[v, j] = up if uniforms[v, middle] < chance else down
            half *= 2
    return state


def _fractional(row: Array, start: int, stop: int) -> int | None:
    found = [m for m in range(start, min(stop, len(row))) if 0 < row[m] < 1]
    assert len(found) <= 1
    return found[0] if found else None


def draw_residual(state: Array, uniforms: Array) -> Array:
    """The paper's residual: 1 with probability y (u_0 < y)."""
    x = state.copy()
    for v in range(x.shape[0]):
        m = _fractional(x[v], 0, x.shape[1])
        if m is not None:
            x[v, m] = 1.0 if uniforms[v, 0] < x[v, m] else 0.0
    return x


def depround(y: Array, sizes: Array, uniforms: Array) -> Array:
    """x (V,M) in {0,1} with E[x] = y: the tree, then the drawn residual (mode `draw`)."""
    return draw_residual(depround_tree(y, sizes, uniforms), uniforms)


def depround_strict(inst: Instance, y: Array, uniforms: Array) -> Array:
    """Mode `strict` before the fill: as `depround`, but a residual drawn up that does not fit is dropped."""
    state = depround_tree(y, inst.sizes, uniforms)
    x = draw_residual(state, uniforms)
    for v in range(x.shape[0]):
        m = _fractional(state[v], 0, x.shape[1])
        if m is not None and x[v, m] == 1 and not _fits(inst, x, v):
            x[v, m] = 0.0
    return x


def fill_free_budget(inst: Instance, r: Array, lam: Array, x: Array) -> Array:
    """Mode `strict`, the fill: rounds in which every node adds its free model of best exact marginal gain that fits.

    All nodes look at the same x in a round; only gains > 0 count; ties go to the lower model index.
    """
    x = x.copy()
    while True:
        marginal = marginal_gains(inst, r, lam, x)
        added = False
        for v in range(x.shape[0]):
            fitting = [m for m in range(x.shape[1]) if marginal[v, m] > 0 and _fits(inst, x, v, m)]
            if fitting:
                x[v, max(fitting, key=lambda m: (marginal[v, m], -m))] = 1.0
                added = True
        if not added:
            return x


def _fits(inst: Instance, x: Array, v: int, extra: int | None = None) -> bool:
    """Whether the free models deployed at v, and model `extra` if given, fit in b'."""
    models = [m for m in range(x.shape[1]) if (x[v, m] == 1 or m == extra) and not inst.repository[v, m]]
    size = math.fsum(float(inst.sizes[v, m]) for m in models)
    return size <= float(inst.feasible.budget[v]) + ROUNDING * float(inst.budgets[v])


# --------------------------------------------------------------------------------------------- upper bound


def knapsack_row(g: Sequence[float], s: Sequence[float], budget: float) -> tuple[float, list[float]]:
    """max <g, y> over 0 <= y <= 1, sum s*y <= b': best ratio first, the last item in part -> (value, y)."""
    y = [0.0] * len(s)
    left = budget
    for m in sorted(range(len(s)), key=lambda m: (-g[m] / s[m], m)):
        if g[m] > 0:
            y[m] = min(1.0, left / s[m])
            left = max(0.0, left - y[m] * s[m])
    return math.fsum(g_m * y_m for g_m, y_m in zip(g, y, strict=True)), y


def knapsack(inst: Instance, g: Array) -> float:
    """max <g, y> over Y: a fractional knapsack per node, the entries that do not move at their value."""
    total = float(np.sum(g * inst.feasible.held))
    for v in range(g.shape[0]):
        moves = [m for m in range(g.shape[1]) if inst.feasible.movable[v, m]]
        row_g, row_s = [float(g[v, m]) for m in moves], [float(inst.sizes[v, m]) for m in moves]
        total += knapsack_row(row_g, row_s, float(inst.feasible.budget[v]))[0]
    return total


def cut(inst: Instance, r: Array, lam: Array, y: Array) -> tuple[float, Array]:
    """(G(y) - <g, y>, g): G(y') <= constant + <g, y'> for every y' in Y."""
    g = subgradient(inst, r, lam, y)
    return gain(inst, r, lam, y) - float(np.sum(g * y)), g


def upper_bound(inst: Instance, requests: Array, lam: Array, y: Array) -> float:
    """Bound on the best static time-averaged gain, one cut a slot at y: requests (T,R), lam (T,R,K), y (V,M)."""
    slots = len(requests)
    constant, mean = 0.0, np.zeros(y.shape)
    for t in range(slots):
        constant_t, g = cut(inst, requests[t], lam[t], y)
        constant += constant_t / slots
        mean += g / slots
    return constant + knapsack(inst, mean)


# -------------------------------------------------------------------------------------- control messages


class Message(NamedTuple):
    """What a control message of Sec. IV-B found: gamma_{K*}, the hops it went, the nodes' shares of g (V,M)."""

    cost: float
    hops: int
    contributions: Array


def control_message(inst: Instance, rho: int, r: float, lam: Array, y: Array, prune: bool = False) -> Message:
    """Sec. IV-B, steps 1-4 for one type with r >= 1, hop by hop: node j knows its own options and LB_j only.

    `prune` drops the pending entries after the one where Z + pending reaches r.
    """
    if r < 1:
        raise ValueError("no control message is sent for a type without requests")
    path, models = inst.paths[rho], inst.models_of(inst.type_task[rho])
    available = {place: float(lam[rho, k]) for k, place in enumerate(inst.options[rho])}  # l at (v, m)
    counter = 0.0  # Z
    pending: list[tuple[float, int, int, float]] = []  # P: (gamma, position, model, z)
    found, last, hops = math.nan, math.nan, 0
    for j, v in enumerate(path):
        hops = j + 1
        upstream = [float(gamma) for row in inst.cost[rho][j + 1 :] for gamma in row]
        least_upstream = min(upstream, default=math.inf)  # LB_j
        for q, m in enumerate(models):
            z = available[v, m] * float(y[v, m])  # Eq. (11)
            if z > 0:
                pending.append((float(inst.cost[rho][j, q]), j, m, z))
        pending.sort()
        while pending and pending[0][0] <= least_upstream and not counter >= r:
            last, _, _, z = pending.pop(0)
            counter += z
        if counter >= r:
            found = last
            break
        if prune:
            ahead, keep = counter, 0
            while keep < len(pending) and ahead < r:
                ahead += pending[keep][3]
                keep += 1
            del pending[keep:]
    if math.isnan(found):  # never with a repository on the path: the last rank, as in `k_star`
        found = float(max(gamma for row in inst.cost[rho] for gamma in row))
    contributions = np.zeros(inst.sizes.shape)
    for j in reversed(range(hops)):  # back down
        for q, m in enumerate(models):
            v = path[j]
            h = available[v, m] * (found - float(inst.cost[rho][j, q]))  # Eq. (19)
            contributions[v, m] = max(0.0, h)  # the indicator of eq. (18)
    return Message(found, hops, contributions)


def control_subgradient(inst: Instance, r: Array, lam: Array, y: Array, prune: bool = False) -> Array:
    """Eq. (18) assembled from the control messages of all types with requests: a sum over types, not over models."""
    g = np.zeros(inst.sizes.shape)
    for rho in range(len(inst.paths)):
        if r[rho] >= 1:
            g += control_message(inst, rho, float(r[rho]), lam, y, prune).contributions
    return g


# ------------------------------------------------------------------------------------ popularity, measures


def popularity_average(inst: Instance, average: Array, r: Array, t: int) -> Array:
    """Running mean (V,N) over slots 1..t of the requests of each task whose path passes the node."""
    passing = np.zeros(average.shape)
    for rho, path in enumerate(inst.paths):
        for v in path:
            passing[v, inst.type_task[rho]] += float(r[rho])
    return average + (passing - average) / t


def popularity_placement(inst: Instance, average: Array, local_cost: Array) -> Array:
    """Per node, tasks by decreasing average (> 0), for each the model of least d + alpha*(1-a) (V,M) that fits.

    One model a task; a repository model is already there, so it always fits. Ties go to the lower index.
    """
    x = inst.omega
    for v in range(x.shape[0]):
        for task in sorted(range(average.shape[1]), key=lambda i: (-average[v, i], i)):
            if average[v, task] <= 0:
                continue
            fitting = [m for m in inst.models_of(task) if inst.repository[v, m] or _fits(inst, x, v, m)]
            if fitting:
                x[v, min(fitting, key=lambda m: (local_cost[v, m], m))] = 1.0
    return x


def ntag(gains: Sequence[float] | Array, requests: Array) -> float:
    """Normalised time-averaged gain: the mean of G/sum r over the slots with requests (0 if there are none)."""
    ratios = [float(g) / float(np.sum(r)) for g, r in zip(gains, requests, strict=True) if float(np.sum(r)) > 0]
    return math.fsum(ratios) / len(ratios) if ratios else 0.0


def model_updates(inst: Instance, xs: Sequence[Array]) -> float:
    """MU: the mean over slots 2.. of the size newly loaded, sum s*(x_t - x_{t-1})+ (0 with one slot)."""
    loads = [float(np.sum(inst.sizes * np.maximum(now - before, 0.0))) for before, now in pairwise(xs)]
    return math.fsum(loads) / len(loads) if loads else 0.0


# ----------------------------------------------------------------------------------------------- the loop


class Run(NamedTuple):
    """History of `infida`: what was used in each slot, and the measures at its end."""

    y: list[Array]  # T of (V,M)
    x: list[Array]  # T of (V,M)
    lam: list[Array]  # T of (R,K)
    g: list[Array]  # T of (V,M)
    eta: list[Array]  # T of (V,)
    gain: list[float]  # G(x_t)
    gain_fractional: list[float]  # G(y_t)
    cost: list[float]  # realised
    bound: float  # averaged cuts at y_t, for the observed l_t
    ntag: float
    model_updates: float


def infida(
    inst: Instance,
    requests: Array,
    uniforms: Array,
    *,
    mirror_map: str = "negentropy",
    step: str = "scale_free",
    c: float = 16.0,
    delta: float = 0.0,
    discipline: str = "fcfs",
    orders: Sequence[Sequence[int]] | None = None,
    residual: str = "draw",
    refresh: int = 1,
) -> Run:
    """Algorithm 1 over requests (T,R). `uniforms` (V,M): coupled draws; (T,V,M): slot t is rounded with row t.

    `step`: `scale_free`, `sqrt` or `constant` (theory: its eta as `c`). x_1 in `strict` is not filled: no requests
    have been seen.
    """
    sizes, budgets, fixed = inst.sizes, inst.budgets, inst.repository

    def rounded(y: Array, t: int, seen: tuple[Array, Array] | None) -> Array:
        u = uniforms if uniforms.ndim == 2 else uniforms[t]
        if residual == "draw":
            return depround(y, sizes, u)
        x = depround_strict(inst, y, u)
        return x if seen is None else fill_free_budget(inst, seen[0], seen[1], x)

    y = initial_state(sizes, budgets, fixed, mirror_map)
    x = rounded(y, 0, None)
    sums = np.zeros(len(budgets))
    run = Run([], [], [], [], [], [], [], [], 0.0, 0.0, 0.0)
    constants: list[float] = []
    for t, r in enumerate(requests):
        if discipline == "fcfs":
            outcome = serve_fcfs(inst, r, x, None if orders is None else orders[t])
        else:
            outcome = serve_fair(inst, r, x)
        lam = outcome.capacity
        constant, g = cut(inst, r, lam, y)
        constants.append(constant)
        if step == "scale_free":
            eta, sums = scale_free_step(c, g, sizes, inst.feasible.movable, sums, mirror_map)
        else:
            eta = np.full(len(budgets), sqrt_step(c, t + 1) if step == "sqrt" else c)
        run.y.append(y)
        run.x.append(x)
        run.lam.append(lam)
        run.g.append(g)
        run.eta.append(eta)
        run.gain.append(gain(inst, r, lam, x))
        run.gain_fractional.append(gain(inst, r, lam, y))
        run.cost.append(outcome.cost)
        y = mirror_ascent_step(y, g, eta, sizes, budgets, fixed, mirror_map)
        if delta > 0:
            y = apply_floor(y, sizes, budgets, fixed, delta)
        if t + 1 < len(requests) and (t + 1) % refresh == 0:
            x = rounded(y, t + 1, (r, lam))
    mean = sum(run.g, np.zeros(sizes.shape)) / len(requests)
    return run._replace(
        bound=math.fsum(constants) / len(requests) + knapsack(inst, mean),
        ntag=ntag(run.gain, requests),
        model_updates=model_updates(inst, run.x),
    )
