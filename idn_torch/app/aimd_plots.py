"""plots/*.png of an AIMD run: one system at its events and in time, and how all of them converge."""

from collections.abc import Sequence
from pathlib import Path

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from idn_torch import aimd
from idn_torch.app.aimd_experiment import AimdExperiment, Draw
from idn_torch.app.aimd_observe import Observed
from idn_torch.app.aimd_summary import quantile
from idn_torch.app.figures import new_figure, save

__all__ = ["draw_aimd_plots"]

_LARGEST_LEGEND = 8  # units of the system that is shown
_CYCLES_SHOWN = 15  # of a constant workload: more saw-teeth than that are a smear
_POINTS = 3000


def draw_aimd_plots(directory: Path, experiment: AimdExperiment, observed: Sequence[Observed]) -> None:
    """Write all plots."""
    index, draw = _shown(experiment, observed[0])
    run = draw.simulate(experiment.config.aimd, "all")
    save(directory / "plots" / "events.png", _events(run, index))
    save(directory / "plots" / "sawtooth.png", _sawtooth(run, draw, index))
    save(directory / "plots" / "convergence.png", _convergence(observed))
    save(directory / "plots" / "cycles_to_invariant.png", _cycles(observed, not experiment.config.aimd.workload))


def _shown(experiment: AimdExperiment, observed: Observed) -> tuple[int, Draw]:
    """The first system of the first seed that ran to the end; the first of all if none did."""
    index = int((observed.status == aimd.Status.OK).to(torch.uint8).argmax())
    return index, experiment.draws[0].rows(index)


def _events(run: aimd.Simulation, index: int) -> Figure:
    """Admission rates before the decrease, and backlogs, at the events of one system."""
    figure, (rates, backlogs) = _panels(2)
    _lines(rates, run.events, run.admission, run, "admission rate u(k), requests / s")
    _lines(backlogs, run.events, run.backlog, run, "backlog w(k), requests")
    backlogs.set_xlabel("event k")
    rates.set_title(f"system {index} at its events")
    return figure


def _sawtooth(run: aimd.Simulation, draw: Draw, index: int) -> Figure:
    """Admission rates, backlogs and the batch queue of one system in time."""
    end = float(run.final_time)
    if isinstance(draw.workload, Tensor):
        end = min(end, _CYCLES_SHOWN * float(draw.nominal.period))
    t = torch.linspace(0, end, _POINTS, dtype=run.period.dtype, device=run.period.device)
    seen = aimd.sample(run, t)
    figure, (rates, backlogs, batch) = _panels(3)
    _lines(rates, t, seen.admission, run, "admission rate u(t), requests / s")
    _lines(backlogs, t, seen.backlog, run, "backlog w(t), requests")
    batch.plot(t.cpu().numpy(), seen.batch_queue.cpu().numpy(), color="k", linewidth=0.8)
    batch.set_ylabel("batch queue, requests")
    batch.set_xlabel("time, s")
    batch.grid(alpha=0.3)
    rates.set_title(f"system {index} in time")
    return figure


def _convergence(observed: Sequence[Observed]) -> Figure:
    """Period over the equilibrium's, and the share of units in their invariant set, of the systems that run."""
    figure, (ratio, share) = _panels(2)
    events = observed[0].events.numpy()
    all_of = {name: torch.cat([one.at_events[name] for one in observed]) for name in observed[0].at_events}
    running = all_of["period"] > 0
    value = all_of["period_over_equilibrium"]
    low, middle, high = (quantile(value, running, q).numpy() for q in (0.05, 0.5, 0.95))
    marker = "." if len(events) < 20 else None
    ratio.plot(events, middle, marker=marker, label="median")
    ratio.fill_between(events, low, high, alpha=0.25, linewidth=0, label="5 % to 95 % of the systems")
    if running.any():  # a logarithmic axis of nothing is an error
        ratio.set_yscale("log")
    ratio.set_ylabel("period / equilibrium at lambda")
    ratio.legend(loc="best", fontsize="small")
    inside = torch.where(running, all_of["inside"], torch.nan).nanmean(0).numpy()
    share.plot(events, inside, marker=marker, color="C2")
    share.set_ylim(0, 1.02)
    share.set_ylabel("share of units with the\nbacklog in its invariant set")
    share.set_xlabel("event k")
    for axes in (ratio, share):
        axes.grid(alpha=0.3)
    return figure


def _cycles(observed: Sequence[Observed], constant: bool) -> Figure:
    """Over all units, how many cycles it took until the backlog was in its invariant set."""
    figure, axes = new_figure(7, 4.2)
    entered = torch.cat([one.entered for one in observed])
    predicted = torch.cat([one.predicted for one in observed])
    inside, known = entered[entered >= 0], predicted[predicted >= 0]
    last = max([1, *(int(one.max()) for one in (inside, known) if len(one))])
    edges = (torch.arange(last + 2) - 0.5 if last < 60 else torch.linspace(-0.5, last + 0.5, 60)).tolist()
    axes.hist(inside.numpy(), bins=edges, label="simulated", color="C0", alpha=0.7)
    if constant:
        label = "at the equilibrium period from the start"
        axes.hist(known.numpy(), bins=edges, histtype="step", color="k", label=label)
    axes.set_xlabel("cycles until the backlog is in its invariant set")
    axes.set_ylabel("units")
    axes.set_title(f"{len(entered) - len(inside)} of {len(entered)} units never got there")
    axes.legend(fontsize="small")
    return figure


def _panels(count: int) -> tuple[Figure, Sequence[Axes]]:
    figure = Figure(figsize=(9, 2.6 * count), layout="constrained")
    return figure, figure.subplots(count, 1, sharex=True)


def _lines(axes: Axes, x: Tensor, values: Tensor, run: aimd.Simulation, title: str) -> None:
    """A line for each of the first units."""
    exists = run.system.mask.nonzero()[:, 0].tolist()
    for i in exists[:_LARGEST_LEGEND]:
        axes.plot(x.cpu().numpy(), values[:, i].cpu().numpy(), linewidth=0.8, label=f"unit {i}")
    more = f" (first {_LARGEST_LEGEND} of {len(exists)} units)" if len(exists) > _LARGEST_LEGEND else ""
    axes.set_ylabel(title + more, fontsize="small")
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend(loc="upper right", fontsize="x-small", ncols=4)
