"""Queueing times of one cycle, Eqs. (46)-(50), and the state inside a cycle, Eqs. (34)-(37)."""

from typing import NamedTuple

import torch
from torch import Tensor

__all__ = [
    "CycleState",
    "QueueingTimes",
    "admitted_requests",
    "batch_queue_area",
    "queueing_times",
    "ramp_end_of",
    "within_cycle",
]


class QueueingTimes(NamedTuple):
    """Mean seconds a request of one cycle spends in the two queues, each `(..., n)`."""

    #: T_delta, in the batch queue.
    batch: Tensor
    #: T_w, in the unit's own queue, its service included.
    unit: Tensor
    #: T_i = T_delta + T_w, Eq. (46).
    total: Tensor


class CycleState(NamedTuple):
    """State at tau seconds into a cycle, each `(..., n)`; Eqs. (34)-(37)."""

    #: u(tau), admissions a second.
    rate: Tensor
    #: w(tau), requests queued at the unit.
    backlog: Tensor
    #: y(tau), backlog at the start plus admissions so far.
    offered: Tensor
    #: z(tau) = gamma tau, the most that can be served so far.
    servable: Tensor
    #: Requests admitted since the start of the cycle.
    admitted: Tensor


def admitted_requests(a: Tensor, alpha: Tensor, tau: Tensor, ramp: Tensor) -> Tensor:
    """`a tau + alpha t (tau - t / 2)` with t = ramp <= tau the time spent rising; Eq. (47) times T at tau = T."""
    return torch.addcmul(a * tau, alpha, ramp * (tau - ramp / 2))


def batch_queue_area(alpha: Tensor, period: Tensor, ramp: Tensor) -> Tensor:
    """Integral over a cycle of the unit's share of the batch queue, `alpha t^2 (3 T - 2 t) / 12`.

    With `delta_i = u_av tau - admitted(tau)`; `alpha T^3 / 12` without saturation, the area between chord and parabola.
    """
    return alpha * ramp * ramp * (3 * period - 2 * ramp) / 12


@torch.no_grad()
def queueing_times(
    alpha: Tensor,
    decreased: Tensor,
    period: Tensor,
    backlog: Tensor,
    next_backlog: Tensor,
    u_max: Tensor | None = None,
) -> QueueingTimes:
    """T_delta, T_w and T_i of a cycle served at gamma_hat under a constant arrival rate.

    `T_i = (w + w+) / (2 u_av)`, Eq. (50); `T_delta = alpha t^2 (3 T - 2 t) / (12 u_av T)` with
    t = min(T, (u_max - a) / alpha), which is `alpha T^2 / (12 u_av)` without saturation; T_w is the rest. Exact for any
    number of decreases and with saturation, as long as the queue never stands empty, which gamma_hat ensures.
    All are 0 where u_av = 0.

    Args:
        alpha: `(..., n)`, requests / s^2.
        decreased: a = beta^d u, rates after the decrease, `(..., n)`, requests / s.
        period: T `(...)`, seconds.
        backlog, next_backlog: w and w+, `(..., n)`, requests.
        u_max: largest rates `(..., n)`, or None.

    Returns:
        `QueueingTimes` in seconds.

    Example:
        >>> one = torch.ones(1)
        >>> queueing_times(one, one, torch.tensor(2.0), one * 0, one * 2).total
        tensor([0.5000])

    Source: Eqs. (46)-(50).
    """
    length = period[..., None]
    ramp = torch.minimum(length, ramp_end_of(alpha, decreased, u_max)) if u_max is not None else length
    admitted = admitted_requests(decreased, alpha, length, ramp)
    some = admitted > 0
    safe = torch.where(some, admitted, 1.0)
    total = torch.where(some, (backlog + next_backlog) / 2 * length / safe, 0.0)
    batch = torch.where(some, batch_queue_area(alpha, length, ramp) / safe, 0.0)
    return QueueingTimes(batch, total - batch, total)


@torch.no_grad()
def within_cycle(
    alpha: Tensor,
    decreased: Tensor,
    backlog: Tensor,
    service_rate: Tensor,
    tau: Tensor,
    u_max: Tensor | None = None,
    active: Tensor | None = None,
) -> CycleState:
    """The continuous-time state tau seconds after an event.

    A queue that runs dry stays at zero until its admissions exceed its service rate again:
    `w(tau) = X(tau) - min(0, min_{s <= tau} X(s))`, X(s) = y(s) - gamma s. Served at gamma_hat it never does and
    w(tau) = X(tau), Eq. (35).

    Args:
        alpha, decreased, backlog, service_rate: alpha, a, w, gamma, `(..., n)`.
        tau: >= 0, `(...)`, seconds.
        u_max: `(..., n)`, or None.
        active: seconds after which the batch queue is empty and nothing arrives, `(...)`, or None for never.

    Returns:
        `CycleState`.

    Source: Eqs. (34)-(37).
    """
    tau = tau[..., None]
    fed = tau if active is None else torch.minimum(tau, active[..., None])
    end = ramp_end_of(alpha, decreased, u_max) if u_max is not None else None
    ramp = fed if end is None else torch.minimum(fed, end)
    admitted = admitted_requests(decreased, alpha, fed, ramp)
    rate = torch.where(fed == tau, decreased + alpha * ramp, 0.0)
    net = backlog + admitted - service_rate * tau
    # X is convex while it is fed: lowest where the admissions reach the service rate, or at the end if they never do.
    turn = torch.where(alpha > 0, (service_rate - decreased) / torch.where(alpha > 0, alpha, 1.0), torch.inf)
    if end is not None:
        turn = torch.where(turn >= end, torch.inf, turn)
    turn = torch.minimum(turn.clamp(min=0), fed)
    turn_ramp = turn if end is None else torch.minimum(turn, end)
    lowest = backlog + admitted_requests(decreased, alpha, turn, turn_ramp) - service_rate * turn
    fall = torch.minimum(lowest, net).clamp(max=0)
    return CycleState(rate, net - fall, backlog + admitted, service_rate * tau, admitted)


def ramp_end_of(alpha: Tensor, decreased: Tensor, u_max: Tensor) -> Tensor:
    """t_s = (u_max - a) / alpha; inf for masked units."""
    return torch.where(alpha > 0, (u_max - decreased) / torch.where(alpha > 0, alpha, 1.0), torch.inf)
