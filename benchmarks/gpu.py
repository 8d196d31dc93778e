"""The hot kernels, AIMD events and a whole slot on a GPU: correctness first, then time against copy bandwidth.

Run: `python -m benchmarks.gpu`; `--device cpu` only shows that the script itself works. Each kernel runs as the library
runs it there (Triton on a GPU), on torch's own operators, and on those compiled by `torch.compile`.
"""

import argparse
import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from benchmarks.gpu_clock import Calls, Clock, copies
from idn_torch import aimd, generators, kernels
from idn_torch.gain import gain_and_subgradient_kernel, potential_capacity_kernel
from idn_torch.infida import Infida
from idn_torch.mirror import mirror_step_kernel
from idn_torch.problem import Problem
from idn_torch.rounding import depround_kernel
from idn_torch.serving import serve_kernel

# Passes of the projection where the host must not look whether it is done.
PASSES = 8


@contextmanager
def only_torch() -> Iterator[None]:
    """Neither Triton nor numba."""
    kept = kernels.TRITON_DEVICES, kernels.MIN_ELEMENTS
    kernels.TRITON_DEVICES, kernels.MIN_ELEMENTS = frozenset(), 1 << 60
    try:
        yield
    finally:
        kernels.TRITON_DEVICES, kernels.MIN_ELEMENTS = kept


def on_torch(call: Callable[..., Any]) -> Callable[..., Any]:
    """The call on torch's own operators."""

    def run(*arguments: Any) -> Any:
        with only_torch():
            return call(*arguments)

    return run


class Case(NamedTuple):
    """A kernel: a function of tensors, inputs to rotate through, and the bytes that any method has to move."""

    function: Callable[..., Any]
    inputs: Sequence[tuple[Tensor, ...]]
    least_bytes: int
    #: The same without a look at values, for `torch.compile`; None where that is not meaningful.
    traceable: Callable[..., Any] | None = None


def kernel_cases(problem: Problem) -> dict[str, Case]:
    """The kernels of a slot on the state of a run that has seen two slots."""
    assert problem.requests is not None
    policy, r = Infida(), problem.requests[0]
    state = policy.init(problem)
    for _ in range(2):
        state, _ = policy.step(problem, state, r)
    lam = serve_kernel(problem, r, state.x).capacity
    _, slope = gain_and_subgradient_kernel(problem, r, lam, state.y)
    eta = torch.full((problem.shape[0], 1), 1e-3, device=problem.device, dtype=problem.dtype)
    where, sizes, option = problem.feasible, problem.sizes, problem.ranked.option
    table, entry, matrix = problem.ranked.cost.numel(), problem.ranked.cost.element_size(), sizes.numel()

    def gain(r: Tensor, lam: Tensor, y: Tensor) -> Any:
        return gain_and_subgradient_kernel(problem, r, lam, y)

    def move(mirror_map: str, passes: int | None, y: Tensor, grad: Tensor) -> Tensor:
        return mirror_step_kernel(y, grad, eta, sizes, where, mirror_map, passes)

    def rounded(y: Tensor, uniforms: Tensor) -> Any:
        return depround_kernel(y, sizes, uniforms)

    # Ranks after K* need not be read; 30 times the requests reach far down the tables.
    cases = {}
    for label, requests in (("shallow K*", r), ("deep K*", (r * 30).floor())):
        capacity = lam if requests is r else potential_capacity_kernel(problem, requests)
        reached = (capacity * state.y.flatten()[option.long()]).cumsum(-1) < requests[..., None]
        read = min(table, int(reached.sum()) + int((requests > 0).sum()))
        inputs = [(requests, a, b) for a, b in zip(copies(capacity), copies(state.y), strict=True)]
        least = read * (2 * entry + option.element_size()) + 2 * matrix * entry
        cases[f"gain and subgradient, {label}"] = Case(gain, inputs, least, gain)
    steps = list(zip(copies(state.y), copies(slope), strict=True))
    moved = matrix * (4 * entry + 2)  # y, gradient, sizes, the result; two flags
    for mirror_map in ("negentropy", "euclidean"):
        name = f"mirror step, {mirror_map}"
        cases[name] = Case(partial(move, mirror_map, None), steps, moved, partial(move, mirror_map, PASSES))
    draws = [(y, state.uniforms) for y, _ in steps]
    cases["DepRound"] = Case(rounded, draws, 4 * matrix * entry, rounded)
    cases["serve"] = Case(lambda x: serve_kernel(problem, r, x), [(state.x,)], table * (2 * entry + 4))
    cases["whole slot"] = Case(lambda: policy.step(problem, state, r), [()], table * (4 * entry + 8))
    return cases


def check(device: torch.device) -> None:
    """Kernels and a whole run on the device equal those of torch's own operators on the CPU, in float64."""
    from idn_torch.simulation import run

    here = generators.tree(nodes=73, tasks=4, models_per_task=8, dtype=torch.float64)
    least, kernels.MIN_ELEMENTS = kernels.MIN_ELEMENTS, 0  # on a CPU: the compiled code, small as this is
    there = here.to(device)
    for name, case in kernel_cases(here).items():
        if name in ("serve", "whole slot"):
            continue
        theirs = kernel_cases(there)[name].function
        with only_torch():
            want = case.function(*case.inputs[0])
        got = theirs(*(tensor.to(device) for tensor in case.inputs[0]))
        for a, b in zip(*(v if isinstance(v, tuple) else (v,) for v in (want, got)), strict=True):
            difference = (a.double() - b.cpu().double()).abs().max()
            if difference > 1e-11 * max(1.0, float(a.double().abs().max())) or (name == "DepRound" and difference > 0):
                raise SystemExit(f"{name} differs between the CPU and {device}: {float(difference):g}")
    runs = [run(problem, Infida(), seed=torch.arange(2)) for problem in (here, there)]
    for name in ("gain", "gain_fractional", "cost", "model_updates"):
        a, b = (getattr(result, name).cpu() for result in runs)
        if not torch.allclose(a, b, rtol=1e-9):
            raise SystemExit(f"{name} of a run differs between the CPU and {device}: {float((a - b).abs().max()):g}")
    kernels.MIN_ELEMENTS = least
    print(f"correct: kernels and a run on {device} give what torch gives on the CPU")


def ways_of(case: Case, ours: str, compiling: bool) -> dict[str, Calls]:
    """The ways to compute a case; the first is the library's own."""
    functions: dict[str, Callable[..., Any]] = {ours: case.function}
    if ours != "torch":
        functions["torch"] = on_torch(case.function)
    if compiling and case.traceable is not None:
        functions["torch.compile"] = on_torch(torch.compile(case.traceable, dynamic=False))
    return {name: [partial(function, *row) for row in case.inputs] for name, function in functions.items()}


def aimd_ways(systems: int, units: int, events: int, dtype: torch.dtype, device: torch.device) -> dict[str, Calls]:
    """AIMD events of a batch of systems; only the last event is recorded."""
    batch = aimd.random_systems(systems, units, dtype=dtype, device=device)
    run = partial(aimd.simulate, *batch[:5], events=events, record="last")
    return {engine: [partial(run, engine=engine)] for engine in ("auto", "torch")}


def sweep(clock: Clock, cases: dict[str, Case]) -> None:
    """The gain kernel with other tile sizes, in ms on the device."""
    from idn_torch.kernels.triton import gain

    for label, case in cases.items():
        if not label.startswith("gain"):
            continue
        calls = [partial(case.function, *row) for row in case.inputs]
        for types, ranks, warps in itertools.product((1, 2, 4, 8, 16), (16, 32, 64), (1, 2, 4)):
            gain._TYPES, gain._RANKS, gain._WARPS = types, ranks, warps
            shown = f"{types:2d} types x {ranks:2d} ranks, {warps} warps"
            print(f"{label}: {shown} {clock.time(calls).device * 1e3:.3f} ms", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", default="float32", choices=("float32", "float64"))
    parser.add_argument("--nodes", type=int, default=4096)
    parser.add_argument("--types", type=int, default=80_000)
    parser.add_argument("--systems", type=int, default=65_536, help="AIMD systems")
    parser.add_argument("--units", type=int, default=64, help="units of an AIMD system")
    parser.add_argument("--events", type=int, default=1000, help="AIMD events")
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--sweep", action="store_true", help="also time other tile sizes of the gain kernel")
    parser.add_argument("--no-compile", action="store_true", help="leave torch.compile out")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    device, dtype = torch.device(options.device), getattr(torch, options.dtype)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else str(device)
    check(device)
    clock = Clock(device, options.repeats)
    bandwidth = clock.bandwidth()
    problem = generators.tree(nodes=options.nodes, request_types=options.types, dtype=dtype, device=device)
    ours = kernels.path_taken(problem.sizes, problem.ranked.cost.numel())
    table, rows = [], []

    def measure(label: str, ways: dict[str, Calls], least_bytes: int, unit_events: int = 0) -> None:
        for way, calls in ways.items():
            try:
                times = clock.time(calls)
            except Exception as error:  # torch.compile may lack a compiler; the rest of the table is still worth having
                print(f"{label}, {way}: {type(error).__name__}: {str(error).splitlines()[0]}", flush=True)
                continue
            rate = unit_events / times.device
            share = least_bytes / times.device / bandwidth
            row = {"least_bytes": least_bytes, "share_of_bandwidth": share, "unit_events_per_second": rate}
            rows.append({"case": label, "way": way, **times._asdict(), **row})
            shown = f"{share:8.1%}" if least_bytes else f"{rate:8.2e} unit-events/s"
            figures = f"{times.first:9.2f} {times.device * 1e3:11.3f} {times.wall * 1e3:11.3f}"
            table.append(f"{label:34s} {way:14s} {figures} {shown}")
            print(f"timed {label}, {way}", flush=True)

    for label, case in kernel_cases(problem).items():
        own = "torch" if label == "serve" and ours == "triton" else ours
        measure(label, ways_of(case, own, not options.no_compile), case.least_bytes)
    work = options.systems * options.units * options.events
    clock.repeats = 3
    sizes = options.systems, options.units, options.events
    measure("AIMD events", aimd_ways(*sizes, dtype, device), 0, unit_events=work)

    print(f"\n{name}, torch {torch.__version__}, {options.dtype}, copy bandwidth {bandwidth / 1e9:.0f} GB/s")
    print(f"(V, M) = {problem.shape}, (R, K) = {tuple(problem.ranked.cost.shape)}; AIMD (B, n, E) = {sizes}")
    print(f"{'':34s} {'':14s} {'first, s':>9s} {'device, ms':>11s} {'wall, ms':>11s} of bandwidth, or rate")
    print("\n".join(table))
    if options.json:
        head = {"device": name, "dtype": options.dtype, "torch": torch.__version__, "bandwidth": bandwidth}
        options.json.write_text(json.dumps({**head, "rows": rows}, indent=2) + "\n")
    if options.sweep and ours == "triton":
        clock.repeats = options.repeats
        sweep(clock, kernel_cases(problem))


if __name__ == "__main__":
    with torch.no_grad():
        main()
