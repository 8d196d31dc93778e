"""Queues served at any constant rate within a cycle: over- and under-provisioned units, and gaps without arrivals.

At gamma_hat a queue never runs dry within a cycle and `events.next_backlog_time` is exact and cheaper. This file is the
general case, a fluid queue `w' = u - gamma` reflected at zero.
"""

import torch
from torch import Tensor

from idn_torch.aimd.qos import admitted_requests

__all__ = ["drain", "serve_at_rate"]


def serve_at_rate(
    w: Tensor, a: Tensor, alpha: Tensor, gamma: Tensor, period: Tensor, ramp_end: Tensor
) -> tuple[Tensor, Tensor]:
    """Backlog after a cycle and the integral of the backlog over it.

    With X(tau) = w + admitted(tau) - gamma tau, convex: the queue first runs dry at the smaller root tau_0 of X, is
    empty until `turn`, where admissions reach gamma, and grows from there by the admissions above gamma.

    Args:
        w, a, alpha, gamma: `(B, n)`.
        period: T `(B, 1)`.
        ramp_end: t_s `(B, n)`, inf where nothing saturates.

    Returns:
        w+ `(B, n)`, integral `(B, n)` in request-seconds.
    """
    some = alpha > 0
    slope = torch.where(some, alpha, 1.0)
    t = torch.minimum(period, ramp_end)
    vertex = torch.where(some, (gamma - a) / slope, 0.0)
    # From gamma >= u_max on, X falls until the end.
    turn = torch.where(vertex >= ramp_end, period, torch.minimum(vertex.clamp(min=0), period))
    turn_ramp = torch.minimum(turn, ramp_end)
    lowest = w + admitted_requests(a, alpha, turn, turn_ramp) - gamma * turn
    dry = lowest < 0

    # Smaller root of w + (a - gamma) tau + alpha tau^2 / 2, written without cancellation.
    disc = (vertex * vertex - 2 * w / slope).clamp(min=0).sqrt()
    first = 2 * w / slope / (vertex + disc).clamp(min=torch.finfo(w.dtype).tiny)
    # Past the ramp the excess of gamma over the admissions is constant.
    late = first > ramp_end
    peak = a + alpha * torch.where(late, ramp_end, 0.0)
    at_peak = w + admitted_requests(a, alpha, t, t) - gamma * t
    first = torch.where(late, t + at_peak.clamp(min=0) / torch.where(late, gamma - peak, 1.0), first)
    first = torch.where(dry, torch.minimum(first, turn), period)

    rising = (t - turn_ramp).clamp(min=0)
    flat = period - torch.maximum(t, turn)
    grown = alpha * rising * (rising / 2 + flat)
    whole = (w + admitted_requests(a, alpha, period, t) - gamma * period).clamp(min=0)
    after = torch.where(dry, grown, whole)

    first_ramp = torch.minimum(first, ramp_end)
    area = w * first + _admitted_area(a, alpha, first, first_ramp) - gamma * first * first / 2
    regrowth = alpha * rising * (rising * rising / 6 + flat * rising / 2 + flat * flat / 2)
    return after, (area + torch.where(dry, regrowth, 0.0)).clamp(min=0)


def drain(w: Tensor, gamma: Tensor, wait: Tensor) -> tuple[Tensor, Tensor]:
    """Backlog after `wait` seconds without admissions, and its integral.

    Args:
        w, gamma: `(B, n)`.
        wait: `(B, 1)`, >= 0 and finite.
    """
    busy = torch.minimum(wait, torch.where(gamma > 0, w / torch.where(gamma > 0, gamma, 1.0), torch.inf))
    left = torch.where(busy < wait, 0.0, w - gamma * wait).clamp(min=0)
    return left, w * busy - gamma * busy * busy / 2


def _admitted_area(a: Tensor, alpha: Tensor, tau: Tensor, ramp: Tensor) -> Tensor:
    """Integral of the admissions so far from 0 to tau, `ramp = min(tau, t_s)`."""
    return a * tau * tau / 2 + alpha * ramp * (ramp * ramp / 6 + tau * (tau - ramp) / 2)
