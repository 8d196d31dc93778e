"""What an AIMD run came to: the rows of metrics.*, and the figures of summary.json."""

import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from idn_torch import aimd
from idn_torch.app.aimd_experiment import AimdExperiment
from idn_torch.app.aimd_observe import Observed
from idn_torch.app.summary import mean_figures, versions

__all__ = ["STATISTICS", "event_rows", "quantile", "summarise_aimd"]

STATISTICS = ("mean", "median", "p95", "max")

_LARGEST = ("drops", "backlog_over_bound")  # of these the worst system says more than the mean


def event_rows(experiment: AimdExperiment, observed: Sequence[Observed]) -> Iterator[dict[str, Any]]:
    """A row for every recorded event, and for every seed where there are several.

    Figures are means over the systems that still run at the event (`running`), but for `drops` and
    `backlog_over_bound`, the largest of any system.
    """
    tables = [_event_columns(one) for one in observed]
    for k, event in enumerate(observed[0].events.tolist()):
        for index, (draw, table) in enumerate(zip(experiment.draws, tables, strict=True)):
            label = {"instance": index, "seed": draw.seed} if len(tables) > 1 else {}
            yield {"event": event, **label, **{name: column[k] for name, column in table.items()}}


def _event_columns(observed: Observed) -> dict[str, list[Any]]:
    running = observed.at_events["period"] > 0
    columns: dict[str, list[Any]] = {"running": running.sum(0).tolist()}
    for name, value in observed.at_events.items():
        column = quantile(value, running, 1.0) if name in _LARGEST else _mean(value, running)
        columns[name] = column.tolist()
    ratio = observed.at_events["period_over_equilibrium"]
    for title, share in (("low", 0.05), ("high", 0.95)):
        columns[f"period_over_equilibrium_{title}"] = quantile(ratio, running, share).tolist()
    return columns


def summarise_aimd(
    experiment: AimdExperiment, observed: Sequence[Observed], status: str, seconds: float, simulated: float
) -> dict[str, Any]:
    """The content of summary.json.

    Args:
        experiment: what runs.
        observed: of each seed, those that are done.
        status: "running", "finished", "interrupted" or "failed".
        seconds: the run has taken.
        simulated: seconds of these spent on simulating and observing.

    Returns:
        Counts over all seeds, and statistics of the systems that ran to the end (status OK), means over the seeds. With
        several of them, those of each under `instances`.
    """
    config = experiment.config
    each = [_figures(one) for one in observed]
    counts = [_counts(one) for one in observed]
    events = sum(int(one.cycles.sum()) for one in observed)
    labels = [{"seed": draw.seed} for draw in experiment.draws]
    instances = [{**label, **count, **figures} for label, count, figures in zip(labels, counts, each, strict=False)]
    return {
        "status": status,
        "run": "aimd",
        **_total(counts),
        "events": events,
        "events_per_system": config.aimd.events,
        **({} if not each else mean_figures(each)),
        **({"instances": instances} if len(labels) > 1 else {}),
        "seed": config.seed,
        "wall_seconds": seconds,
        "events_per_second": events / simulated if simulated > 0 else None,
        "device": str(experiment.draws[0].systems.alpha.device),
        "dtype": config.dtype,
        "threads": experiment.threads,
        "aimd": dataclasses.asdict(config.aimd),
        "versions": versions(),
    }


def _counts(observed: Observed) -> dict[str, Any]:
    settled = observed.overall["settling_events"]
    return {
        "systems": len(observed.status),
        "by_status": {one.name: int((observed.status == one).sum()) for one in aimd.Status},
        "converged": int(settled.isfinite().sum()),
        "units": len(observed.entered),
        "units_in_invariant_set": int((observed.entered >= 0).sum()),
    }


def _total(counts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    if not counts:
        return {}
    return {
        key: _total([count[key] for count in counts]) if isinstance(value, dict) else sum(one[key] for one in counts)
        for key, value in counts[0].items()
    }


def _figures(observed: Observed) -> dict[str, Any]:
    """Statistics over the systems that ran to the end and have the figure."""
    ran = observed.status == aimd.Status.OK
    out = {}
    for name, value in observed.overall.items():
        known = (ran & value.isfinite())[:, None]
        table = value[:, None].double()
        columns = (_mean(table, known), *(quantile(table, known, share) for share in (0.5, 0.95, 1.0)))
        numbers = [float(column[0]) for column in columns]
        out[name] = {
            title: number if math.isfinite(number) else None for title, number in zip(STATISTICS, numbers, strict=True)
        }
    return out


def _mean(value: Tensor, known: Tensor) -> Tensor:
    """Over the rows that are known, of each column `(K,)`; NaN where none is."""
    return torch.where(known, value, 0.0).sum(0, dtype=torch.float64) / known.sum(0)


def quantile(value: Tensor, known: Tensor, share: float) -> Tensor:
    """A row's value, such that this share of the known ones lies below, of each column `(K,)`; NaN where none is."""
    ordered = torch.where(known, value.double(), torch.inf).sort(0).values
    count = known.sum(0)
    index = (share * (count - 1).clamp(min=0)).round().long()
    return torch.where(count > 0, ordered.gather(0, index[None])[0], torch.nan)
