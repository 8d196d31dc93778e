"""Oracles of the shared-capacity gain: the program itself by scipy's LP solver, the dual iteration in plain loops."""

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import linprog

import idn_torch as idn

Array = NDArray[np.float64]


class Entry(NamedTuple):
    """A rank before its type's first repository."""

    type: int
    rank: int
    option: tuple[int, int]
    saving: float


def entries(problem: idn.Problem) -> list[Entry]:
    """All of them, straight from paths and costs."""
    out = []
    models = problem.shape[1]
    ranked = problem.ranked
    for rho in range(len(problem.type_ids)):
        first = int(ranked.first_repository[rho])
        for k in range(first):
            option = divmod(int(ranked.option[rho, k]), models)
            assert not problem.repository[option]
            out.append(Entry(rho, k, option, float(ranked.cost[rho, first] - ranked.cost[rho, k])))
    return out


def exact(problem: idn.Problem, r: torch.Tensor, y: torch.Tensor) -> tuple[float, dict[tuple[int, int], float]]:
    """G*(y) and the optimal requests f at each (type, rank), by HiGHS."""
    found = entries(problem)
    requests, allocation, capacity = r.tolist(), y.tolist(), problem.capacity.tolist()
    if not found:
        return 0.0, {}
    rows: dict[tuple[str, object], int] = {}
    limit: list[float] = []
    matrix = np.zeros((len(found) * 2, len(found)))
    for j, entry in enumerate(found):
        v, m = entry.option
        for key, most in (
            (("type", entry.type), requests[entry.type]),
            (("option", entry.option), capacity[v][m] * allocation[v][m]),
        ):
            if key not in rows:
                rows[key] = len(rows)
                limit.append(most)
            matrix[rows[key], j] = 1
    most = [requests[e.type] * allocation[e.option[0]][e.option[1]] for e in found]
    answer = linprog(
        [-e.saving for e in found],
        A_ub=matrix[: len(rows)],
        b_ub=limit,
        bounds=[(0, m) for m in most],
        method="highs",
    )
    assert answer.status == 0, answer.message
    return -float(answer.fun), {(e.type, e.rank): float(f) for e, f in zip(found, answer.x, strict=True)}


def bound_at(problem: idn.Problem, r: torch.Tensor, y: torch.Tensor, nu: Array, mu: Array) -> tuple[float, Array]:
    """`sum r*nu + <g, y>` and `g = L*mu + sum r*relu(sav - nu - mu)` for any prices."""
    g = np.where(problem.repository.numpy(), 0.0, problem.capacity.double().numpy() * mu)
    for e in entries(problem):
        g[e.option] += float(r[e.type]) * max(0.0, e.saving - nu[e.type] - mu[e.option])
    return float(r.double().numpy() @ nu + (g * y.double().numpy()).sum()), g


def iterate(
    problem: idn.Problem, r: torch.Tensor, y: torch.Tensor, iterations: int
) -> tuple[dict[tuple[int, int], float], Array, Array]:
    """The primal-dual iteration from zero: phi by (type, rank), nu and mu."""
    found = entries(problem)
    nu, mu = np.zeros(len(r)), np.zeros(problem.shape)
    phi = {(e.type, e.rank): 0.0 for e in found}
    requests, allocation = r.double().numpy(), y.double().numpy()
    best, count, reach = np.zeros(len(r)), np.zeros(len(r)), np.zeros(problem.shape)
    for e in found:
        best[e.type] = max(best[e.type], e.saving)
        count[e.type] += 1
        reach[e.option] += requests[e.type]
    mean = requests @ best / max(requests.sum(), 1)
    w = 0.3 / (mean if mean > 0 else 1.0)
    for _ in range(iterations):
        ahead, at_type, at_option = {}, np.zeros(len(r)), np.zeros(problem.shape)
        for e in found:
            key = (e.type, e.rank)
            step = phi[key] + w / 2 * (e.saving - nu[e.type] - mu[e.option])
            q = min(max(step, 0.0), allocation[e.option])
            ahead[key] = 2 * q - phi[key]
            phi[key] = q
            at_type[e.type] += ahead[key]
            at_option[e.option] += requests[e.type] * ahead[key]
        for rho in range(len(r)):
            nu[rho] = max(0.0, nu[rho] + (at_type[rho] - 1) / (max(count[rho], 1) * w))
        for v, m in {e.option for e in found}:
            if reach[v, m] > 0:
                room = float(problem.capacity[v, m]) * allocation[v, m]
                mu[v, m] = max(0.0, mu[v, m] + (at_option[v, m] - room) / (reach[v, m] * w))
    return phi, nu, mu


def close(problem: idn.Problem, r: torch.Tensor, y: torch.Tensor, nu: Array, mu: Array) -> tuple[float, Array]:
    """Bound and g at the exact best nu for these mu, then the exact best mu for those nu, by trying every kink."""
    found = entries(problem)
    best_nu, best_mu = np.zeros_like(nu), np.zeros_like(mu)
    for rho in range(len(nu)):
        own = [(float(y[e.option]), e.saving - mu[e.option]) for e in found if e.type == rho]
        kinks = [0.0, *(value for _, value in own if value > 0)]
        best_nu[rho] = min(kinks, key=lambda t: t + sum(a * max(0.0, v - t) for a, v in own))
    for option in {e.option for e in found}:
        own = [(float(r[e.type]), e.saving - best_nu[e.type]) for e in found if e.option == option]
        full = float(problem.capacity[option])
        kinks = [0.0, *(value for _, value in own if value > 0)]
        best_mu[option] = min(kinks, key=lambda t: full * t + sum(a * max(0.0, v - t) for a, v in own))
    return bound_at(problem, r, y, best_nu, best_mu)
