"""How the time of an INFIDA slot and of its kernels grows with R, K, V and B, each varied alone over a factor of 16.

The other sizes stay: nodes that no path meets are added for V, models of every task for K (and so M), further types
like those that are there for R. An exponent of 1 is linear; where it is less, part of the time does not depend on the
size, and 0 means none of it does.

The least processor time is fitted: with threads that sleep while they wait, it is the work of all of them, and other
programs disturb it little. Run: `python -m benchmarks.scaling --plot scaling.png`.
"""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch

from benchmarks.harness import Report
from idn_torch import generators
from idn_torch.gain import gain_and_subgradient_kernel
from idn_torch.infida import Infida
from idn_torch.mirror import mirror_step_kernel
from idn_torch.problem import Problem
from idn_torch.rounding import depround_kernel
from idn_torch.serving import serve_kernel

TASKS = 20
FACTORS = (1, 2, 4, 8, 16)
# Smallest sizes of each sweep: all large enough for the compiled kernels.
SWEEPS: dict[str, dict[str, int]] = {
    "R": {"nodes": 512, "types": 10_240, "models": 30, "batch": 1},
    "K": {"nodes": 4096, "types": 20_000, "models": 4, "batch": 1},
    "V": {"nodes": 1024, "types": 20_000, "models": 30, "batch": 1},
    "B": {"nodes": 256, "types": 5_000, "models": 10, "batch": 8},
}
VARIED = {"R": "types", "K": "models", "V": "nodes", "B": "batch"}


def repeated(problem: Problem, times: int) -> Problem:
    """The problem with every request type so many times."""
    ranked = problem.ranked
    tables = {f.name: getattr(ranked, f.name) for f in dataclasses.fields(ranked)}
    assert problem.requests is not None
    assert problem.path_latency is not None
    return dataclasses.replace(
        problem,
        type_ids=problem.type_ids * times,
        type_task=problem.type_task.repeat(times),
        paths=problem.paths.repeat(times, 1),
        path_latency=problem.path_latency.repeat(times, 1),
        requests=problem.requests.repeat(1, times),
        ranked=type(ranked)(**{name: t.repeat(times, *(1,) * (t.ndim - 1)) for name, t in tables.items()}),
    )


def ways(nodes: int, types: int, models: int, batch: int) -> tuple[dict[str, Callable[[], Any]], dict[str, int]]:
    """The whole slot and its kernels on one problem, and the problem's letters."""
    depth = 2 + int(np.ceil(np.log(nodes) / np.log(8)))
    once = min(types, nodes * TASKS)
    problem = repeated(generators.tree(nodes, 8, depth, TASKS, models, once), types // once)
    assert problem.requests is not None
    policy = Infida()
    state = policy.init(problem, torch.arange(batch))
    r = problem.requests[0]
    for t in range(3):
        state, _ = policy.step(problem, state, problem.requests[t])
    served = serve_kernel(problem, r, state.x)
    _, slope = gain_and_subgradient_kernel(problem, r, served.capacity, state.y)
    step = (state.y, slope, torch.full((nodes, 1), 1e-3), problem.sizes, problem.feasible, "negentropy")
    parts: dict[str, Callable[[], Any]] = {
        "whole slot": partial(policy.step, problem, state, r),
        "serve": partial(serve_kernel, problem, r, state.x),
        "gain and subgradient": partial(gain_and_subgradient_kernel, problem, r, served.capacity, state.y),
        "step and projection": partial(mirror_step_kernel, *step),
        "DepRound": partial(depround_kernel, state.y, problem.sizes, state.uniforms),
    }
    ranks = problem.ranked.cost.shape[1]
    return parts, {"R": types, "K": ranks, "V": nodes, "B": batch}


def exponent(sizes: list[int], seconds: list[float]) -> float:
    """Slope of the least-squares line through the logarithms."""
    return float(np.polyfit(np.log(sizes), np.log(seconds), 1)[0])


def plot(path: str, curves: dict[str, dict[str, tuple[list[int], list[float]]]]) -> None:
    """One panel a letter, logarithmic axes, a dashed line of slope 1 through the last whole slot."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, panels = plt.subplots(1, len(curves), figsize=(4 * len(curves), 3.6), sharey=True, layout="constrained")
    for panel, (letter, kernels) in zip(panels, curves.items(), strict=True):
        for name, (sizes, seconds) in kernels.items():
            label = f"{name}: {exponent(sizes, seconds):.2f}"
            panel.loglog(sizes, [1e3 * s for s in seconds], "o-", markersize=3, label=label)
        sizes, seconds = kernels["whole slot"]
        panel.loglog(sizes, [1e3 * seconds[-1] * size / sizes[-1] for size in sizes], "k--", linewidth=0.8)
        panel.set_xlabel(letter)
        panel.minorticks_off()
        panel.set_xticks(sizes, [str(size) for size in sizes])
        panel.legend(fontsize="x-small", title="exponents", title_fontsize="x-small")
    panels[0].set_ylabel("milliseconds of processor time")
    figure.savefig(path, dpi=150)
    plt.close(figure)


def main() -> None:
    report = Report("scaling", plot=("", "draw the curves to this file"))
    curves: dict[str, dict[str, tuple[list[int], list[float]]]] = {}
    for letter, base in SWEEPS.items():
        curves[letter] = {}
        for factor in FACTORS:
            parts, letters = ways(**{**base, VARIED[letter]: base[VARIED[letter]] * factor})
            label = ", ".join(f"{key} {value}" for key, value in letters.items())
            for name, times in report.each(label, parts, varied=letter, **letters).items():
                sizes, seconds = curves[letter].setdefault(name, ([], []))
                sizes.append(letters[letter])
                seconds.append(times.least_processor)
        fits = {name: exponent(*curve) for name, curve in curves[letter].items()}
        print(f"  time ~ {letter}^e: " + ", ".join(f"{name} {value:.2f}" for name, value in fits.items()), flush=True)
        report.rows.append({"case": f"exponents in {letter}", **fits})
    if report.options.plot:
        plot(report.options.plot, curves)
    report.finish()


if __name__ == "__main__":
    with torch.no_grad():
        main()
