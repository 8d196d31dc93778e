"""Speed of `idn_torch.aimd.simulate` against a numpy loop and a hand-written, fused, parallel numba kernel.

    python benchmarks/aimd.py [--json results.json] [--systems 4096 --units 64 --events 1000] [--threads 2] [--quick]

All run in one process on the same inputs, in turns, after a warm-up; times are medians. On a machine that others use
trust processor time, summed over threads, more than wall time. The baselines do the same maths
and no more: events with repeated decreases, the final rates and backlogs, no statuses, no masks, no input checks.
"""

import argparse
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import numba
import numpy as np
import torch

from idn_torch import aimd

GUARD = 1 - 1e-6
Arrays = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]


def numpy_loop(
    alpha: np.ndarray, beta: np.ndarray, rate: np.ndarray, u: np.ndarray, w: np.ndarray, events: int
) -> tuple[np.ndarray, np.ndarray]:
    """The straightforward way: one array expression per line of the paper."""
    half = alpha.sum(1) / 2
    root = np.sqrt(alpha / 2)
    for _ in range(events):
        a = beta * u
        while (over := a.sum(1) > rate * GUARD).any():
            a[over] *= beta[over]
        period = ((rate - a.sum(1)) / half)[:, None]
        u = a + alpha * period
        w = (np.sqrt(w) - root * period) ** 2
    return u, w


def _fused(
    alpha: np.ndarray,
    beta: np.ndarray,
    rate: np.ndarray,
    u: np.ndarray,
    w: np.ndarray,
    events: int,
    guard: Any,
    half: Any,
) -> None:
    """A system's events in one go, while its rows are in the cache. Constants have the arrays' dtype: no promotion."""
    for b in numba.prange(u.shape[0]):
        rise = half - half
        for i in range(u.shape[1]):
            rise += half * alpha[b, i]
        limit = rate[b] * guard
        for _ in range(events):
            total = half - half
            for i in range(u.shape[1]):
                u[b, i] *= beta[b, i]
                total += u[b, i]
            while total > limit:
                total = half - half
                for i in range(u.shape[1]):
                    u[b, i] *= beta[b, i]
                    total += u[b, i]
            period = (rate[b] - total) / rise
            for i in range(u.shape[1]):
                u[b, i] += alpha[b, i] * period
                root = np.sqrt(w[b, i]) - np.sqrt(half * alpha[b, i]) * period
                w[b, i] = root * root


def _fused_root(
    alpha: np.ndarray,
    beta: np.ndarray,
    rate: np.ndarray,
    u: np.ndarray,
    q: np.ndarray,
    events: int,
    guard: Any,
    half: Any,
) -> None:
    """The same with q = sqrt(2 w / alpha) as the state: no square roots."""
    for b in numba.prange(u.shape[0]):
        rise = half - half
        for i in range(u.shape[1]):
            rise += half * alpha[b, i]
        limit = rate[b] * guard
        for _ in range(events):
            total = half - half
            for i in range(u.shape[1]):
                u[b, i] *= beta[b, i]
                total += u[b, i]
            while total > limit:
                total = half - half
                for i in range(u.shape[1]):
                    u[b, i] *= beta[b, i]
                    total += u[b, i]
            period = (rate[b] - total) / rise
            for i in range(u.shape[1]):
                u[b, i] += alpha[b, i] * period
                q[b, i] = abs(q[b, i] - period)


fused = numba.njit(parallel=True, fastmath=True)(_fused)
fused_root = numba.njit(parallel=True, fastmath=True)(_fused_root)


def numba_kernel(
    alpha: np.ndarray, beta: np.ndarray, rate: np.ndarray, u: np.ndarray, w: np.ndarray, events: int
) -> tuple[np.ndarray, np.ndarray]:
    u, w, scalar = u.copy(), w.copy(), alpha.dtype.type
    fused(alpha, beta, rate, u, w, events, scalar(GUARD), scalar(0.5))
    return u, w


def numba_root_kernel(
    alpha: np.ndarray, beta: np.ndarray, rate: np.ndarray, u: np.ndarray, w: np.ndarray, events: int
) -> tuple[np.ndarray, np.ndarray]:
    u, q, scalar = u.copy(), np.sqrt(2 * w / alpha), alpha.dtype.type
    fused_root(alpha, beta, rate, u, q, events, scalar(GUARD), scalar(0.5))
    return u, alpha / 2 * q * q


def draw(systems: int, units: int, dtype: Any) -> Arrays:
    """Random systems with beta up to 0.8: some cycles need several decreases."""
    rng = np.random.default_rng(0)
    alpha, beta = rng.uniform(0.5, 2, (systems, units)), rng.uniform(0.3, 0.8, (systems, units))
    rate = rng.uniform(0.75, 1.5, systems) * units
    u, w = rng.uniform(0, 2, (systems, units)), rng.uniform(0, 4, (systems, units))
    return tuple(x.astype(dtype) for x in (alpha, beta, rate, u, w))  # type: ignore[return-value]


def ours(engine: str, record: str = "last", headroom: float | None = None) -> Callable[..., Any]:
    def run(*arrays: Any) -> Any:
        alpha, beta, rate, u, w = (torch.from_numpy(x) for x in arrays[:5])
        u_max = None if headroom is None else (rate * headroom / alpha.shape[1])[:, None].expand_as(alpha)
        result = aimd.simulate(alpha, beta, rate, u, w, arrays[5], u_max, record=record, engine=engine)
        return result.final_admission.numpy(), result.final_backlog.numpy()

    return run


def seconds(
    runs: dict[str, Callable[..., Any]], arrays: Arrays, events: int, repeats: int
) -> dict[str, dict[str, float]]:
    """Median wall and processor seconds of each, run in turns so that a slow moment of the machine hits all of them."""
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in runs}
    for run in runs.values():
        run(*arrays, min(events, 3))
    for _ in range(repeats):
        for name, run in runs.items():
            wall, processor = time.perf_counter(), time.process_time()
            run(*arrays, events)
            taken[name].append((time.perf_counter() - wall, time.process_time() - processor))
    return {
        name: {"wall": statistics.median(v[0] for v in values), "processor": statistics.median(v[1] for v in values)}
        for name, values in taken.items()
    }


def check(arrays: Arrays, events: int) -> float:
    """All must compute the same: largest relative difference of the final rates and backlogs after a few events."""
    expected = numpy_loop(*arrays, events)
    worst = 0.0
    for run in (numba_kernel, numba_root_kernel, ours("torch"), ours("numba")):
        for found, wanted in zip(run(*arrays, events), expected, strict=True):
            worst = max(worst, float(np.abs(found - wanted).max() / np.abs(wanted).max()))
    return worst


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--systems", type=int, default=4096)
    parser.add_argument("--units", type=int, default=64)
    parser.add_argument("--events", type=int, default=1000)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--quick", action="store_true", help="a tenth of the events, no scaling")
    parser.add_argument("--json", metavar="PATH", help="also write the results there")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    numba.set_num_threads(options.threads)
    events = options.events // 10 if options.quick else options.events

    results: dict[str, Any] = {
        "systems": options.systems,
        "units": options.units,
        "events": events,
        "threads": options.threads,
        "repeats": options.repeats,
        "processors": os.cpu_count(),
        # Much above 1 before the start: others use the machine, and wall times of two threads mean little.
        "load before": os.getloadavg()[0],
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "numba": numba.__version__,
            "numpy": np.__version__,
        },
    }
    everything = {
        "numpy loop": numpy_loop,
        "numba kernel": numba_kernel,
        "numba kernel, q": numba_root_kernel,
        "ours": ours("auto"),
        "ours, torch only": ours("torch"),
        "ours, summary": ours("auto", "summary"),
        "ours, saturating": ours("auto", headroom=1.3),
    }
    for dtype in (np.float32, np.float64):
        arrays = draw(options.systems, options.units, dtype)
        name = np.dtype(dtype).name
        difference = check(tuple(x[:256] for x in arrays), 5)  # type: ignore[arg-type]
        taken = seconds(everything, arrays, events, options.repeats)
        wall = {label: value["wall"] for label, value in taken.items()}
        cpu = {label: value["processor"] for label, value in taken.items()}
        results[name] = {
            "seconds": taken,
            "times numpy": wall["numpy loop"] / wall["ours"],
            "times numba": wall["numba kernel"] / wall["ours"],
            "times numba, processor time": cpu["numba kernel"] / cpu["ours"],
            "times numba q": wall["numba kernel, q"] / wall["ours"],
            "times numba q, processor time": cpu["numba kernel, q"] / cpu["ours"],
            "torch only, times numpy": wall["numpy loop"] / wall["ours, torch only"],
            "largest difference": difference,
        }
        print(f"{name}: {options.systems} systems x {options.units} units x {events} events", file=sys.stderr)
        for label in taken:
            line = f"  {label:18s} {wall[label]:8.4f} s   processor {cpu[label]:8.4f} s"
            print(f"{line}   numpy / this {wall['numpy loop'] / wall[label]:6.2f}", file=sys.stderr)
        print(
            f"  numba kernel / ours {results[name]['times numba']:.2f}, "
            f"by processor time {results[name]['times numba, processor time']:.2f}; the one that carries q / ours "
            f"{results[name]['times numba q']:.2f}, {results[name]['times numba q, processor time']:.2f}",
            file=sys.stderr,
        )

    if not options.quick and not os.environ.get("NOSCALE"):
        results["scaling float32"] = scaling(options, events)
    text = json.dumps(results, indent=2)
    print(text)
    if options.json:
        with open(options.json, "w") as file:
            file.write(text + "\n")


def scaling(options: argparse.Namespace, events: int) -> dict[str, list[dict[str, float]]]:
    """Time per system, unit and event while one of the three grows: constant if the cost is linear."""
    table: dict[str, list[dict[str, float]]] = {}
    base = {"systems": options.systems // 4, "units": options.units, "events": events}
    for varied in base:
        rows = []
        for factor in (0.25, 0.5, 1, 2, 4):
            size = {**base, varied: max(1, int(base[varied] * factor))}
            arrays = draw(size["systems"], size["units"], np.float32)
            row: dict[str, float] = {varied: size[varied]}
            # Torch alone is slower: a tenth of the events shows its slope as well.
            for engine, part in (("numba", 1), ("torch", 10)):
                count = max(1, size["events"] // part)
                taken = seconds({engine: ours(engine)}, arrays, count, options.repeats)[engine]["wall"]
                row[f"{engine}, s"] = taken
                row[f"{engine}, ns a unit-event"] = taken / (size["systems"] * size["units"] * count) * 1e9
            rows.append(row)
            print("  " + ", ".join(f"{k} {v:.4g}" for k, v in row.items()), file=sys.stderr)
        table[varied] = rows
    return table


if __name__ == "__main__":
    main()
