"""One AIMD event as pure tensor maths: decrease, period, admission, backlog. No branch looks at a value.

Shapes: B systems of n units, `u (B, n)`; per-system values `(B,)`. The backlog is carried as `q = sqrt(2 w / alpha)`,
the time t_z of Eq. (42) at which the service line touches the admissions: `q+ = |q - T|` needs no square root and
cannot become negative, where the expanded sum of Eq. (44) does by rounding.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from idn_torch.aimd.period import catch_up_time
from idn_torch.aimd.system import System

__all__ = [
    "GUARD",
    "DecreasePlan",
    "backlog_of",
    "decrease",
    "next_backlog_time",
    "plan_decrease",
    "saturated_period",
    "select",
    "service_rate",
    "tangent_time",
]

#: The decreased rates stay below (1 - GUARD) * lambda, so that no cycle has length zero.
GUARD = 1e-6


class DecreasePlan(NamedTuple):
    """What `decrease` needs besides the state, made once per run by `plan_decrease`."""

    #: beta `(B, n)`.
    beta: Tensor
    #: beta^(2^j), j = 0, 1, ..., each `(B, n)`.
    powers: tuple[Tensor, ...]
    #: False if one decrease always suffices.
    repeats: bool
    #: More decreases than this in one event are a status.
    max_drops: int


def plan_decrease(beta: Tensor, largest_sum: Tensor, smallest_rate: Tensor, max_drops: int) -> DecreasePlan:
    """Bound the decreases an event can need and tabulate the powers of beta for them. Waits for the device.

    Admission rates sum to at most `max(sum u_0, 2 lambda)`: after an event `sum u = 2 lambda - sum a` (less with
    saturation), so d decreases suffice once `max(beta)^d * largest_sum <= smallest_rate`.

    Args:
        beta: `(B, n)`.
        largest_sum: bound on `sum u`, `(B,)`.
        smallest_rate: smallest positive arrival rate, `(B,)`; systems that never run pass inf.
        max_drops: >= 1.
    """
    # inf / inf: a system that never runs, with rates whose sum overflows.
    ratio = (
        (largest_sum.double() / (smallest_rate.double() * (1 - GUARD)))
        .nan_to_num(nan=1.0, posinf=torch.inf)
        .clamp(min=1.0)
    )
    steps = ratio.log() / -beta.double().amax(-1).clamp(min=1e-300).log()
    # The small surplus covers the rounding of the sums in an event.
    bound = math.ceil(min(float(steps.amax()) + 1e-3, float(max_drops))) if steps.numel() else 1
    powers: list[Tensor] = []
    if bound > 2:
        powers.append(beta)
        while 2 ** len(powers) + 1 < bound:
            powers.append(powers[-1] * powers[-1])
    return DecreasePlan(beta, tuple(powers), bound > 1, max_drops)


def select(flag: Tensor, yes: Tensor, no: Tensor) -> Tensor:
    """`yes` for systems where flag `(B,)` holds, else `no`; both `(B, n)` and finite.

    A lerp with weights 0 and 1 is exact, and on CPUs five times as fast as `torch.where` on a broadcast condition.
    """
    return torch.lerp(no, yes, flag.to(no.dtype)[:, None])


def decrease(u: Tensor, limit: Tensor, plan: DecreasePlan) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Multiplicative decrease `a = beta^d u` with the smallest d >= 1 such that `sum a <= limit`.

    d - 1 is found bit by bit, from the highest: a power of beta is taken as long as the sum stays above the limit
    (the sum falls with d). That is log2(max d) rounds of fixed length instead of a loop that asks whether it is done.

    Args:
        u: admission rates `(B, n)`.
        limit: `(1 - GUARD) * lambda`, `(B,)`.
        plan: from `plan_decrease`.

    Returns:
        a `(B, n)`, sum a `(B,)`, d `(B,)` int64, and True where the limit is not met in `max_drops` decreases.
    """
    a = plan.beta * u
    total = a.sum(-1)
    drops = torch.ones_like(total, dtype=torch.int64)
    if plan.repeats:
        for j in reversed(range(len(plan.powers))):
            lower = a * plan.powers[j]
            lower_total = lower.sum(-1)
            above = lower_total > limit
            a = select(above, lower, a)
            total = torch.where(above, lower_total, total)
            drops = drops + (above.to(torch.int64) << j)
        above = total > limit
        a = select(above, a * plan.beta, a)
        total = torch.where(above, a.sum(-1), total)
        drops = drops + above
    return a, total, drops, (total > limit) | (drops > plan.max_drops)


def saturated_period(
    a: Tensor, ramp_end: Tensor, system: System, rate: Tensor, head: Tensor | None = None, start: Tensor | None = None
) -> Tensor:
    """T with `sum_i [a T + alpha t (T - t / 2)] = head + rate T`, `t = min(T, ramp_end)`.

    Args:
        a: decreased rates `(B, n)`.
        ramp_end: `t_s = (u_max - a) / alpha`, `(B, n)`, inf for masked units.
        system: flattened, with u_max.
        rate, head, start: see `catch_up_time`.
    """
    assert system.u_max is not None
    lost = (system.u_max - a) * ramp_end / 2
    return catch_up_time(a, system.alpha / 2, system.u_max, lost, ramp_end, rate, head, start)


def tangent_time(w: Tensor, alpha: Tensor) -> Tensor:
    """`q = sqrt(2 w / alpha)`, Eq. (42); 0 for masked units, whose alpha and w are 0."""
    return w.sqrt().mul_(math.sqrt(2)) / alpha.clamp(min=torch.finfo(alpha.dtype).tiny).sqrt_()


def backlog_of(q: Tensor, alpha: Tensor) -> Tensor:
    """`w = alpha / 2 * q^2`, the inverse of `tangent_time`."""
    return (alpha * q).mul_(q).mul_(0.5)


def service_rate(a: Tensor, q: Tensor, system: System) -> Tensor:
    """`gamma_hat = a + sqrt(2 alpha w) = a + alpha q`, at most u_max, Eq. (41); times the service factor."""
    gamma = torch.addcmul(a, system.alpha, q)
    if system.u_max is not None:
        gamma = torch.minimum(gamma, system.u_max)
    return gamma if system.service_factor is None else gamma * system.service_factor


def next_backlog_time(q: Tensor, period: Tensor, ramp_end: Tensor | None) -> Tensor:
    """q after a cycle served at gamma_hat, Eq. (44).

    `q+ = |q - T|` without a bound on the rates. With t = min(T, t_s) and e = min(q, t_s),
    `q+^2 = (q - e)(q + e) + (t - e)(2 T - t - e)`; every factor's sign survives rounding, so nothing goes negative.

    Args:
        q: `(B, n)`.
        period: T `(B,)`.
        ramp_end: t_s `(B, n)`, or None.
    """
    length = period[:, None]
    if ramp_end is None:
        return (q - length).abs_()
    t = torch.minimum(length, ramp_end)
    e = torch.minimum(q, ramp_end)
    return ((q - e) * (q + e) + (t - e) * ((length - t) + (length - e))).sqrt_()
