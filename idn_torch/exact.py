"""Exact optima of small and medium instances by linear and mixed-integer programming (HiGHS, through scipy).

For tests, and for bounds that have no closed form. Everything here works on one instance and one CPU core.
"""

import importlib
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from idn_torch.averaged import merge_rows
from idn_torch.errors import IDNError, InputError
from idn_torch.gain import potential_capacity_kernel
from idn_torch.problem import Problem

__all__ = ["Optimum", "Program", "best_static", "flow_program", "shared_capacity_bound"]


class Optimum(NamedTuple):
    """An exact optimum.

    Attributes:
        gain: mean over the slots, in requests times latency units.
        allocation: one that attains it, `(V, M)`, 1 at repository models.
    """

    gain: float
    allocation: Tensor


class Program(NamedTuple):
    """`min cost.v  s.t.  matrix v <= limit, 0 <= v <= upper`, with v = (f, y): flows first, then allocations.

    Attributes:
        cost: `(F + Y,)`.
        matrix: scipy sparse, `(rows, F + Y)`.
        limit: `(rows,)`.
        upper: `(F + Y,)`.
        flows: F.
        entry: flat index v*M+m of each allocation variable, `(Y,)`.
    """

    cost: NDArray[np.float64]
    matrix: Any
    limit: NDArray[np.float64]
    upper: NDArray[np.float64]
    flows: int
    entry: NDArray[np.int64]


def best_static(
    problem: Problem, requests: Tensor | None = None, lam: Tensor | None = None, integral: bool = True
) -> Optimum:
    """The best static allocation's mean gain, exactly: a program over flows and models.

    `max mean_t sum f * sav  s.t.  f <= lam * y, sum_k f <= r, sum s y <= b', y <= 1`, y whole or not.

    Args:
        problem: the network; one cost table.
        requests: `(T, R)`; the problem's own when None.
        lam: potential capacities of the slots, `(T, R, K)`; `min(L, r)` when None.
        integral: whole models (NP-hard: small instances), or the fractional relaxation.

    Raises:
        InputError: a batch of tables or requests, wrong counts, or a program that HiGHS did not solve.
        IDNError: scipy is not installed.
    """
    return _solve(problem, flow_program(problem, requests, lam), integral)


def shared_capacity_bound(problem: Problem, requests: Tensor | None = None) -> float:
    """What contention allows: a bound on the mean realised gain of static allocations, however requests are served.

    Eq. (16) with l = min(L, r) counts an option's capacity once for every type that may use it. Here the types share
    it: `sum_rho f <= L * y` beside `f <= min(L, r) * y`. The value is concave in r: at the mean of many slots it bounds
    the mean of their values, for instances where all slots together are too large.

    Args, Raises: as `best_static`; requests may be fractional.
    """
    return _solve(problem, flow_program(problem, requests, shared=True), integral=False).gain


def flow_program(
    problem: Problem, requests: Tensor | None = None, lam: Tensor | None = None, shared: bool = False
) -> Program:
    """The program of `best_static`, or with `shared` that of `shared_capacity_bound`, for any solver."""
    sparse = _scipy("sparse")
    ranked = problem.ranked
    if ranked.cost.ndim > 2:
        raise InputError("exact optima are of one instance; this problem has a batch of cost tables")
    if lam is None and not shared:
        requests, share = merge_rows(problem, requests)
    else:
        requests = problem.requests if requests is None else requests
        if requests is None or requests.ndim != 2:
            raise InputError("give requests (T, R) of one instance")
        share = requests.new_full(requests.shape[:1], 1 / max(1, requests.shape[0]), dtype=torch.float64)
    if requests.ndim != 2:
        raise InputError(f"exact optima are of one instance; requests are {tuple(requests.shape)}, not (T, R)")
    lam = potential_capacity_kernel(problem, requests) if lam is None else lam
    saving = (ranked.cost.gather(-1, ranked.first_repository[:, None]) - ranked.cost).double()
    free = problem.feasible.free.flatten()
    before = torch.arange(saving.shape[1], device=saving.device) < ranked.first_repository[:, None]
    usable = ranked.mask & before & (saving > 0) & free[ranked.option.long()]
    slot, kind, rank = (usable & (lam > 0)).nonzero(as_tuple=True)
    option = ranked.option[kind, rank].long()
    entry = free.nonzero()[:, 0].numpy(force=True)
    place = np.full(free.numel(), -1)
    place[entry] = np.arange(len(entry))
    flows, ys = len(slot), len(entry)
    limit = lam[slot, kind, rank].double().numpy(force=True)
    at = place[option.numpy(force=True)]
    worth = (saving[kind, rank] * share[slot]).numpy(force=True)
    t, rho = slot.numpy(force=True), kind.numpy(force=True)
    r = requests.double().numpy(force=True)
    each = np.arange(flows)

    def stacked(flow: Any, allocation: Any) -> Any:
        return sparse.hstack([flow, allocation], format="csr")

    below = stacked(sparse.eye_array(flows), sparse.coo_array((-limit, (each, at)), shape=(flows, ys)))
    _, group = np.unique(t * r.shape[1] + rho, return_inverse=True)
    groups = int(group.max(initial=-1)) + 1
    served = stacked(sparse.coo_array((np.ones(flows), (group, each)), shape=(groups, flows)), _empty(groups, ys))
    most = np.zeros(groups)
    most[group] = r[t, rho]
    nodes, models = problem.shape
    sizes = problem.sizes.double().flatten().numpy(force=True)[entry]
    held = stacked(_empty(nodes, flows), sparse.coo_array((sizes, (entry // models, np.arange(ys))), shape=(nodes, ys)))
    parts, limits = [below, served, held], [np.zeros(flows), most, problem.feasible.budgets.double().numpy(force=True)]
    if shared:
        pairs, group = np.unique(t * ys + at, return_inverse=True)
        capacity = problem.capacity.double().flatten().numpy(force=True)[entry[pairs % ys]]
        count = len(pairs)
        used = sparse.coo_array((np.ones(flows), (group, each)), shape=(count, flows))
        parts.append(stacked(used, sparse.coo_array((-capacity, (np.arange(count), pairs % ys)), shape=(count, ys))))
        limits.append(np.zeros(count))
    return Program(
        cost=np.concatenate([-worth, np.zeros(ys)]),
        matrix=sparse.vstack(parts, format="csr"),
        limit=np.concatenate(limits),
        upper=np.concatenate([np.full(flows, np.inf), np.ones(ys)]),
        flows=flows,
        entry=entry,
    )


def _solve(problem: Problem, program: Program, integral: bool) -> Optimum:
    optimize = _scipy("optimize")
    y = problem.repository.to(problem.dtype).flatten()
    if len(program.cost) == 0:
        return Optimum(0.0, y.view(problem.shape))  # nothing to choose, which HiGHS does not take for a program
    whole = np.zeros(len(program.cost))
    whole[program.flows :] = integral
    found = optimize.milp(
        program.cost,
        constraints=optimize.LinearConstraint(program.matrix, ub=program.limit),
        bounds=optimize.Bounds(0, program.upper),
        integrality=whole,
        options={"mip_rel_gap": 0.0},
    )
    if found.x is None:
        raise InputError(f"HiGHS found no optimum: {found.message}; take a smaller instance")
    y[torch.as_tensor(program.entry, device=y.device)] = torch.as_tensor(found.x[program.flows :]).to(y)
    return Optimum(-float(found.fun), y.view(problem.shape))


def _empty(rows: int, columns: int) -> Any:
    return _scipy("sparse").csr_array((rows, columns))


def _scipy(module: str) -> Any:
    try:
        return importlib.import_module(f"scipy.{module}")
    except ImportError:
        raise IDNError("exact optima need scipy: pip install 'idn-torch[exact]'") from None
