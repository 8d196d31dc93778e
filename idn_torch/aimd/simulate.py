"""The closed loop of thousands of systems: `events` AIMD events in one program."""

import torch
from torch import Tensor

from idn_torch.aimd.checks import NONNEGATIVE, broadcast, check_tensor, check_values
from idn_torch.aimd.engine import choose_engine, run_ahead
from idn_torch.aimd.events import backlog_of
from idn_torch.aimd.result import Event, Recorder, Simulation, recorded_events
from idn_torch.aimd.step import Cycle, Measures, State, measure, start, step
from idn_torch.aimd.summary import add_cycle, finish_totals, start_totals
from idn_torch.aimd.system import flat, make_system
from idn_torch.aimd.workload import EventRate, PiecewiseRate, as_workload
from idn_torch.errors import InputError

__all__ = ["simulate"]


@torch.no_grad()
def simulate(
    alpha: Tensor,
    beta: Tensor,
    arrival_rate: float | Tensor | EventRate | PiecewiseRate,
    u0: Tensor,
    w0: Tensor,
    events: int,
    u_max: Tensor | None = None,
    mask: Tensor | None = None,
    *,
    service_factor: float | Tensor | None = None,
    record: str | int = "all",
    max_drops: int = 4096,
    engine: str = "auto",
) -> Simulation:
    """Run the AIMD admission and service controller for a number of events.

    At event k the batch queue is empty. Every unit lowers its admission rate to `a = beta^d u` with the smallest d >= 1
    such that `sum a <= (1 - 1e-6) lambda` (d = 1 is the paper's controller; more are needed where one would leave the
    batch queue empty), then raises it at the speed alpha up to u_max until the queue is empty again, T seconds later:

    - `sum_i [a T + alpha t (T - t/2)] = lambda T`, t = min(T, (u_max - a) / alpha); unsaturated
      `T = (lambda - sum a) / (sum alpha / 2)`, Eq. (17);
    - `u+ = min(a + alpha T, u_max)`, Eq. (14);
    - `gamma = min(a + sqrt(2 alpha w), u_max)`, Eq. (41), the fastest service that never runs the unit's queue dry;
    - `w+ = w + admitted - gamma T`, Eq. (44), computed as `(sqrt(w) - sqrt(alpha/2) T)^2`;
    - `T_i = (w + w+) / (2 u_av)`, Eq. (50).

    Args:
        alpha: additive increase > 0, `(..., n)`, requests / s^2.
        beta: multiplicative decrease in [0, 1), `(..., n)`.
        arrival_rate: lambda, requests / s. One rate a system, `(...)`, >= 0 (0: idle); or one an event, `(..., E)`,
            > 0, where it has as many dims as alpha; or a `PiecewiseRate`.
        u0: admission rates before the first decrease, >= 0, `(..., n)`; above u_max they start at u_max.
        w0: backlogs >= 0, `(..., n)`, requests.
        events: E >= 0.
        u_max: largest admission rates >= 0 (inf: none), `(..., n)`. A system runs only while `sum u_max > lambda`.
        mask: True for units that exist, `(..., n)`; the others may hold anything and come back as 0.
        service_factor: over- (> 1) or under-provisioned (< 1) service, a factor on gamma, number or `(..., n)`. Above 1
            queues run dry within a cycle; below 1 a backlog settles at `(u_av/f - a)^2 / (2 alpha)`, or grows for ever
            where the cap f u_max stays below u_av.
        record: "all" events (memory `5 E n` numbers a system); k for every k-th from 0; "last" for event E-1;
            "summary" for event E-1 and totals over all of them.
        max_drops: largest number of decreases in one event.
        engine: "torch"; "numba" (CPU; compiled on first use, the events between recorded ones only); or "auto": numba,
            or on a GPU Triton (without u_max), where it is installed, applies, and the run is long enough to pay for
            loading it. They differ by rounding.

    Returns:
        `Simulation`. Leading dims are those of all arguments broadcast; dtype and device those of alpha.

    Raises:
        InputError: an argument has a wrong type, shape, dtype or value, with its system, unit or event. What stops a
            single system is not an error but its `Status`.

    Example:
        >>> one = torch.ones(2, dtype=torch.float64)
        >>> run = simulate(one, one / 2, 3.0, one * 0, one * 0, events=40)
        >>> run.final_admission
        tensor([2.0000, 2.0000], dtype=torch.float64)

    Source: AIMD paper, Sections IV-VI. Saturation, the repeated decrease and rates that vary in time are additions.
    """
    if not isinstance(events, int) or isinstance(events, bool) or events < 0:
        raise InputError(f"events is {events!r}; expected a whole number >= 0")
    if not isinstance(max_drops, int) or isinstance(max_drops, bool) or max_drops < 1:
        raise InputError(f"max_drops is {max_drops!r}; expected a whole number >= 1")
    kept = recorded_events(record, events)
    system = make_system(alpha, beta, u_max, mask, service_factor)
    workload = as_workload(arrival_rate, alpha, events)
    for name, value in (("u0", u0), ("w0", w0)):
        check_tensor(name, value, alpha)
        if value.ndim == 0 or value.shape[-1] not in (1, system.alpha.shape[-1]):
            raise InputError(f"{name} {tuple(value.shape)} must end in the {system.alpha.shape[-1]} units of alpha")
        shape = broadcast(alpha=system.alpha.shape, **{name: value.shape})
        exists = None if system.complete else system.mask.expand(shape)
        check_values(name, value, NONNEGATIVE, exists)
    units = broadcast(alpha=system.alpha.shape, u0=u0.shape, w0=w0.shape)
    batch = broadcast(alpha=units[:-1], arrival_rate=workload.batch)

    n = units[-1]
    first_u, first_w = (flat(value.expand(*value.shape[:-1], n), batch) for value in (u0, w0))
    model, state = start(system.flattened(batch), workload.flattened(batch), first_u, first_w, max_drops)
    compiled = choose_engine(engine, model, events, kept)
    recorder = Recorder(state.u, kept)
    totals = start_totals(state) if record == "summary" else None

    event = 0
    while event < events:
        if compiled and event not in kept:
            stop = next((k for k in kept if k > event), events)
            state, totals = run_ahead(model, state, totals, event, stop)
            event = stop
            continue
        after, cycle = step(model, state, event)
        if totals is not None or event in kept:
            measures = measure(model, state, cycle, after)
            if totals is not None:
                totals = add_cycle(totals, event, state, cycle, measures, after)
            if event in kept:
                recorder.store(event, _event(state, cycle, measures))
        state = after
        event += 1

    return Simulation(
        **{name: value.reshape(*batch, *value.shape[1:]) for name, value in recorder.tensors().items()},
        events=torch.tensor(list(kept), dtype=torch.int64, device=alpha.device),
        final_admission=state.u.reshape(*batch, n),
        final_backlog=backlog_of(state.q, model.system.alpha).reshape(*batch, n),
        final_time=state.clock.time.to(alpha.dtype).reshape(batch),
        status=state.status.reshape(batch),
        summary=None if totals is None else finish_totals(totals, model, batch),
        system=system.expanded(batch),
        workload=workload,
    )


def _event(state: State, cycle: Cycle, measures: Measures) -> Event:
    wait = cycle.period.new_zeros(()) if cycle.wait is None else cycle.wait
    return Event(
        period=cycle.period + wait,
        drops=cycle.drops,
        admission=state.u,
        backlog=measures.backlog,
        service_rate=measures.service_rate,
        queueing_time=measures.queueing_time,
        time=state.clock.time,
        wait=wait,
    )
