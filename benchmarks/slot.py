"""A whole INFIDA slot and its parts, on a tree of thousands of nodes; peak memory beside.

Run: `python -m benchmarks.slot`.
"""

import ctypes
import gc
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.harness import Report
from idn_torch import generators, kernels
from idn_torch.gain import gain_and_subgradient_kernel
from idn_torch.infida import Infida, drop_overshoot, fill_budgets
from idn_torch.mirror import lift, mirror_step_kernel, slope_norm
from idn_torch.problem import Problem
from idn_torch.rounding import depround_kernel
from idn_torch.serving import serve_kernel


def added_memory(step: Callable[[], Any]) -> int:
    """Bytes by which a step raises the process's resident memory at its highest point; 0 where Linux does not say."""
    status, reset = Path("/proc/self/status"), Path("/proc/self/clear_refs")
    if not reset.exists():
        return 0

    def kilobytes(name: str) -> int:
        return next(int(line.split()[1]) for line in status.read_text().splitlines() if line.startswith(name))

    gc.collect()
    libc = ctypes.CDLL(None)
    if hasattr(libc, "malloc_trim"):
        libc.malloc_trim(0)  # memory freed before but kept by the process would hide what the step takes
    reset.write_text("5")  # the highest point so far becomes the present
    before = kilobytes("VmRSS")
    step()
    return 1024 * max(0, kilobytes("VmHWM") - before)


def print_memory(problem: Problem, path: str, added: int) -> None:
    """What a slot adds to the problem's own tables, against those and the two that it hands out, served and lam."""
    ranked = problem.ranked
    held = sum(t.numel() * t.element_size() for t in vars(ranked).values())
    given = 2 * ranked.cost.numel() * ranked.cost.element_size()
    print(
        f"  memory, {path}: a slot adds {added / 1e6:.0f} MB to the {held / 1e6:.0f} MB of the ranked tables, ", end=""
    )
    print(f"{(held + added) / (held + given):.2f} times these tables, served and lam")


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
    start = time.perf_counter()
    state, _ = policy.step(problem, state, r)
    first = time.perf_counter() - start
    state, _ = policy.step(problem, state, r)
    start = time.perf_counter()
    state, _ = policy.step(problem, state, r)
    print(
        f"  first slot, which loads or compiles the kernels, {first:.2f} s; third {time.perf_counter() - start:.2f} s"
    )
    least = kernels.MIN_ELEMENTS
    for path, kernels.MIN_ELEMENTS in (("compiled", least), ("torch code", 1 << 60)):
        print_memory(problem, path, added_memory(partial(policy.step, problem, state, r)))
    kernels.MIN_ELEMENTS = least
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
    print(f"  whole slot / sum of its parts: {whole / total:.2f}")
    report.finish()


if __name__ == "__main__":
    with torch.no_grad():
        main()
