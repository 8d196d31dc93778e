"""Running totals of a simulation, for `record="summary"`."""

from typing import NamedTuple

import torch
from torch import Tensor

from idn_torch.aimd.events import backlog_of
from idn_torch.aimd.result import Summary
from idn_torch.aimd.step import Cycle, Measures, Model, State

__all__ = ["Totals", "add_cycle", "finish_totals", "start_totals"]


class Totals(NamedTuple):
    """Accumulators in float64, which loses nothing over long runs; see `Summary`. `max_time` is the largest q."""

    elapsed: Tensor
    cycles: Tensor
    max_drops: Tensor
    admitted: Tensor
    request_seconds: Tensor
    max_time: Tensor
    entered: Tensor


def start_totals(state: State) -> Totals:
    """All zero, no unit in its invariant set yet."""
    wide = torch.zeros_like(state.q, dtype=torch.float64)
    return Totals(
        torch.zeros_like(state.clock.time),
        torch.zeros_like(state.status),
        torch.zeros_like(state.status),
        wide,
        wide.clone(),
        state.q.clone(),
        torch.full_like(state.q, -1, dtype=torch.int64),
    )


def add_cycle(totals: Totals, event: int, state: State, cycle: Cycle, measures: Measures, after: State) -> Totals:
    """Add one cycle. A unit is in its invariant set where `w <= alpha / 2 * t (2 T - t)`, t the time its rate rises."""
    length = cycle.period[:, None]
    inside = (state.q * state.q <= cycle.ramp * (2 * length - cycle.ramp)) & cycle.live[:, None]
    return Totals(
        totals.elapsed + (after.clock.time - state.clock.time),
        totals.cycles + cycle.live,
        torch.maximum(totals.max_drops, cycle.drops),
        totals.admitted + measures.admitted,
        totals.request_seconds + measures.request_seconds,
        torch.maximum(totals.max_time, after.q),
        torch.where((totals.entered < 0) & inside, event, totals.entered),
    )


def finish_totals(totals: Totals, model: Model, batch: torch.Size) -> Summary:
    """The public form, in the inputs' dtype and batch shape."""
    alpha = model.system.alpha
    units = (*batch, alpha.shape[-1])
    # alpha / 2 q^2 grows with q, so the largest backlog is the one of the largest q.
    return Summary(
        elapsed=totals.elapsed.to(alpha.dtype).reshape(batch),
        cycles=totals.cycles.reshape(batch),
        max_drops=totals.max_drops.reshape(batch),
        admitted=totals.admitted.to(alpha.dtype).reshape(units),
        request_seconds=totals.request_seconds.to(alpha.dtype).reshape(units),
        max_backlog=backlog_of(totals.max_time, alpha).reshape(units),
        entered=torch.where(model.system.mask, totals.entered, 0).reshape(units),
    )
