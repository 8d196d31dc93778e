"""The batch axis: many seeds, or many step sizes, of one small network in one batch, against a loop of single runs.

Run: `python -m benchmarks.batch`.
"""

import importlib.resources
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import idn_torch as idn
from benchmarks.harness import Report
from idn_torch import networks


def runs(problem: idn.Problem, seeds: Tensor, steps: Tensor, gains: dict[str, Tensor]) -> dict[str, Callable[[], Any]]:
    """All instances at once, and one after the other; both leave their mean gains, `(B,)`, in `gains`."""

    def batch() -> None:
        gains["batch"] = idn.run(problem, idn.Infida(c=steps), seed=seeds).gain.mean(-1)

    def loop() -> None:
        pairs = zip(seeds.tolist(), steps.tolist(), strict=True)
        each = [idn.run(problem, idn.Infida(c=step), seed=seed).gain for seed, step in pairs]
        gains["loop"] = torch.stack(each).mean(-1)

    return {"one batch": batch, "a run after the other": loop}


def main() -> None:
    report = Report("batches", instances=(64, "instances"), slots=(30, "slots of the backbone"))
    example = importlib.resources.files("idn_torch.app") / "examples" / "campus.yaml"
    with importlib.resources.as_file(example) as path:
        problems = {
            "germany50": networks.backbone(slots=report.options.slots),
            "campus": idn.load_problem(path),
        }
    instances = report.options.instances
    seeds, steps = torch.arange(instances), torch.logspace(-1, 2, instances, dtype=torch.float64)
    for name, problem in problems.items():
        assert problem.requests is not None
        shape = "(T, V, M, R, K) = " + str((len(problem.requests), *problem.shape, *problem.ranked.cost.shape))
        print(f"  {name}: {shape}, {instances} instances")
        for what, given in {
            "seeds": (seeds, torch.full_like(steps, 16.0)),
            "step sizes": (torch.zeros_like(seeds), steps),
        }.items():
            gains: dict[str, Tensor] = {}
            report.compare(f"{name}, {what}", runs(problem, *given, gains))
            # Large batches run in the compiled kernels, whose sums round differently: a tie may fall the other way.
            apart = ((gains["batch"] - gains["loop"]) / gains["loop"]).abs()
            print(f"  {'':28s} mean gains: {int((apart < 1e-12).sum())} of {instances} the same to 12 digits, ", end="")
            print(f"the others within {float(apart.max()):.1e}")
    report.finish()


if __name__ == "__main__":
    with torch.no_grad():
        main()
