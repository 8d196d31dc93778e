"""The service controller on its own: gamma_hat, the invariant set of the backlog and the way into it."""

from typing import NamedTuple

import torch
from torch import Tensor

from idn_torch.aimd.events import backlog_of, tangent_time
from idn_torch.aimd.qos import ramp_end_of
from idn_torch.aimd.result import Simulation
from idn_torch.errors import InputError

__all__ = ["TwoCycle", "cycles_to_invariant", "gamma_hat", "invariant_bound", "invariant_entry", "two_cycle"]


class TwoCycle(NamedTuple):
    """The backlogs between which a unit alternates, requests `(..., n)`."""

    #: At the first event in the invariant set, and every second one after it.
    entered: Tensor
    #: At the events between.
    between: Tensor


@torch.no_grad()
def gamma_hat(
    decreased: Tensor, alpha: Tensor, backlog: Tensor, u_max: Tensor | None = None, factor: float | Tensor = 1.0
) -> Tensor:
    """`factor * min(a + sqrt(2 alpha w), u_max)`: the fastest constant service that never waits for requests, Eq. (41).

    It is the slope of the tangent from the origin to the requests offered so far, `w + a tau + alpha tau^2 / 2`.

    Args:
        decreased: a = beta^d u, rates after the decrease, `(..., n)`, requests / s.
        alpha: `(..., n)`, requests / s^2; 0 for padding.
        backlog: w >= 0 at the event, `(..., n)`, requests.
        u_max: largest admission rates, `(..., n)`, requests / s.
        factor: > 1 over-provisions (units run dry within the cycle), < 1 under-provisions (larger backlogs).

    Returns:
        `(..., n)`, requests / s.

    Example:
        >>> gamma_hat(torch.tensor([1.0]), torch.tensor([2.0]), torch.tensor([4.0]))
        tensor([5.])
    """
    gamma = decreased + (2 * alpha * backlog).sqrt()
    return factor * (gamma if u_max is None else torch.minimum(gamma, u_max))


@torch.no_grad()
def invariant_bound(
    alpha: Tensor, period: Tensor, decreased: Tensor | None = None, u_max: Tensor | None = None
) -> Tensor:
    """Upper end of the invariant set `W = [0, alpha/2 t (2T - t)]`, t = min(T, (u_max - a)/alpha) the time of rising.

    Without saturation `alpha/2 T^2`, Theorem 3: `w(k) in W(k)` implies `w(k+1) in W(k)`. The saturated form is ours; it
    is `(u_av - a) T`, what a cycle admits above its lowest rate.

    Args:
        alpha: `(..., n)`.
        period: T, `(...)`, seconds.
        decreased, u_max: both or neither, `(..., n)`.

    Returns:
        `(..., n)`, requests.
    """
    length = period[..., None]
    t = torch.minimum(length, _ramp_end(alpha, decreased, u_max))
    return alpha / 2 * t * (2 * length - t)


@torch.no_grad()
def cycles_to_invariant(
    alpha: Tensor,
    backlog: Tensor,
    period: Tensor,
    decreased: Tensor | None = None,
    u_max: Tensor | None = None,
) -> Tensor:
    """Cycles of constant length T (and constant a) until each backlog is in its invariant set.

    With q = sqrt(2 w / alpha) and no bound on the rates, q falls by T a cycle: `max(0, ceil(q / T - 1))`. With u_max
    the service is capped while q > t_s = (u_max - a) / alpha: q^2 falls by `t (2 t_s - t)`, t = min(T, t_s), instead.

    Args:
        alpha: `(..., n)`; 0 for padding.
        backlog: w >= 0, `(..., n)`, requests.
        period: T > 0, `(...)`, seconds.
        decreased, u_max: both or neither, `(..., n)`.

    Returns:
        int64 `(..., n)`; -1 for never (T = 0, or a unit whose u_max leaves nothing to drain with).

    Source: Theorem 3. The count is ours.
    """
    length = period[..., None].to(alpha.dtype)
    end = _ramp_end(alpha, decreased, u_max)
    q = tangent_time(backlog, alpha)
    t = torch.minimum(length, end)
    goal = t * (2 * length - t)
    capped_to = torch.where(end < length, goal, end * end)
    # end = inf: no cap, and no cycle with one.
    fall = torch.where(end.isfinite(), t * (2 * end - t), 1.0)
    capped = torch.where(end.isfinite() & (q * q > capped_to), ((q * q - capped_to) / fall).ceil(), 0.0)
    rest = (q * q - torch.where(capped > 0, capped * fall, 0.0)).clamp(min=0).sqrt()
    free = torch.where(end < length, 0.0, (rest / length - 1).ceil().clamp(min=0))
    count = capped + free
    # 0/0: nothing queued and no time to serve it in.
    count = torch.where(count.isnan(), 0.0, count)
    return torch.where(count.isfinite(), count, -1.0).to(torch.int64)


@torch.no_grad()
def two_cycle(alpha: Tensor, backlog: Tensor, period: Tensor) -> TwoCycle:
    """The 2-cycle that a backlog ends in at constant T without saturation: q alternates between q and T - q.

    It is a cycle, not a point, unless q = T/2. On it `w + w+` lies between alpha T^2/4 and alpha T^2/2, so T_i lies in
    `[alpha T^2 / (8 u_av), alpha T^2 / (4 u_av)]`.

    Args:
        alpha: `(..., n)`; 0 for padding.
        backlog: w >= 0 now, `(..., n)`, requests.
        period: T > 0, `(...)`, seconds.

    Returns:
        `TwoCycle`; `entered` is reached after `cycles_to_invariant` cycles.
    """
    length = period[..., None]
    q = tangent_time(backlog, alpha)
    q = (q - cycles_to_invariant(alpha, backlog, period) * length).clamp(min=0)
    return TwoCycle(backlog_of(q, alpha), backlog_of((length - q).abs(), alpha))


@torch.no_grad()
def invariant_entry(simulation: Simulation, slack: float = 0.0) -> Tensor:
    """First recorded event at which each backlog is in its invariant set, int64 `(..., n)`; -1 for none, 0 for padding.

    Args:
        simulation: with recorded events.
        slack: relative slack on the bound; >= 0.
    """
    if not slack >= 0:
        raise InputError(f"slack is {slack}; must be >= 0")
    system = simulation.system
    a = simulation.admission * system.beta[..., None, :] ** simulation.drops[..., None]
    alpha = system.alpha[..., None, :]
    u_max = None if system.u_max is None else system.u_max[..., None, :]
    active = simulation.period - simulation.wait
    bound = invariant_bound(alpha, active, None if u_max is None else a, u_max) * (1 + slack)
    inside = (simulation.backlog <= bound) & (simulation.period > 0)[..., None]
    first = inside.to(torch.int64).cumsum(-2).eq(0).sum(-2)
    none = first == inside.shape[-2]
    events = torch.cat([simulation.events, simulation.events.new_zeros(1)])
    return torch.where(system.mask, torch.where(none, -1, events[first]), 0)


def _ramp_end(alpha: Tensor, decreased: Tensor | None, u_max: Tensor | None) -> Tensor:
    if (decreased is None) != (u_max is None):
        raise InputError("give decreased and u_max together: saturation depends on both")
    if decreased is None or u_max is None:
        return torch.full_like(alpha, torch.inf)
    return ramp_end_of(alpha, decreased, u_max)
