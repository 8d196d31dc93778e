"""The continuous-time state of a recorded run, for plots and for checks by integration."""

from typing import NamedTuple

import torch
from torch import Tensor

from idn_torch.aimd.checks import broadcast
from idn_torch.aimd.clock import pieces_of
from idn_torch.aimd.qos import within_cycle
from idn_torch.aimd.result import Simulation
from idn_torch.aimd.workload import EventRate
from idn_torch.errors import InputError

__all__ = ["Sample", "sample"]


class Sample(NamedTuple):
    """State at Q times; per unit `(..., Q, n)`, per system `(..., Q)`."""

    #: Event whose cycle the time lies in, int64; -1 before event 0.
    event: Tensor
    #: u, admissions a second; 0 while nothing arrives and the batch queue is empty. The saw-tooth of Eq. (34).
    admission: Tensor
    #: w, requests queued at the unit, Eq. (35).
    backlog: Tensor
    #: y, backlog at the event plus admissions since, Eq. (36).
    offered: Tensor
    #: z, the most that can be served since the event, Eq. (37).
    servable: Tensor
    #: delta, requests in the batch queue, Eq. (11).
    batch_queue: Tensor


@torch.no_grad()
def sample(simulation: Simulation, t: Tensor) -> Sample:
    """Admission rates and queues of a run at any times.

    From the end of the run on (or of the part that a frozen system completed) the final state is returned.

    Args:
        simulation: recorded with `record="all"`.
        t: seconds >= 0, `(Q,)` or `(..., Q)`, in any order.

    Returns:
        `Sample`.

    Raises:
        InputError: events are missing from the record, or a time is negative or NaN.

    Example:
        >>> from idn_torch.aimd import simulate
        >>> one = torch.ones(1, dtype=torch.float64)
        >>> run = simulate(one, one / 2, 1.0, one * 0, one * 0, events=3)
        >>> sample(run, torch.tensor([0.5, 2.5], dtype=torch.float64)).admission[:, 0]
        tensor([0.5000, 1.0000], dtype=torch.float64)

    Source: Eqs. (11), (13), (34)-(37).
    """
    kept = simulation.events
    if len(kept) == 0 or not torch.equal(kept, torch.arange(len(kept), device=kept.device)):
        raise InputError('sample needs every event of the run: simulate with record="all" and at least one event')
    if not (t >= 0).all():
        raise InputError(f"t must be >= 0 seconds; the smallest is {t.min().item():g}")
    batch = simulation.status.shape
    broadcast(simulation=batch, t=t.shape[:-1])
    rows, times = batch.numel(), t.shape[-1]
    system = simulation.system.flattened(batch)
    t = t.to(simulation.period).expand(*batch, times).reshape(rows, times)
    start = simulation.time.reshape(rows, -1).contiguous()
    event = torch.searchsorted(start, t.contiguous(), right=True) - 1
    index = event.clamp(min=0)

    def at(value: Tensor) -> Tensor:
        if value.ndim == simulation.period.ndim:
            return value.reshape(rows, -1).gather(1, index)
        value = value.reshape(rows, len(kept), -1)
        return value.gather(1, index[:, :, None].expand(-1, -1, value.shape[-1]))

    alpha = system.alpha[:, None]
    u_max = None if system.u_max is None else system.u_max[:, None]
    u, w, gamma, begin = (
        at(simulation.admission),
        at(simulation.backlog),
        at(simulation.service_rate),
        start.gather(1, index),
    )
    a = u * system.beta[:, None] ** at(simulation.drops)[..., None]
    tau = (t - begin).clamp(min=0)
    cycle = within_cycle(alpha, a, w, gamma, tau, u_max, at(simulation.period - simulation.wait))

    ended = (t >= simulation.final_time.reshape(rows, 1)) & (event >= 0)
    before = event < 0
    off = (ended | before)[..., None]
    still = torch.where(ended[..., None], simulation.final_backlog.reshape(rows, 1, -1), w)
    level = torch.where(ended[..., None], simulation.final_admission.reshape(rows, 1, -1), 0.0)
    queue = _arrivals(simulation, index, begin, tau) - cycle.admitted.sum(-1)
    # A rounding error below zero is no queue.
    queue = torch.where(ended | before, 0.0, queue.clamp(min=0))
    units = (*batch, times, alpha.shape[-1])
    return Sample(
        event.reshape(*batch, times),
        torch.where(off, level, cycle.rate).reshape(units),
        torch.where(off, still, cycle.backlog).reshape(units),
        torch.where(off, still, cycle.offered).reshape(units),
        torch.where(off, 0.0, cycle.servable).reshape(units),
        queue.reshape(*batch, times),
    )


def _arrivals(simulation: Simulation, index: Tensor, begin: Tensor, tau: Tensor) -> Tensor:
    """Requests that arrived within tau of the events `index`, `(B, Q)`."""
    workload = simulation.workload.flattened(simulation.status.shape)
    if isinstance(workload, EventRate):
        values = workload.values
        return (values.gather(1, index) if values.shape[1] > 1 else values) * tau
    pieces = pieces_of(workload)

    def total(t: Tensor) -> Tensor:
        """Arrivals from time 0 to t, in float64: the difference of two of them is wanted."""
        span = (torch.minimum(pieces.stop[:, None], t[..., None]) - pieces.start[:, None]).clamp(min=0)
        return (pieces.rate[:, None].double() * span).sum(-1)

    return (total(begin.double() + tau.double()) - total(begin.double())).to(tau.dtype)
