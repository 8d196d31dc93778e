"""A whole INFIDA slot and its parts, on a tree of thousands of nodes; peak memory beside.

Run: `python -m benchmarks.slot`.
"""

import resource
import time

import torch

from benchmarks.harness import Report
from idn_torch import generators
from idn_torch.gain import gain_and_subgradient_kernel
from idn_torch.infida import Infida, drop_overshoot, fill_budgets
from idn_torch.mirror import lift, mirror_step_kernel, slope_norm
from idn_torch.rounding import depround_kernel
from idn_torch.serving import serve_kernel


def main() -> None:
    report = Report("whole slot", nodes=(4096, "nodes"), types=(80_000, "request types"))
    start = time.perf_counter()
    problem = generators.tree(nodes=report.options.nodes, request_types=report.options.types)
    print(f"  problem built in {time.perf_counter() - start:.2f} s: (V, M) = {problem.shape}, ", end="")
    print(f"(R, K) = {tuple(problem.ranked.cost.shape)}, {problem.dtype}")
    policy = Infida()
    assert problem.requests is not None
    r = problem.requests[0]
    state = policy.init(problem)
    for _ in range(3):
        state, _ = policy.step(problem, state, r)
    where, sizes = problem.feasible, problem.sizes
    served = serve_kernel(problem, r, state.x)
    _, slope = gain_and_subgradient_kernel(problem, r, served.capacity, state.y)
    eta = torch.full((problem.shape[0], 1), 1e-3)
    rounded = depround_kernel(state.y, sizes, state.uniforms)
    kept = drop_overshoot(problem, rounded.x, rounded.residual)
    parts = {
        "serve": lambda: serve_kernel(problem, r, state.x),
        "gain and subgradient": lambda: gain_and_subgradient_kernel(problem, r, served.capacity, state.y),
        "slope norm": lambda: slope_norm(slope, sizes, where, "negentropy"),
        "step and projection": lambda: mirror_step_kernel(state.y, slope, eta, sizes, where, "negentropy"),
        "floor": lambda: lift(state.y, sizes, where, 1e-3),
        "DepRound": lambda: depround_kernel(state.y, sizes, state.uniforms),
        "drop and fill": lambda: fill_budgets(problem, kept, r, served.capacity),
    }
    total = 0.0
    for name, part in parts.items():
        total += report.compare(name, {"ours": part})["ours"]
    whole = report.compare("whole slot", {"ours": lambda: policy.step(problem, state, r)})["ours"]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"  whole slot / sum of its parts: {whole / total:.2f}; peak memory of the process {peak:.2f} GiB")
    report.finish()


if __name__ == "__main__":
    with torch.no_grad():
        main()
