"""Times several ways of computing the same thing, in one process, taking turns."""

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch


class Times(NamedTuple):
    """Seconds of one way.

    Attributes:
        wall, least: median and least wall time.
        processor, least_processor: median and least processor time, all threads together.
        first: wall time of the first call, which may load or compile kernels.
    """

    wall: float
    least: float
    processor: float
    least_processor: float
    first: float


def take_turns(ways: dict[str, Callable[[], Any]], repeats: int) -> dict[str, Times]:
    """Time each way: one warm-up round, then the ways take turns, so that noise meets all alike.

    On a machine that others use trust the least and the processor time more than the median.
    """
    rounds: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    for _ in range(repeats + 1):
        for name, way in ways.items():
            wall, processor = time.perf_counter(), time.process_time()
            way()
            rounds[name].append((time.perf_counter() - wall, time.process_time() - processor))
    times = {}
    for name, ((first, _), *later) in rounds.items():
        walls, processors = zip(*later, strict=True)
        times[name] = Times(statistics.median(walls), min(walls), statistics.median(processors), min(processors), first)
    return times


def median_seconds(ways: dict[str, Callable[[], Any]], repeats: int) -> dict[str, float]:
    """Median wall time of each way after one warm-up round."""
    return {name: times.wall for name, times in take_turns(ways, repeats).items()}


def copy_bandwidth(mebibytes: int = 256) -> float:
    """Bytes a second that a plain copy moves, reads and writes counted."""
    source = torch.ones(mebibytes << 18)
    target = torch.empty_like(source)
    seconds = median_seconds({"copy": lambda: target.copy_(source)}, 7)["copy"]
    return 2 * source.numel() * 4 / seconds


class Report:
    """Collects rows of a benchmark, prints each as it comes, and writes them as JSON at the end.

    Every script takes `--repeats N`, `--threads N` and `--json PATH`.
    """

    def __init__(self, title: str, **options: tuple[int | str, str]) -> None:
        parser = argparse.ArgumentParser(description=title)
        parser.add_argument("--repeats", type=int, default=7, help="timed rounds after the warm-up")
        parser.add_argument("--threads", type=int, default=2)
        parser.add_argument("--json", type=Path, help="write the figures here")
        for name, (default, meaning) in options.items():
            parser.add_argument(f"--{name.replace('_', '-')}", type=type(default), default=default, help=meaning)
        self.options = parser.parse_args()
        torch.set_num_threads(self.options.threads)
        self.bandwidth = copy_bandwidth()
        self.rows: list[dict[str, Any]] = []
        print(f"{title}: torch {torch.__version__}, {self.options.threads} threads, ", end="")
        print(f"copy bandwidth {self.bandwidth / 1e9:.1f} GB/s")

    def compare(
        self, label: str, ways: dict[str, Callable[[], Any]], least_bytes: int | None = None
    ) -> dict[str, float]:
        """Time the ways; the first is ours, the others' ratios to it are printed: median, least, processor time.

        Args:
            least_bytes: what any method has to move; printed as a share of the copy bandwidth.
        """
        times = take_turns(ways, self.options.repeats)
        ours = next(iter(ways))
        mine = times[ours]
        for name, one in times.items():
            line = f"  {label:28s} {name:28s} {one.wall * 1e3:8.2f} ms, least {one.least * 1e3:8.2f}, "
            line += f"processor {one.processor * 1e3:8.2f}"
            if name != ours:
                line += f"  {one.wall / mine.wall:6.2f} x ours, {one.least / mine.least:6.2f}, "
                line += f"{one.processor / mine.processor:6.2f}"
            elif least_bytes is not None:
                line += f"  {least_bytes / one.wall / self.bandwidth:6.0%} of bandwidth"
            print(line, flush=True)
        seconds = {name: one.wall for name, one in times.items()}
        all_times = {name: one._asdict() for name, one in times.items()}
        row = {"case": label, "seconds": seconds, "times": all_times, "ours": ours, "least_bytes": least_bytes}
        self.rows.append(row)
        return seconds

    def each(self, label: str, ways: dict[str, Callable[[], Any]], **more: Any) -> dict[str, Times]:
        """Time things that are not to be compared with each other; `more` goes into the JSON."""
        times = take_turns(ways, self.options.repeats)
        for name, one in times.items():
            print(f"  {label:40s} {name:22s} {one.wall * 1e3:9.2f} ms, least {one.least * 1e3:9.2f}, ", end="")
            print(f"processor {one.processor * 1e3:9.2f}", flush=True)
        self.rows.append({"case": label, "times": {name: one._asdict() for name, one in times.items()}, **more})
        return times

    def finish(self) -> None:
        """Write the JSON, if asked for."""
        if self.options.json:
            head = {"machine": platform.machine(), "python": platform.python_version(), "torch": torch.__version__}
            data = {**head, "threads": self.options.threads, "bandwidth": self.bandwidth, "rows": self.rows}
            self.options.json.write_text(json.dumps(data, indent=2) + "\n")
