"""Gain and subgradient: the library against eager torch as one would write it, and numba with and without early exit.

Run from the repository root: `python -m benchmarks.gain`.
"""

from functools import partial

import numpy as np
import torch
from numba import njit, prange

from benchmarks.harness import Report
from idn_torch import generators
from idn_torch.gain import gain_and_subgradient_kernel, potential_capacity_kernel
from idn_torch.infida import Infida


def eager(cost, option, r, lam, y):  # type: ignore[no-untyped-def]
    """Eqs. (16) and (18) on whole tables."""
    z = lam * y[option]
    reached = z.cumsum(1)
    steps = cost.diff(dim=1)
    value = (steps * torch.minimum(reached, r[:, None])[:, :-1]).sum()
    k_star = (reached < r[:, None]).sum(1, keepdim=True).clamp(max=cost.shape[1] - 1)
    h = lam * (cost.gather(1, k_star) - cost).relu()
    return value, torch.zeros_like(y).index_add_(0, option.flatten(), h.flatten())


@njit(parallel=True)
def full_pass(cost, option, r, lam, y, slopes):  # type: ignore[no-untyped-def]
    """Every rank of every type; one slope array a thread block."""
    types, ranks = cost.shape
    blocks = slopes.shape[0]
    total = np.zeros(blocks)
    for block in prange(blocks):
        for rho in range(block * types // blocks, (block + 1) * types // blocks):
            reached, k_star = 0.0, ranks - 1
            for k in range(ranks):
                before = reached
                reached += lam[rho, k] * y[option[rho, k]]
                if before < r[rho] <= reached:
                    k_star = k
                if k + 1 < ranks:
                    total[block] += (cost[rho, k + 1] - cost[rho, k]) * min(reached, r[rho])
            for k in range(ranks):
                slopes[block, option[rho, k]] += lam[rho, k] * max(cost[rho, k_star] - cost[rho, k], 0)
    return total.sum(), slopes.sum(0)


@njit(parallel=True)
def early_exit(cost, option, r, lam, y, slopes):  # type: ignore[no-untyped-def]
    """Ranks up to K* only, the gain by the identity between eqs. (16) and (18) but for the repositories' costs."""
    types, ranks = cost.shape
    blocks = slopes.shape[0]
    totals = np.zeros(blocks)
    for block in prange(blocks):
        total = 0.0
        for rho in range(block * types // blocks, (block + 1) * types // blocks):
            reached, k_star = 0.0, ranks - 1
            for k in range(ranks):
                reached += lam[rho, k] * y[option[rho, k]]
                if reached >= r[rho]:
                    k_star = k
                    break
            for k in range(k_star):
                h = lam[rho, k] * (cost[rho, k_star] - cost[rho, k])
                slopes[block, option[rho, k]] += h
                total += h * y[option[rho, k]]
            total -= r[rho] * cost[rho, k_star]
        totals[block] = total
    return totals.sum(), slopes.sum(0)


def main() -> None:
    report = Report("gain and subgradient", types=(80_000, "request types"))
    problem = generators.tree(request_types=report.options.types)
    assert problem.requests is not None
    ranked = problem.ranked
    even = Infida().init(problem).y
    table = ranked.cost.numel()
    option = ranked.option.long()
    arrays = ranked.cost.numpy(), ranked.option.numpy()
    # Requests and fractions that lead K* ever deeper: a fifth of the fractions is 6 % of the budgets.
    for label, factor, share in (("shallow K*", 1.0, 1.0), ("deep K*", 30.0, 1.0), ("last K*", 30.0, 0.2)):
        r = (problem.requests[0] * factor).floor()
        y = torch.where(problem.repository, 1.0, even * share)
        lam = potential_capacity_kernel(problem, r)
        slopes = np.zeros((report.options.threads, y.numel()), np.float32)

        def by_numba(kernel, r=r, lam=lam, y=y, slopes=slopes):  # type: ignore[no-untyped-def]
            slopes[:] = 0
            return kernel(*arrays, r.numpy(), lam.numpy(), y.flatten().numpy(), slopes)

        depth = (lam * y.flatten()[option]).cumsum(1)
        depth = (depth < r[:, None]).sum(1).double().mean() / ranked.cost.shape[1]
        report.compare(
            f"{label} ({float(depth):.0%} of ranks)",
            {
                "ours": partial(gain_and_subgradient_kernel, problem, r, lam, y),
                "eager torch": partial(eager, ranked.cost, option, r, lam, y.flatten()),
                "numba, every rank": partial(by_numba, full_pass),
                "numba, early exit": partial(by_numba, early_exit),
            },
            least_bytes=int(12 * table * float(depth)),
        )
    report.finish()


if __name__ == "__main__":
    with torch.no_grad():
        main()
