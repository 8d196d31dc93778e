"""The oracle: one system, plain float64 loops, written from the paper's definitions and sharing no code with the rest.

Periods come from bisection on the batch queue, backlogs from following each queue piece by piece, queueing times from
integrating both queues. Slow on purpose. Tests compare every batched function with it.
"""

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

__all__ = ["ReferenceRun", "reference_cycle", "reference_fixed_point", "reference_simulate"]

_GUARD = 1e-6


class ReferenceCycle(NamedTuple):
    """One cycle of one system; lists have one entry a unit."""

    decreased: list[float]
    drops: int
    active: float  # seconds until the batch queue is empty
    wait: float  # and until arrivals resume, inf for never
    admission: list[float]  # at the next event
    backlog: list[float]  # at the next event
    service_rate: list[float]
    queueing_time: list[float]
    batch_time: list[float]
    margin: float  # least relative distance of a sum of rates from the limit: how clear the number of drops is


class ReferenceRun(NamedTuple):
    """Values per event, as in `Simulation`."""

    period: list[float]
    drops: list[int]
    admission: list[list[float]]
    backlog: list[list[float]]
    service_rate: list[list[float]]
    queueing_time: list[list[float]]
    time: list[float]
    wait: list[float]
    final_admission: list[float]
    final_backlog: list[float]
    status: str
    margin: float


def reference_simulate(
    alpha: Sequence[float],
    beta: Sequence[float],
    arrival_rate: float | Sequence[float] | Sequence[tuple[float, float]],
    u0: Sequence[float],
    w0: Sequence[float],
    events: int,
    u_max: Sequence[float] | None = None,
    service_factor: float = 1.0,
    max_drops: int = 4096,
) -> ReferenceRun:
    """Run one system.

    Args:
        arrival_rate: a number; one number per event; or pairs (time, rate), the rate holding from that time on.
        The other arguments are those of `simulate` for one system without masked units.
    """
    caps = [math.inf] * len(alpha) if u_max is None else list(u_max)
    u = [min(u0[i], caps[i]) for i in range(len(alpha))]
    w = list(w0)
    run = ReferenceRun([], [], [], [], [], [], [], [], [], [], "OK", math.inf)
    status, margin, now = "OK", math.inf, 0.0
    timed = not isinstance(arrival_rate, int | float) and len(arrival_rate) > 0 and isinstance(arrival_rate[0], tuple)
    if timed:
        first = [t for t, rate in arrival_rate if rate > 0]  # type: ignore[misc, union-attr]
        now = first[0] if first else 0.0
        status = "OK" if first else "IDLE"
    elif arrival_rate == 0:
        status = "IDLE"
    for k in range(events):
        if timed:
            pieces = [(t - now, rate) for t, rate in arrival_rate]  # type: ignore[misc, union-attr]
        else:
            pieces = [(0.0, float(arrival_rate if isinstance(arrival_rate, int | float) else arrival_rate[k]))]  # type: ignore[arg-type]
        outcome: ReferenceCycle | str = status
        if status == "OK":
            outcome = reference_cycle(alpha, beta, pieces, u, w, caps, service_factor, max_drops)
        run.admission.append(list(u))
        run.backlog.append(list(w))
        run.time.append(now)
        if isinstance(outcome, str):
            status = outcome
            zeros = [0.0] * len(alpha)
            run.period.append(0.0)
            run.drops.append(0)
            run.service_rate.append(zeros)
            run.queueing_time.append(zeros)
            run.wait.append(0.0)
            continue
        wait = outcome.wait
        if math.isinf(wait):
            status, wait = "IDLE", 0.0
        run.period.append(outcome.active + wait)
        run.wait.append(wait)
        run.drops.append(outcome.drops)
        run.service_rate.append(outcome.service_rate)
        run.queueing_time.append(outcome.queueing_time)
        u, w = outcome.admission, outcome.backlog
        margin = min(margin, outcome.margin)
        if timed and wait > 0:
            now = next(t for t, rate in arrival_rate if t - now > outcome.active and rate > 0)  # type: ignore[misc, union-attr]
        else:
            now += outcome.active
    return run._replace(final_admission=u, final_backlog=w, status=status, margin=margin)


def reference_cycle(
    alpha: Sequence[float],
    beta: Sequence[float],
    pieces: Sequence[tuple[float, float]],
    u: Sequence[float],
    w: Sequence[float],
    caps: Sequence[float],
    service_factor: float = 1.0,
    max_drops: int = 4096,
) -> ReferenceCycle | str:
    """One cycle from an event at time 0, or the status that prevents it.

    Args:
        pieces: pairs (start, rate) in time order, starts relative to the event; the last one holds for ever.
        caps: u_max, inf for none.
    """
    n = len(alpha)
    current = [rate for start, rate in pieces if start <= 0][-1]
    if len(pieces) == 1 and sum(caps) <= current:
        return "INFEASIBLE"
    limit = (1 - _GUARD) * current
    a, drops, margin = [beta[i] * u[i] for i in range(n)], 1, math.inf
    while True:
        margin = min(margin, abs(math.fsum(a) / limit - 1))
        if math.fsum(a) <= limit:
            break
        if drops == max_drops:
            return "DECREASE_LIMIT"
        a, drops = [beta[i] * a[i] for i in range(n)], drops + 1

    active = _empties(alpha, a, caps, pieces)
    if active is None:
        return "INFEASIBLE"
    rate_then = [rate for start, rate in pieces if start <= active * (1 + 1e-15)][-1]
    wait = 0.0
    if rate_then == 0:
        later = [start for start, rate in pieces if start > active and rate > 0]
        wait = later[0] - active if later else math.inf

    after, gammas, times, batch_times = [], [], [], []
    batch_areas = _batch_areas(alpha, a, caps, pieces, active)
    for i in range(n):
        gamma = service_factor * min(a[i] + math.sqrt(2 * alpha[i] * w[i]), caps[i])
        ramp = (caps[i] - a[i]) / alpha[i]
        # The queue of the unit: net inflow is linear in time on each piece.
        left, area = w[i], 0.0
        marks = [0.0, ramp, active] if ramp < active else [0.0, active]
        for low, high in itertools.pairwise(marks):
            rising = high <= ramp
            inflow = a[i] + alpha[i] * low if rising else caps[i]
            left, more = _reflected(left, inflow - gamma, alpha[i] if rising else 0.0, high - low)
            area += more
        if 0 < wait < math.inf:
            left, more = _reflected(left, -gamma, 0.0, wait)
            area += more
        admitted, queue = _admitted(alpha[i], a[i], caps[i], active), batch_areas[i]
        after.append(left)
        gammas.append(gamma)
        times.append((area + queue) / admitted if admitted > 0 else 0.0)
        batch_times.append(queue / admitted if admitted > 0 else 0.0)
    rates = [min(a[i] + alpha[i] * active, caps[i]) for i in range(n)]
    return ReferenceCycle(a, drops, active, wait, rates, after, gammas, times, batch_times, margin)


def reference_fixed_point(
    alpha: Sequence[float], beta: Sequence[float], arrival_rate: float, u_max: Sequence[float] | None = None
) -> tuple[float, list[float]]:
    """T* and u* by bisection on T: the cycle that starts at beta u* and ends at u* must admit lambda T."""
    n = len(alpha)
    caps = [math.inf] * n if u_max is None else list(u_max)

    def rates(period: float) -> list[float]:
        return [min(alpha[i] * period / (1 - beta[i]), caps[i]) for i in range(n)]

    def surplus(period: float) -> float:
        u = rates(period)
        return math.fsum(_admitted(alpha[i], beta[i] * u[i], caps[i], period) for i in range(n)) / period - arrival_rate

    period = _bisect(surplus, 0.0)
    return period, rates(period)


def _admitted(alpha: float, a: float, cap: float, t: float) -> float:
    """Integral of min(a + alpha s, cap) from 0 to t, Eq. (13)."""
    ramp = (cap - a) / alpha
    if t <= ramp:
        return a * t + alpha * t * t / 2
    return a * ramp + alpha * ramp * ramp / 2 + cap * (t - ramp)


def _batch_areas(
    alpha: Sequence[float],
    a: Sequence[float],
    caps: Sequence[float],
    pieces: Sequence[tuple[float, float]],
    active: float,
) -> list[float]:
    """Integral of the batch queue over the cycle, split over the units.

    Under a constant rate unit i's part is that of `delta_i = u_av tau - admitted(tau)`. Otherwise the parts are scaled
    to the integral of the true queue. All are quadratics between edges, for which Simpson's rule is exact.
    """

    def integral(function, edges):  # type: ignore[no-untyped-def]
        total = 0.0
        for low, high in itertools.pairwise(sorted(edges)):
            total += (high - low) / 6 * (function(low) + 4 * function((low + high) / 2) + function(high))
        return total

    n = len(alpha)
    ramps = [(caps[i] - a[i]) / alpha[i] for i in range(n)]
    parts = []
    for i in range(n):
        mean = _admitted(alpha[i], a[i], caps[i], active) / active
        parts.append(
            integral(
                lambda t, i=i, mean=mean: mean * t - _admitted(alpha[i], a[i], caps[i], t),
                {0.0, active, min(ramps[i], active)},
            )
        )
    changes = {start for start, _ in pieces if 0 < start < active}
    true = integral(
        lambda t: _arrived(pieces, t) - math.fsum(_admitted(alpha[i], a[i], caps[i], t) for i in range(n)),
        {0.0, active, *changes, *(ramp for ramp in ramps if ramp < active)},
    )
    return [part * true / math.fsum(parts) if part > 0 else 0.0 for part in parts]


def _arrived(pieces: Sequence[tuple[float, float]], t: float) -> float:
    """Integral of the arrival rate from 0 to t."""
    total = 0.0
    for p, (start, rate) in enumerate(pieces):
        stop = pieces[p + 1][0] if p + 1 < len(pieces) else math.inf
        total += rate * max(0.0, min(stop, t) - max(start, 0.0))
    return total


def _empties(
    alpha: Sequence[float], a: Sequence[float], caps: Sequence[float], pieces: Sequence[tuple[float, float]]
) -> float | None:
    """First time at which the batch queue, Eq. (11), is empty again; None for never."""

    def shortage(t: float) -> float:
        return math.fsum(_admitted(alpha[i], a[i], caps[i], t) for i in range(len(alpha))) - _arrived(pieces, t)

    now = [p for p, (start, _) in enumerate(pieces) if start <= 0][-1]
    begin = 0.0
    for p in range(now, len(pieces)):
        if p + 1 < len(pieces):
            stop = pieces[p + 1][0]
            if shortage(stop) >= 0:
                # The queue is concave in the piece: it rises from 0 or falls from above, so one sign change.
                low = begin if begin > 0 else min(stop, 1.0)
                while shortage(low) >= 0 and low > begin:
                    low = begin + (low - begin) / 2
                return _bisect(shortage, low, stop)
            begin = stop
        elif sum(caps) <= pieces[p][1]:
            return None
    return _bisect(shortage, begin)


def _bisect(function, low: float, high: float | None = None) -> float:  # type: ignore[no-untyped-def]
    """The sign change of a function that is negative right of `low` and positive from some point on."""
    if high is None:
        high = max(2 * low, 1e-12)
        while function(high) < 0:
            low, high = high, 2 * high
        while low == 0 and function(high / 2) >= 0:
            high /= 2
    for _ in range(200):
        mid = (low + high) / 2
        if mid in (low, high):
            break
        low, high = (mid, high) if function(mid) < 0 else (low, mid)
    return high


def _reflected(level: float, net: float, slope: float, length: float) -> tuple[float, float]:
    """A queue with net inflow `net + slope t`, kept at or above zero: its level after `length`, and its integral."""
    area, t = 0.0, 0.0
    while t < length:
        rate = net + slope * t
        rest = length - t
        if level <= 0 and rate <= 0:
            # Empty until the inflow turns positive.
            t = min(length, -net / slope) if slope > 0 and rate < 0 else (length if slope == 0 else t)
            level = 0.0
            if slope > 0 and rate == 0:
                rest = length - t
                return slope * rest * rest / 2, area + slope * rest**3 / 6
            if slope > 0 and t < length:
                rest = length - t
                return slope * rest * rest / 2, area + slope * rest**3 / 6
            continue
        # Time until the level reaches zero, if it does.
        hit = math.inf
        if slope == 0:
            hit = -level / rate if rate < 0 else math.inf
        elif rate < 0:
            disc = rate * rate - 2 * slope * level
            # Served at gamma_hat the parabola touches zero: no rounding error may turn that into a crossing.
            if disc > 1e-12 * rate * rate:
                hit = 2 * level / (-rate + math.sqrt(disc))
        step = min(hit, rest)
        area += level * step + rate * step * step / 2 + slope * step**3 / 6
        level = 0.0 if hit <= rest else max(0.0, level + rate * step + slope * step * step / 2)
        t += step
    return level, area
