"""The baselines as plain loops over one instance, on top of `idn_torch.reference`."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from idn_torch import reference as ref

Array = NDArray[np.float64]


def mean_marginals(inst: ref.Instance, requests: Array, x: Array) -> Array:
    """G(x + e) - G(x), mean over slots with l = min(L, r), (V,M)."""
    total = np.zeros(x.shape)
    for r in requests:
        total += ref.marginal_gains(inst, r, ref.potential_capacity(inst, r), x)
    return total / len(requests)


def mean_gain(inst: ref.Instance, requests: Array, x: Array) -> float:
    """Mean gain over slots with l = min(L, r)."""
    return float(np.mean([ref.gain(inst, r, ref.potential_capacity(inst, r), x) for r in requests]))


def fits(inst: ref.Instance, x: Array, v: int, m: int) -> bool:
    """Whether model m, not there yet, fits on node v beside what x has there."""
    if inst.repository[v, m] or x[v, m] == 1:
        return False
    used = sum(inst.sizes[v, j] for j in range(x.shape[1]) if x[v, j] == 1 or inst.repository[v, j])
    return bool(used + inst.sizes[v, m] <= inst.budgets[v] * (1 + 1e-12))


def static_greedy(inst: ref.Instance, requests: Array) -> Array:
    """One model at a time: the best marginal gain per size anywhere that fits; ties to the lower v, then m."""
    x = inst.omega
    while True:
        marginal = mean_marginals(inst, requests, x)
        best, where = 0.0, None
        for v in range(x.shape[0]):
            for m in range(x.shape[1]):
                if fits(inst, x, v, m) and marginal[v, m] / inst.sizes[v, m] > best:
                    best, where = marginal[v, m] / inst.sizes[v, m], (v, m)
        if where is None:
            return x
        x[where] = 1.0


def olag(inst: ref.Instance, r: Array, served: Any, reference: str) -> Array:
    """Each node: the requests that reached it; most saving per size; take off what the model would serve; repeat."""
    x = inst.omega
    for v in range(x.shape[0]):
        phi: dict[int, float] = {}
        price: dict[int, float] = {}
        for rho, path in enumerate(inst.paths):
            if v not in path:
                continue
            j = path.index(v)
            cost = {place: float(inst.ranked.cost[rho, k]) for k, place in enumerate(inst.options[rho])}
            repository = min(c for (u, m), c in cost.items() if inst.repository[u, m])
            here, beyond, paid = 0.0, 0.0, 0.0
            for k, (u, m) in enumerate(inst.options[rho]):
                amount = float(served[rho][k])
                if path.index(u) == j:
                    here += amount
                elif path.index(u) > j:
                    beyond += amount
                    paid += amount * cost[u, m]
            phi[rho] = here + beyond
            if phi[rho] > 0:
                price[rho] = repository if reference == "repository" else (here * repository + paid) / phi[rho]
        while True:
            best, pick, share_of_best = 0.0, None, 0.0
            for m in range(x.shape[1]):
                if not fits(inst, x, v, m):
                    continue
                savings = {rho: saving(inst, rho, v, m, price[rho]) for rho in price}
                volume = sum(phi[rho] for rho, s in savings.items() if s > 0)
                if volume <= 0:
                    continue
                share = min(1.0, inst.capacity[v, m] / volume)
                density = share * sum(phi[rho] * s for rho, s in savings.items()) / inst.sizes[v, m]
                if density > best:
                    best, pick, share_of_best = density, m, share
            if pick is None:
                break
            x[v, pick] = 1.0
            for rho in price:
                if saving(inst, rho, v, pick, price[rho]) > 0:
                    phi[rho] *= 1 - share_of_best
    return x


def saving(inst: ref.Instance, rho: int, v: int, m: int, price: float) -> float:
    """What a request of type rho saves on (v, m) against its price; 0 if it has no such option."""
    for k, place in enumerate(inst.options[rho]):
        if place == (v, m):
            return max(0.0, price - float(inst.ranked.cost[rho, k]))
    return 0.0


def random_feasible(inst: ref.Instance, numbers: Array) -> Array:
    """Models of each node in order of their numbers, each that fits."""
    x = inst.omega
    for v in range(x.shape[0]):
        for m in sorted(range(x.shape[1]), key=lambda m: (numbers[v, m], m)):
            if fits(inst, x, v, m):
                x[v, m] = 1.0
    return x


def respond(
    inst: ref.Instance, r: Array, y: Array, before: Array | None, step: float
) -> tuple[list[float], Array, float]:
    """Prices of one row by bisection on their own optimality condition, g(nu), and G(y)."""
    lam = ref.potential_capacity(inst, r)
    prices, g = [], np.zeros(y.shape)
    for rho, options in enumerate(inst.options):
        costs = [float(inst.ranked.cost[rho, k]) for k in range(len(options))]
        repository = min(c for c, (v, m) in zip(costs, options, strict=True) if inst.repository[v, m])
        savings = [repository - c for c in costs]
        z = [float(lam[rho, k]) * float(y[v, m]) for k, (v, m) in enumerate(options)]

        def excess(nu: float, strict: bool, rho=rho, savings=savings, z=z) -> float:
            """Demand left at price nu, plus the pull of the price before: rises in nu."""
            used = sum(a for a, s in zip(z, savings, strict=True) if (s > nu if strict else s >= nu))
            pull = 0.0
            if before is not None and savings[0] > 0:
                pull = max(float(r[rho]), 1.0) * (nu - float(before[rho])) / (step * savings[0])
            return float(r[rho]) - used + pull

        if before is None or savings[0] <= 0:
            # The first rank whose S reaches r.
            total, nu = 0.0, 0.0
            for a, s in zip(z, savings, strict=True):
                total += a
                if total >= r[rho]:
                    nu = max(0.0, s)
                    break
        else:
            low, high = 0.0, max(savings[0], float(before[rho])) + step * savings[0] * 10 + 1
            for _ in range(200):
                middle = (low + high) / 2
                if excess(middle, strict=True) < 0:
                    low = middle
                else:
                    high = middle
            nu = high if high > 1e-12 else 0.0
        prices.append(nu)
        for k, (v, m) in enumerate(options):
            if not inst.repository[v, m]:
                g[v, m] += float(lam[rho, k]) * max(0.0, savings[k] - nu)
    return prices, g, ref.gain(inst, r, lam, y)
