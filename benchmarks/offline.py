"""The offline optimum, certified to 0.1 %, against HiGHS' dual simplex on the same program in flow form.

Run from the repository root: `python -m benchmarks.offline`. HiGHS runs once: it takes half a minute.
"""

import time
from functools import partial

import numpy as np
import torch
from scipy.optimize import linprog

from benchmarks.harness import Report
from idn_torch import generators, networks
from idn_torch.exact import flow_program
from idn_torch.offline import OfflineResult, offline


def main() -> None:
    report = Report(
        "offline optimum",
        nodes=(1000, "nodes"),
        tasks=(20, "tasks"),
        models=(10, "models a task"),
        highs=(1, "0 leaves HiGHS out"),
    )
    options = report.options
    problem = generators.tree(
        nodes=options.nodes, branching=3, depth=8, tasks=options.tasks, models_per_task=options.models
    )
    assert problem.requests is not None
    for label, factor in (("many requests", 1.0), ("few requests", 0.05)):
        requests = (problem.requests[:1] * factor).floor()
        result = offline(problem, requests)
        ours = report.compare(label, {"ours, 1 rounding": partial(offline, problem, requests, roundings=1)})
        report.compare(label, {"ours, 64 roundings": partial(offline, problem, requests)})
        show(result)
        if options.highs:
            program = flow_program(problem.to(dtype=torch.float64), requests.double())
            bounds = np.stack([np.zeros_like(program.upper), program.upper], 1)
            start = time.perf_counter()
            found = linprog(program.cost, program.matrix, program.limit, bounds=bounds, method="highs-ds")
            seconds = time.perf_counter() - start
            ratio = seconds / ours["ours, 1 rounding"]
            print(f"  {label:32s} HiGHS, {program.flows} flows: {seconds:.1f} s, {ratio:.0f} x ours", end="")
            inside = float(result.gain_fractional) <= -found.fun * (1 + 1e-6) <= float(result.upper_bound) * (1 + 2e-6)
            print(f"; its optimum {'lies' if inside else 'DOES NOT LIE'} in our bracket")
            report.rows.append({"case": label, "seconds": {"HiGHS dual simplex": seconds}, "flows": program.flows})
    backbone = networks.backbone()
    report.compare("default experiment, 120 slots", {"ours, 64 roundings": partial(offline, backbone)})
    show(offline(backbone))
    report.finish()


def show(result: OfflineResult) -> None:
    """What was certified."""
    print(
        f"  {'':32s} gap {float(result.gap):.2e} after {int(result.iterations)} iterations, "
        f"best rounding {float(result.gain / result.upper_bound):.4f} of the bound"
    )


if __name__ == "__main__":
    main()
