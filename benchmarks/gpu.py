"""The hot kernels and a whole slot on a GPU: correctness against the CPU first, then time against copy bandwidth.

Run: `python -m benchmarks.gpu`; `--device cpu` only shows that the script itself works. Inputs rotate through several
copies, so that no cache serves a whole pass.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from idn_torch import generators
from idn_torch.gain import gain_and_subgradient_kernel
from idn_torch.infida import Infida
from idn_torch.mirror import mirror_step_kernel
from idn_torch.problem import Problem
from idn_torch.rounding import depround_kernel
from idn_torch.serving import serve_kernel

COPIES = 3


def median_ms(ways: Sequence[Callable[[], Any]], device: torch.device, repeats: int) -> float:
    """Median time of one call, in ms; the calls take turns. Device events on a GPU, the clock elsewhere."""
    for way in ways:
        way()
    times = []
    for turn in range(repeats):
        if device.type == "cuda":
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            ways[turn % len(ways)]()
            end.record()
            end.synchronize()
            times.append(start.elapsed_time(end))
        else:
            began = time.perf_counter()
            ways[turn % len(ways)]()
            times.append((time.perf_counter() - began) * 1e3)
    return statistics.median(times)


def check(problem: Problem, device: torch.device) -> None:
    """The run on the device equals the one on the CPU, in float64, at a size where both are quick."""
    from idn_torch.simulation import run

    here = run(problem, Infida(), seed=torch.arange(2))
    there = run(problem.to(device), Infida(), seed=torch.arange(2))
    for name in ("gain", "gain_fractional", "cost", "model_updates"):
        a, b = getattr(here, name), getattr(there, name).cpu()
        if not torch.allclose(a, b, rtol=1e-9):
            raise SystemExit(f"{name} differs between the CPU and {device}: {float((a - b).abs().max()):g}")
    print(f"correct: a run on {device} equals the one on the CPU")


def cases(problem: Problem) -> dict[str, tuple[Sequence[Callable[[], Any]], int]]:
    """Each kernel's calls on rotating inputs, and the bytes it has to move at least."""
    assert problem.requests is not None
    policy = Infida()
    r = problem.requests[0]
    state = policy.init(problem)
    for _ in range(2):
        state, _ = policy.step(problem, state, r)
    served = serve_kernel(problem, r, state.x)
    _, slope = gain_and_subgradient_kernel(problem, r, served.capacity, state.y)

    def copies(tensor: Tensor) -> list[Tensor]:
        return [tensor.clone() for _ in range(COPIES)]

    lams, ys, slopes = copies(served.capacity), copies(state.y), copies(slope)
    eta = torch.full((problem.shape[0], 1), 1e-3, device=problem.device)
    table, matrix = problem.ranked.cost.numel(), problem.sizes.numel()
    item = problem.ranked.cost.element_size()
    where = problem.feasible
    gains = [partial(gain_and_subgradient_kernel, problem, r, lam, y) for lam, y in zip(lams, ys, strict=True)]
    steps = [
        partial(mirror_step_kernel, y, g, eta, problem.sizes, where, "negentropy")
        for y, g in zip(ys, slopes, strict=True)
    ]
    rounds = [partial(depround_kernel, y, problem.sizes, state.uniforms) for y in ys]
    return {
        "gain and subgradient": (gains, table * (2 * item + problem.ranked.option.element_size())),
        "mirror step and projection": (steps, 4 * matrix * item),
        "DepRound": (rounds, 4 * matrix * item),
        "serve": ([lambda: serve_kernel(problem, r, state.x)], table * (2 * item + 4)),
        "whole slot": ([lambda: policy.step(problem, state, r)], table * (4 * item + 8)),
    }


def copy_bandwidth(device: torch.device) -> float:
    """Bytes a second that a plain copy moves, reads and writes counted."""
    source = torch.ones(1 << 28 if device.type == "cuda" else 1 << 24, device=device)
    target = torch.empty_like(source)
    return 2 * 4 * source.numel() / median_ms([partial(target.copy_, source)], device, 20) * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", default="float32", choices=("float32", "float64"))
    parser.add_argument("--nodes", type=int, default=4096)
    parser.add_argument("--types", type=int, default=80_000)
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    device = torch.device(options.device)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else str(device)
    check(generators.tree(nodes=73, tasks=4, models_per_task=8, dtype=torch.float64), device)
    bandwidth = copy_bandwidth(device)
    problem = generators.tree(
        nodes=options.nodes, request_types=options.types, dtype=getattr(torch, options.dtype), device=device
    )
    print(f"{name}, {options.dtype}, (V, M) = {problem.shape}, (R, K) = {tuple(problem.ranked.cost.shape)}")
    print(f"copy bandwidth {bandwidth / 1e9:.0f} GB/s")
    rows = {}
    for label, (ways, least_bytes) in cases(problem).items():
        ms = median_ms(ways, device, options.repeats)
        share = least_bytes / (ms / 1e3) / bandwidth
        rows[label] = {"ms": ms, "least_bytes": least_bytes, "share_of_bandwidth": share}
        print(f"  {label:28s} {ms:9.3f} ms {share:7.0%} of bandwidth")
    if options.json:
        head = {"device": name, "dtype": options.dtype, "torch": torch.__version__, "bandwidth": bandwidth}
        options.json.write_text(json.dumps({**head, "rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    with torch.no_grad():
        main()
