"""Gain and subgradient: the library against eager torch as one would write it, and a full pass in numba.

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


def main() -> None:
    report = Report("gain and subgradient", types=(80_000, "request types"))
    problem = generators.tree(request_types=report.options.types)
    assert problem.requests is not None
    ranked = problem.ranked
    y = Infida().init(problem).y
    table = ranked.cost.numel()
    option = ranked.option.long()
    arrays = ranked.cost.numpy(), ranked.option.numpy()
    for label, factor in (("shallow K*", 1.0), ("deep K*", 30.0)):
        r = (problem.requests[0] * factor).floor()
        lam = potential_capacity_kernel(problem, r)
        slopes = np.zeros((report.options.threads, y.numel()), np.float32)

        def numba_pass(r=r, lam=lam, slopes=slopes):  # type: ignore[no-untyped-def]
            slopes[:] = 0
            return full_pass(*arrays, r.numpy(), lam.numpy(), y.flatten().numpy(), slopes)

        depth = (lam * y.flatten()[option]).cumsum(1)
        depth = (depth < r[:, None]).sum(1).double().mean() / ranked.cost.shape[1]
        report.compare(
            f"{label} ({float(depth):.0%} of ranks)",
            {
                "ours": partial(gain_and_subgradient_kernel, problem, r, lam, y),
                "eager torch": partial(eager, ranked.cost, option, r, lam, y.flatten()),
                "numba, every rank": numba_pass,
            },
            least_bytes=int(12 * table * float(depth)),
        )
    report.finish()


if __name__ == "__main__":
    with torch.no_grad():
        main()
