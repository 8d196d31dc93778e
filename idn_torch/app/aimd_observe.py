"""What is kept of an AIMD run: figures of every system at its recorded events, and over its whole run."""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from idn_torch import aimd
from idn_torch.app.aimd_config import SystemsConfig
from idn_torch.app.aimd_experiment import Draw

__all__ = ["Observed", "chunks", "join", "observe_systems"]

_CHUNK = 1 << 22  # recorded unit-events held at a time; four numbers each


class Observed(NamedTuple):
    """Figures of B systems at K recorded events, on the host."""

    #: Indices of the recorded events, `(K,)`.
    events: Tensor
    #: At each of them, by name, `(B, K)`.
    at_events: dict[str, Tensor]
    #: Of the whole run, by name, `(B,)`; NaN for what a system has not.
    overall: dict[str, Tensor]
    #: First event with the backlog in its invariant set, of every unit that exists, `(units,)`; -1 for never.
    entered: Tensor
    #: The same if the period were the equilibrium's from the start.
    predicted: Tensor
    #: `aimd.Status` of each system, `(B,)`.
    status: Tensor
    #: Events that each system went through, `(B,)`.
    cycles: Tensor


def chunks(draw: Draw, config: SystemsConfig) -> Iterator[Draw]:
    """The systems in parts whose recorded events fit into memory."""
    rows, units = draw.systems.alpha.shape
    recorded = -(-config.events // config.record_every)
    step = max(1, _CHUNK // (recorded * units))
    for first in range(0, rows, step):
        yield draw.rows(slice(first, first + step))


def observe_systems(draw: Draw, config: SystemsConfig) -> Observed:
    """Run the systems and reduce what they did: twice, since totals over all events need no record of each."""
    totals = draw.simulate(config, "summary")
    run = draw.simulate(config, config.record_every)
    assert totals.summary is not None
    s, over, system = draw.systems, totals.summary, run.system
    exists = system.mask
    a = run.admission * system.beta[:, None] ** run.drops[..., None]
    u_max = None if system.u_max is None else system.u_max[:, None]
    bound = aimd.invariant_bound(system.alpha[:, None], run.period - run.wait, None if u_max is None else a, u_max)
    rounding = torch.finfo(bound.dtype).eps ** 0.5  # a backlog may settle on the bound itself
    units = exists.sum(-1)
    shares = run.admission / torch.where(exists, draw.nominal.admission, 1.0)[:, None]
    at_events = {
        "period": run.period,
        "period_over_equilibrium": run.period / draw.nominal.period[:, None],
        "drops": run.drops,
        "admission": run.admission.sum(-1),
        "backlog": run.backlog.sum(-1),
        "backlog_over_bound": _ratio(run.backlog, bound).amax(-1),
        "inside": ((run.backlog <= bound * (1 + rounding)) & exists[:, None]).sum(-1) / units[:, None],
        "queueing_time": run.queueing_time.sum(-1) / units[:, None],
        "fairness": aimd.jain_index(shares, exists[:, None]),
    }
    ran = totals.status == aimd.Status.OK
    settled = _settled(draw, run, config.rtol)
    inside = (over.entered >= 0).all(-1)
    overall = {
        "equilibrium_period": draw.final.period,
        "settling_events": _where(ran & (settled >= 0), settled),
        "max_backlog": over.max_backlog.amax(-1),
        "final_backlog_over_bound": at_events["backlog_over_bound"][:, -1],
        "cycles_to_invariant": _where(inside, over.entered.amax(-1)),
        "queueing_time": over.mean_system_queueing_time,
        "jain_index": aimd.jain_index(over.mean_admission, exists),
        "jain_index_of_shares": aimd.jain_index(
            over.mean_admission / torch.where(exists, draw.nominal.average_rate, 1.0), exists
        ),
    }
    first = None if s.u_max is None else s.beta * draw.nominal.admission
    predicted = aimd.cycles_to_invariant(s.alpha, s.w0, draw.nominal.period, first, s.u_max)
    return Observed(
        run.events.cpu(),
        {name: value.cpu() for name, value in at_events.items()},
        {name: value.cpu() for name, value in overall.items()},
        over.entered[exists].cpu(),
        predicted[exists].cpu(),
        totals.status.cpu(),
        over.cycles.cpu(),
    )


def join(parts: list[Observed]) -> Observed:
    """The figures of all systems, from those of the chunks."""
    one = parts[0]
    return Observed(
        one.events,
        {name: torch.cat([part.at_events[name] for part in parts]) for name in one.at_events},
        {name: torch.cat([part.overall[name] for part in parts]) for name in one.overall},
        *(torch.cat(column) for column in zip(*(part[3:] for part in parts), strict=True)),
    )


def _settled(draw: Draw, run: aimd.Simulation, rtol: float) -> Tensor:
    """Events from the last change of the rate until the period stays at the equilibrium's, `(B,)`; -1 for never."""
    settled = aimd.settling_event(run, draw.final.period, rtol)
    before = (run.time < draw.changed[:, None].to(run.time)).sum(-1)  # events recorded before that
    seen = before < len(run.events)
    first = run.events[before.clamp(max=len(run.events) - 1)]
    return torch.where(seen & (settled >= 0), (settled - first).clamp(min=0), -1)


def _ratio(value: Tensor, bound: Tensor) -> Tensor:
    """0 where there is neither a backlog nor a bound."""
    return torch.where(bound > 0, value / torch.where(bound > 0, bound, 1.0), 0.0)


def _where(known: Tensor, value: Tensor) -> Tensor:
    return torch.where(known, value.double(), torch.nan)
