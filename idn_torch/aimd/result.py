"""What a simulation returns, and how recorded events are stored."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from idn_torch.aimd.system import System
from idn_torch.aimd.workload import Workload
from idn_torch.errors import InputError

__all__ = ["Recorder", "Simulation", "Summary", "recorded_events"]


@dataclass(frozen=True, eq=False)
class Summary:
    """Totals over a run, kept without storing the events."""

    #: Seconds simulated `(...)`.
    elapsed: Tensor
    #: Cycles completed `(...)`, int64; fewer than `events` where a system was frozen.
    cycles: Tensor
    #: Largest number of decreases in one event `(...)`, int64.
    max_drops: Tensor
    #: Requests admitted `(..., n)`.
    admitted: Tensor
    #: Integral of a unit's own queue and its share of the batch queue over the run, request-seconds `(..., n)`.
    request_seconds: Tensor
    #: Largest backlog at an event, the final one included, requests `(..., n)`.
    max_backlog: Tensor
    #: First event at which the backlog lies in its invariant set `(..., n)`, int64; -1 if it never did.
    entered: Tensor

    @property
    def mean_period(self) -> Tensor:
        """Mean cycle length, seconds `(...)`; 0 without a cycle."""
        return _ratio(self.elapsed, self.cycles)

    @property
    def mean_admission(self) -> Tensor:
        """Mean admission rate over time, requests a second `(..., n)`."""
        return _ratio(self.admitted, self.elapsed[..., None].expand_as(self.admitted))

    @property
    def mean_queueing_time(self) -> Tensor:
        """Seconds a request spends queued, mean over all requests admitted `(..., n)`."""
        return _ratio(self.request_seconds, self.admitted)

    @property
    def mean_system_queueing_time(self) -> Tensor:
        """The same over all units of a system, seconds `(...)`."""
        return _ratio(self.request_seconds.sum(-1), self.admitted.sum(-1))


@dataclass(frozen=True, eq=False)
class Simulation:
    """The recorded events of a run, K of them (K = E with `record="all"`), and its end.

    Values at event k describe the state when the batch queue empties and the cycle that starts then. Masked units are
    0. Frozen systems (see `Status`) repeat their state with period 0.
    """

    #: Cycle length T(k), seconds `(..., K)`; `wait` included.
    period: Tensor
    #: Number of decreases d, int64 `(..., K)`; 0 when frozen.
    drops: Tensor
    #: Admission rates u(k) before the decrease, requests a second `(..., K, n)`.
    admission: Tensor
    #: Backlogs w(k), requests `(..., K, n)`.
    backlog: Tensor
    #: Service rates gamma(k) of the cycle, requests a second `(..., K, n)`.
    service_rate: Tensor
    #: T_i(k), seconds `(..., K, n)`.
    queueing_time: Tensor
    #: Time of the event, seconds `(..., K)`.
    time: Tensor
    #: Seconds at the end of the cycle in which nothing arrives and the batch queue is empty `(..., K)`.
    wait: Tensor
    #: Indices of the recorded events, int64 `(K,)`.
    events: Tensor
    #: u(E) `(..., n)`.
    final_admission: Tensor
    #: w(E) `(..., n)`.
    final_backlog: Tensor
    #: Seconds simulated `(...)`.
    final_time: Tensor
    #: `Status` of each system, int64 `(...)`.
    status: Tensor
    #: Totals, with `record="summary"` only.
    summary: Summary | None
    #: What was simulated, parameters broadcast to `(..., n)`.
    system: System
    workload: Workload


def _ratio(total: Tensor, count: Tensor) -> Tensor:
    return torch.where(count > 0, total / torch.where(count > 0, count, 1), 0.0)


def recorded_events(record: str | int, events: int) -> range:
    """The event indices that a `record` argument keeps.

    Raises:
        InputError: an unknown `record`.
    """
    if record == "all":
        return range(events)
    if record in ("last", "summary"):
        return range(max(events - 1, 0), events)
    if isinstance(record, int) and not isinstance(record, bool) and record >= 1:
        return range(0, events, record)
    raise InputError(f"record is {record!r}; use 'all', 'last', 'summary' or k >= 1 for every k-th event")


class Event(NamedTuple):
    """The recorded values of one event; see `Simulation`."""

    period: Tensor
    drops: Tensor
    admission: Tensor
    backlog: Tensor
    service_rate: Tensor
    queueing_time: Tensor
    time: Tensor
    wait: Tensor


_PER_UNIT = ("admission", "backlog", "service_rate", "queueing_time")


class Recorder:
    """Preallocated storage of the events to keep, filled in place: stacking at the end would need the memory twice."""

    def __init__(self, like: Tensor, kept: range) -> None:
        rows, units = like.shape
        self._kept = kept
        self._tensors = {
            name: like.new_zeros(rows, len(kept), *((units,) if name in _PER_UNIT else ())) for name in Event._fields
        }
        self._tensors["drops"] = self._tensors["drops"].to(torch.int64)

    def store(self, event: int, values: Event) -> None:
        """Keep an event, which must be one of those to keep."""
        slot = self._kept.index(event)
        for name, value in values._asdict().items():
            self._tensors[name][:, slot] = value

    def tensors(self) -> dict[str, Tensor]:
        """By name, `(B, K)` or `(B, K, n)`."""
        return self._tensors
