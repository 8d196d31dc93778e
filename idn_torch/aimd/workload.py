"""Arrival rates: constant, one per event, or piecewise constant in time."""

from dataclasses import dataclass

import torch
from torch import Tensor

from idn_torch.aimd.checks import NONNEGATIVE, POSITIVE, broadcast, check_tensor, check_values, raise_at
from idn_torch.aimd.system import flat
from idn_torch.errors import InputError

__all__ = ["EventRate", "PiecewiseRate", "Workload", "as_workload", "ramp_rate", "step_rate"]


@dataclass(frozen=True, eq=False)
class EventRate:
    """An arrival rate that holds for a whole cycle.

    `values (..., E)`, one rate an event, or `(..., 1)`, one for all of them. Requests a second; > 0, except that a
    single rate for all events may be 0: such a system is idle.

    Raises:
        InputError: a rate is negative, not finite, or 0 for a single event.
    """

    values: Tensor

    def __post_init__(self) -> None:
        check_tensor("arrival_rate", self.values)
        if self.values.ndim == 0:
            raise InputError("EventRate.values has no dims; expected (..., E), or (..., 1) for a constant rate")
        if self.values.shape[-1] == 1:
            check_values("arrival_rate", self.values[..., 0], NONNEGATIVE, last="")
        else:
            hint = "; for a gap without arrivals give PiecewiseRate(times, values)"
            check_values("arrival_rate", self.values, POSITIVE, last="event", hint=hint)

    @property
    def batch(self) -> torch.Size:
        """Leading dims."""
        return self.values.shape[:-1]

    def flattened(self, batch: torch.Size) -> "EventRate":
        """`values` as `(B, E)` or `(B, 1)`, not checked again: that would wait for the device."""
        made = object.__new__(EventRate)
        object.__setattr__(made, "values", flat(self.values, batch))
        return made

    def at(self, event: int) -> Tensor:
        """Rates of one event, `(...)`."""
        return self.values[..., min(event, self.values.shape[-1] - 1)]


@dataclass(frozen=True, eq=False)
class PiecewiseRate:
    """An arrival rate that is constant between given times: `values[p]` from `times[p]` on, the last one for ever.

    A cycle may span any number of changes. Zero is allowed: a cycle whose batch queue empties while nothing arrives
    lasts until arrivals resume, since without arrivals there is no event to react to; if they never resume the system
    is idle. Event 0 happens at the first time with a positive rate.

    Args:
        times: `(..., P)`, seconds, increasing, `times[..., 0] = 0`. float64 keeps long runs exact.
        values: `(..., P)`, requests a second, >= 0.

    Raises:
        InputError: naming the system and the piece.

    Example:
        >>> rate = PiecewiseRate(torch.tensor([0.0, 10.0, 20.0]), torch.tensor([5.0, 0.0, 5.0]))
    """

    times: Tensor
    values: Tensor

    def __post_init__(self) -> None:
        check_tensor("times", self.times)
        check_tensor("values", self.values)
        if self.times.device != self.values.device:
            raise InputError(f"times is on {self.times.device} but values is on {self.values.device}")
        broadcast(times=self.times.shape, values=self.values.shape)
        if self.times.ndim == 0 or self.values.ndim == 0 or self.times.shape[-1] != self.values.shape[-1]:
            raise InputError(
                f"times {tuple(self.times.shape)} and values {tuple(self.values.shape)} must end in the same number "
                "of pieces"
            )
        good = self.times.isfinite()
        good[..., 0] &= self.times[..., 0] == 0
        good[..., 1:] &= self.times[..., 1:] > self.times[..., :-1]
        raise_at("times", self.times, good, "must start at 0, increase and be finite", last="piece")
        check_values("values", self.values, NONNEGATIVE, last="piece")

    @property
    def batch(self) -> torch.Size:
        """Leading dims."""
        return torch.broadcast_shapes(self.times.shape, self.values.shape)[:-1]

    def flattened(self, batch: torch.Size) -> "PiecewiseRate":
        """`times` and `values` as `(B, P)`, not checked again."""
        made = object.__new__(PiecewiseRate)
        object.__setattr__(made, "times", flat(self.times, batch))
        object.__setattr__(made, "values", flat(self.values, batch))
        return made


Workload = EventRate | PiecewiseRate


def as_workload(rate: float | Tensor | Workload, alpha: Tensor, events: int) -> Workload:
    """The workload that an `arrival_rate` argument means, in alpha's dtype and on its device.

    A tensor is one rate per event, `(..., E)`, if it has as many dims as alpha, otherwise one rate per system, `(...)`.

    Raises:
        InputError: the number of events does not match, or a value is wrong.
    """
    if isinstance(rate, EventRate | PiecewiseRate):
        check_tensor("arrival_rate", rate.values, alpha)
    elif isinstance(rate, Tensor):
        if rate.ndim == 0:
            rate = rate.to(alpha.dtype).to(alpha.device)
        check_tensor("arrival_rate", rate, alpha)
        rate = EventRate(rate if rate.ndim == alpha.ndim else rate[..., None])
    elif isinstance(rate, int | float):
        rate = EventRate(alpha.new_tensor([float(rate)]))
    else:
        raise InputError(f"arrival_rate is {type(rate).__name__}; expected a number, a tensor or a workload")
    if isinstance(rate, EventRate) and rate.values.shape[-1] not in (1, events):
        raise InputError(
            f"arrival_rate {tuple(rate.values.shape)} has as many dims as alpha {tuple(alpha.shape)}, so it is read as "
            f"one rate per event, but there are {events} events; for one rate per system drop the last dim of "
            "arrival_rate or add a leading dim to alpha"
        )
    return rate


def step_rate(before: Tensor, after: Tensor, at: Tensor) -> PiecewiseRate:
    """`before` until the time `at`, then `after`; each `(...)`, `at > 0`.

    Example:
        >>> step_rate(torch.tensor(5.0), torch.tensor(9.0), torch.tensor(60.0)).values
        tensor([5., 9.])
    """
    before, after, at = torch.broadcast_tensors(before, after, at)
    return PiecewiseRate(torch.stack([torch.zeros_like(at), at], -1), torch.stack([before, after], -1))


def ramp_rate(first: Tensor, last: Tensor, start: float, stop: float, pieces: int = 32) -> PiecewiseRate:
    """A linear ramp from `first` to `last` between two times, in equal steps that keep its integral.

    Args:
        first, last: `(...)`, requests a second, >= 0.
        start, stop: seconds, `0 < start < stop`.
        pieces: steps of the ramp, >= 1.
    """
    if pieces < 1 or not 0 < start < stop:
        raise InputError(f"ramp_rate needs 0 < start < stop and pieces >= 1, not {start}, {stop}, {pieces}")
    first, last = torch.broadcast_tensors(first, last)
    edges = [0.0] + [start + (stop - start) * j / pieces for j in range(pieces + 1)]
    share = first.new_tensor([0.0] + [(j + 0.5) / pieces for j in range(pieces)] + [1.0])
    times = torch.tensor(edges, dtype=torch.float64, device=first.device)
    return PiecewiseRate(times, first[..., None] + (last - first)[..., None] * share)
