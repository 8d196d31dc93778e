"""`start` and `step`: the state of a batch of systems, and one event of it."""

from typing import NamedTuple

import torch
from torch import Tensor

from idn_torch.aimd.clock import Clock, Pieces, arrivals_within, close_cycle, cycle_segment, pieces_of, start_clock
from idn_torch.aimd.events import (
    GUARD,
    DecreasePlan,
    backlog_of,
    decrease,
    next_backlog_time,
    plan_decrease,
    saturated_period,
    select,
    service_rate,
    tangent_time,
)
from idn_torch.aimd.period import two_branch_root
from idn_torch.aimd.provision import drain, serve_at_rate
from idn_torch.aimd.qos import admitted_requests, batch_queue_area
from idn_torch.aimd.status import Status
from idn_torch.aimd.system import System
from idn_torch.aimd.workload import EventRate, Workload

__all__ = ["Cycle", "Measures", "Model", "State", "measure", "start", "step"]


class Model(NamedTuple):
    """Everything about a run that does not change from event to event."""

    system: System
    plan: DecreasePlan
    #: Rates per event, or pieces in time: exactly one of them.
    rates: EventRate | None
    pieces: Pieces | None
    #: `sum u_max (B,)`, inf without a bound.
    capacity: Tensor


class State(NamedTuple):
    """B systems at an event."""

    #: Admission rates u(k) before the decrease `(B, n)`.
    u: Tensor
    #: Backlog as a time, `sqrt(2 w / alpha)`, seconds `(B, n)`.
    q: Tensor
    #: `Status`, int64 `(B,)`.
    status: Tensor
    #: float64 time `(B,)` and the piece of the workload.
    clock: Clock


class Cycle(NamedTuple):
    """The cycle that one step ran; zero-length where the system is frozen."""

    #: Rates after the decrease `(B, n)`.
    a: Tensor
    drops: Tensor
    #: Seconds until the batch queue empties `(B,)`, and the wait for arrivals after it (None: never any).
    period: Tensor
    wait: Tensor | None
    #: Seconds of it that the rates rise, `(B, n)` or `(B, 1)`.
    ramp: Tensor
    #: False where frozen `(B,)`.
    live: Tensor
    #: Integral of the units' queues `(B, n)`, or None where the trapezium of Eq. (50) is exact.
    unit_area: Tensor | None


class Measures(NamedTuple):
    """What is reported about a cycle, each `(B, n)`."""

    backlog: Tensor
    service_rate: Tensor
    admitted: Tensor
    #: Integral of the unit's queue and its share of the batch queue.
    request_seconds: Tensor
    queueing_time: Tensor


def start(system: System, workload: Workload, u0: Tensor, w0: Tensor, max_drops: int) -> tuple[Model, State]:
    """Prepare a run of flattened systems. Waits for the device once, to bound the decreases."""
    u = system.existing(u0).clone()
    if system.u_max is not None:
        u = torch.minimum(u, system.u_max)
    q = tangent_time(system.existing(w0), system.alpha)
    values = workload.values
    if isinstance(workload, EventRate):
        rates, pieces = workload, None
        zero = torch.zeros(len(u), device=u.device, dtype=torch.int64)
        clock, idle = Clock(zero.double(), zero), (values == 0).all(1)
    else:
        rates, pieces = None, pieces_of(workload)
        clock, idle = start_clock(pieces)
    plan = plan_decrease(
        system.beta,
        torch.maximum(u.sum(-1), 2 * values.amax(1)),
        torch.where(values > 0, values, torch.inf).amin(1),
        max_drops,
    )
    status = torch.where(idle, int(Status.IDLE), int(Status.OK))
    return Model(system, plan, rates, pieces, system.total_capacity), State(u, q, status, clock)


def step(model: Model, state: State, event: int) -> tuple[State, Cycle]:
    """One event: multiplicative decrease, the cycle's length, additive increase, backlog. No host synchronisation.

    Frozen systems pass through unchanged: their cycle has length zero and no decrease.
    """
    system, status, clock = model.system, state.status, state.clock
    alpha, u_max = system.alpha, system.u_max
    if model.rates is not None:
        rate = model.rates.at(event)
        status = _mark(status, model.capacity <= rate, Status.INFEASIBLE)
    else:
        assert model.pieces is not None
        rate = model.pieces.rate.gather(1, clock.piece[:, None])[:, 0]

    a, total, drops, over = decrease(state.u, rate * (1 - GUARD), model.plan)
    status = _mark(status, over, Status.DECREASE_LIMIT)
    ramp_end = None if u_max is None else torch.where(system.mask, (u_max - a) / alpha, torch.inf)

    head = begin = piece = None
    if model.pieces is not None:
        piece, rate, head, begin, ends = cycle_segment(model.pieces, clock, a, alpha, ramp_end, model.capacity)
        status = _mark(status, ~ends, Status.INFEASIBLE)
    if ramp_end is not None:
        period = saturated_period(a, ramp_end, system, rate, head, begin)
    elif head is not None and begin is not None:
        period = torch.maximum(two_branch_root(alpha.sum(-1) / 2, total - rate, -head), begin)
    else:
        period = (rate - total) / (alpha.sum(-1) / 2)  # Eq. (17)
    status = _mark(status, ~((period > 0) & period.isfinite()), Status.NUMERICAL)

    live = status == Status.OK
    period = torch.where(live, period, 0.0)
    a = select(live, a, state.u)
    drops = torch.where(live, drops, 0)
    length = period[:, None]
    ramp = length if ramp_end is None else torch.minimum(length, ramp_end)
    u = torch.addcmul(a, alpha, length)  # Eq. (14)
    if u_max is not None:
        u = torch.minimum(u, u_max)

    q = next_backlog_time(state.q, period, ramp_end)
    wait, unit_area = None, None
    if system.service_factor is not None or model.pieces is not None:
        w, gamma = backlog_of(state.q, alpha), service_rate(a, state.q, system)
        if system.service_factor is not None:
            end = torch.full_like(a, torch.inf) if ramp_end is None else ramp_end
            after, unit_area = serve_at_rate(w, a, alpha, gamma, length, end)
        else:
            after = backlog_of(q, alpha)
            unit_area = (w + after) / 2 * length - batch_queue_area(alpha, length, ramp)
        if model.pieces is not None and piece is not None:
            moved, wait, never = close_cycle(model.pieces, clock, period, piece)
            wait = torch.where(live, wait, 0.0)
            clock = Clock(torch.where(live, moved.time, clock.time), torch.where(live, moved.piece, clock.piece))
            status = _mark(status, never, Status.IDLE)
            after, drained = drain(after, gamma, wait[:, None])
            unit_area = unit_area + drained
        q = tangent_time(after, alpha)
    if model.pieces is None:
        clock = Clock(clock.time + period, clock.piece)
    if ramp_end is not None or unit_area is not None:
        q = select(live, q, state.q)
    return State(u, q, status, clock), Cycle(a, drops, period, wait, ramp, live, unit_area)


def measure(model: Model, state: State, cycle: Cycle, after: State) -> Measures:
    """Backlog, service rate and queueing time of the cycle between two states, Eqs. (41) and (46)-(50)."""
    system = model.system
    length = cycle.period[:, None]
    backlog = backlog_of(state.q, system.alpha)
    gamma = service_rate(cycle.a, state.q, system).mul_(cycle.live[:, None])
    admitted = admitted_requests(cycle.a, system.alpha, length, cycle.ramp)
    if cycle.unit_area is None:
        seconds = (backlog + backlog_of(after.q, system.alpha)).mul_(length / 2)
    else:
        batch_area = batch_queue_area(system.alpha, length, cycle.ramp)
        if model.pieces is not None:
            # Requests arrive at another mean time than T/2. The batch queue's true integral is split over the units as
            # under a constant rate; assigning arrivals in proportion instead could leave a unit a negative share.
            arrived, mean_arrival = arrivals_within(model.pieces, state.clock, cycle.period)
            total = batch_area.sum(-1)
            longer = arrived * (cycle.period / 2 - mean_arrival) / torch.where(total > 0, total, 1.0)
            batch_area = batch_area * (1 + longer).clamp(min=0)[:, None]
        seconds = cycle.unit_area + batch_area
    # The sign makes it 0 where nothing was admitted; a comparison and torch.where are many times slower on CPUs.
    queueing_time = (seconds * admitted.sign()).div_(admitted.clamp(min=torch.finfo(admitted.dtype).tiny))
    return Measures(backlog, gamma, admitted, seconds, queueing_time)


def _mark(status: Tensor, condition: Tensor, code: Status) -> Tensor:
    """Set the code where a system still runs and the condition holds."""
    return torch.where((status == Status.OK) & condition, int(code), status)
