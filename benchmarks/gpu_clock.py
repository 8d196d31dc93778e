"""Times on a device: what the device spends on a call, and what a caller waits for one."""

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

__all__ = ["Calls", "Clock", "Times", "copies"]

Calls = Sequence[Callable[[], Any]]


class Times(NamedTuple):
    """Seconds of one call."""

    #: The first one, which compiles what is compiled.
    first: float
    #: On the device, caches empty: the median.
    device: float
    #: From call to call, many in a row, the host's own work included.
    wall: float


class Clock:
    """Times calls on one device; several calls of a list take turns, so that their inputs rotate."""

    def __init__(self, device: torch.device, repeats: int) -> None:
        self.device, self.repeats = device, repeats
        # Overwritten before each timed call: that empties the caches, and keeps the device busy while the host prepares
        # the call, so that the time between two device events is the device's own.
        elements = 1 << 28 if device.type == "cuda" else 1 << 22
        self._flush = torch.empty(elements, device=device)

    def time(self, calls: Calls) -> Times:
        """First call, then the device's median, then the wall time."""
        self._wait()
        began = time.perf_counter()
        calls[0]()
        self._wait()
        first = time.perf_counter() - began
        for call in calls:
            call()
        device = statistics.median([self._once(calls[turn % len(calls)]) for turn in range(self.repeats)])
        self._wait()
        began = time.perf_counter()
        for turn in range(self.repeats):
            calls[turn % len(calls)]()
        self._wait()
        return Times(first, device, (time.perf_counter() - began) / self.repeats)

    def bandwidth(self) -> float:
        """Bytes a second that a plain copy moves, reads and writes counted."""
        target = torch.empty_like(self._flush)
        return 2 * self._flush.nbytes / self.time([lambda: target.copy_(self._flush)]).device

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def _once(self, call: Callable[[], Any]) -> float:
        self._flush.zero_()
        if self.device.type != "cuda":
            began = time.perf_counter()
            call()
            return time.perf_counter() - began
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        call()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) / 1e3


def copies(tensor: Tensor, count: int = 4) -> list[Tensor]:
    """Inputs to rotate through."""
    return [tensor.clone() for _ in range(count)]
