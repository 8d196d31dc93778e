"""Times several ways of computing the same thing, in one process, taking turns."""

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch


def median_seconds(ways: dict[str, Callable[[], Any]], repeats: int) -> dict[str, float]:
    """Median time of each way: one warm-up round, then the ways take turns, so that noise meets all alike."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(repeats + 1):
        for name, way in ways.items():
            start = time.perf_counter()
            way()
            if turn:
                times[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in times.items()}


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

    def __init__(self, title: str, **sizes: tuple[int, str]) -> None:
        parser = argparse.ArgumentParser(description=title)
        parser.add_argument("--repeats", type=int, default=7, help="timed rounds after the warm-up")
        parser.add_argument("--threads", type=int, default=2)
        parser.add_argument("--json", type=Path, help="write the figures here")
        for name, (default, meaning) in sizes.items():
            parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=default, help=meaning)
        self.options = parser.parse_args()
        torch.set_num_threads(self.options.threads)
        self.bandwidth = copy_bandwidth()
        self.rows: list[dict[str, Any]] = []
        print(f"{title}: torch {torch.__version__}, {self.options.threads} threads, ", end="")
        print(f"copy bandwidth {self.bandwidth / 1e9:.1f} GB/s")

    def compare(
        self, label: str, ways: dict[str, Callable[[], Any]], least_bytes: int | None = None
    ) -> dict[str, float]:
        """Time the ways; the first is ours, the others' ratios to it are printed.

        Args:
            least_bytes: what any method has to move; printed as a share of the copy bandwidth.
        """
        seconds = median_seconds(ways, self.options.repeats)
        ours = next(iter(ways))
        for name, value in seconds.items():
            line = f"  {label:32s} {name:34s} {value * 1e3:10.2f} ms"
            line += f"  {value / seconds[ours]:7.2f} x ours" if name != ours else ""
            if name == ours and least_bytes is not None:
                line += f"  {least_bytes / value / self.bandwidth:7.0%} of bandwidth"
            print(line, flush=True)
        self.rows.append({"case": label, "seconds": seconds, "ours": ours, "least_bytes": least_bytes})
        return seconds

    def finish(self) -> None:
        """Write the JSON, if asked for."""
        if self.options.json:
            head = {"machine": platform.machine(), "python": platform.python_version(), "torch": torch.__version__}
            data = {**head, "threads": self.options.threads, "bandwidth": self.bandwidth, "rows": self.rows}
            self.options.json.write_text(json.dumps(data, indent=2) + "\n")
