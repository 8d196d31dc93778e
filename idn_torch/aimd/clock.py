"""Cycles under a rate that is piecewise constant in time: where a cycle ends, and the gap that may follow it."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from idn_torch.aimd.workload import PiecewiseRate

__all__ = ["Clock", "Pieces", "arrivals_within", "close_cycle", "cycle_segment", "pieces_of", "start_clock"]


class Pieces(NamedTuple):
    """A flattened `PiecewiseRate` with what the clock looks up. Times are float64: cycles are short, runs are long."""

    #: `(B, P)`, float64.
    start: Tensor
    #: `(B, P)`, float64, the last one inf.
    stop: Tensor
    #: `(B, P)`, requests a second.
    rate: Tensor
    #: First piece from here on with arrivals, `(B, P)` int64, and its start, inf if there is none.
    resume: Tensor
    resume_at: Tensor


class Clock(NamedTuple):
    """Time of the current event, float64 `(B,)`, and the piece it lies in, int64 `(B,)`."""

    time: Tensor
    piece: Tensor


class Segment(NamedTuple):
    """The piece in which a cycle ends, each `(B,)`; see `period.catch_up_time` for head and start."""

    piece: Tensor
    rate: Tensor
    head: Tensor
    start: Tensor
    #: False where the last piece holds for ever and the units cannot keep up with it.
    ends: Tensor


def pieces_of(workload: PiecewiseRate) -> Pieces:
    """Tabulate a flattened workload."""
    start = workload.times.double()
    stop = torch.cat([start[:, 1:], torch.full_like(start[:, :1], math.inf)], 1)
    index = torch.arange(start.shape[1], device=start.device).expand_as(start)
    found = torch.where(workload.values > 0, index, start.shape[1])
    resume = found.flip(1).cummin(1).values.flip(1)
    padded = torch.cat([start, torch.full_like(start[:, :1], math.inf)], 1)
    return Pieces(start, stop, workload.values, resume.clamp(max=start.shape[1] - 1), padded.gather(1, resume))


def start_clock(pieces: Pieces) -> tuple[Clock, Tensor]:
    """The first time with arrivals, and where there is none (B,) bool."""
    idle = pieces.resume_at[:, 0] == math.inf
    return Clock(torch.where(idle, 0.0, pieces.resume_at[:, 0]), pieces.resume[:, 0]), idle


def _relative(pieces: Pieces, clock: Clock) -> tuple[Tensor, Tensor]:
    """Start and stop of every piece in seconds after the event, 0 where it lies in the past."""
    now = clock.time[:, None]
    dtype = pieces.rate.dtype
    return (pieces.start - now).clamp(min=0).to(dtype), (pieces.stop - now).clamp(min=0).to(dtype)


def cycle_segment(
    pieces: Pieces, clock: Clock, a: Tensor, alpha: Tensor, ramp_end: Tensor | None, capacity: Tensor
) -> Segment:
    """The piece in which the batch queue first empties.

    Within a piece the batch queue is concave in time and it starts at or above zero, so it empties there exactly if it
    would be at or below zero at the end of the piece.

    Args:
        pieces, clock: the workload and the event.
        a, alpha: `(B, n)`.
        ramp_end: t_s `(B, n)`, or None without saturation. With it a table (B, P, n) is made.
        capacity: `sum u_max (B,)`.
    """
    start, stop = _relative(pieces, clock)
    ends = stop[:, :-1]
    arrived = (pieces.rate[:, :-1] * (ends - start[:, :-1])).cumsum(1)
    if ramp_end is None:
        admitted = ends * (a.sum(-1)[:, None] + ends * (alpha.sum(-1)[:, None] / 2))
    else:
        tau = ends[:, :, None]
        ramp = torch.minimum(tau, ramp_end[:, None])
        admitted = (a[:, None] * tau + alpha[:, None] * ramp * (tau - ramp / 2)).sum(-1)
    index = torch.arange(ends.shape[1], device=a.device)
    passed = (arrived > admitted) | (index < clock.piece[:, None])
    piece = passed.to(torch.int64).cumprod(1).sum(1)
    at = piece[:, None]
    rate = pieces.rate.gather(1, at)[:, 0]
    begin = start.gather(1, at)[:, 0]
    before = torch.cat([torch.zeros_like(begin)[:, None], arrived], 1).gather(1, at)[:, 0]
    last = piece == pieces.rate.shape[1] - 1
    return Segment(piece, rate, before - rate * begin, begin, ~last | (capacity > rate))


def close_cycle(pieces: Pieces, clock: Clock, period: Tensor, piece: Tensor) -> tuple[Clock, Tensor, Tensor]:
    """Move to the next event.

    Args:
        period: seconds until the batch queue empties, `(B,)`.
        piece: the piece in which it does.

    Returns:
        The clock, the wait after the period until arrivals resume `(B,)`, and where they never do (B,) bool.
    """
    time = clock.time + period.double()
    stop = pieces.stop.gather(1, piece[:, None])[:, 0]
    # Rounding may leave the event just before the end of the piece it empties in; the piece never goes back.
    piece = (piece + (time >= stop).to(piece.dtype)).clamp(max=pieces.rate.shape[1] - 1)
    resume_at = torch.maximum(pieces.resume_at.gather(1, piece[:, None])[:, 0], time)
    never = resume_at == math.inf
    wait = torch.where(never, 0.0, resume_at - time)
    # Not time + wait: rounding must not put the event before the piece with the arrivals.
    return (
        Clock(torch.where(never, time, resume_at), pieces.resume.gather(1, piece[:, None])[:, 0]),
        wait.to(period.dtype),
        never,
    )


def arrivals_within(pieces: Pieces, clock: Clock, period: Tensor) -> tuple[Tensor, Tensor]:
    """Arrivals within `period` of the event and their mean time after it, each `(B,)`.

    Under a constant rate the mean is T/2; the difference is what Eq. (50) lacks when the rate changes within a cycle.
    """
    start, stop = _relative(pieces, clock)
    start, stop = torch.minimum(start, period[:, None]), torch.minimum(stop, period[:, None])
    arrived = (pieces.rate * (stop - start)).sum(1)
    moment = (pieces.rate * (stop - start) * (stop + start) / 2).sum(1)
    return arrived, torch.where(arrived > 0, moment / torch.where(arrived > 0, arrived, 1.0), 0.0)
