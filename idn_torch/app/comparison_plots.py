"""Plots that set many policies, or several values of alpha, side by side."""

from collections.abc import Callable
from typing import Any

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from idn_torch.app.figures import marker, panel_grid
from idn_torch.app.loop import FIGURES, Loop

__all__ = ["running_gain", "tradeoffs"]

Figures = dict[str, Any]


def running_gain(loop: Loop, summary: dict[str, Any]) -> Figure:
    """NTAG of the slots so far, a line for each contender and a panel for each group of instances."""
    experiment = loop.experiment
    groups = experiment.instances.groups()
    figure, panels = panel_grid(len(groups), 8 if len(groups) == 1 else 5, 4.5)
    dot = "." if loop.slot < 20 else None  # a single slot makes no line
    for axes, (label, members) in zip(panels.flat, groups.items(), strict=False):
        for index, one in enumerate(experiment.contenders):
            history = loop.history[one.name]
            history = history[..., members] if history.shape[-1] > 1 else history
            requests, gain = (history[:, FIGURES.index(name)] for name in ("requests", "gain"))
            some = requests > 0
            each = torch.where(some, gain / torch.where(some, requests, 1.0), 0.0)
            ntag = each.cumsum(0) / some.cumsum(0).clamp(min=1)
            style = {"color": f"C{index % 10}", "ls": "-" if index < 10 else "--", "marker": dot}
            axes.plot(ntag.mean(-1).numpy(), **style, label=one.name)
        axes.set_title(label or summary["problem"], fontsize="small")
        axes.set_xlabel("slot")
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
    for axes in panels[:, 0]:
        axes.set_ylabel(f"NTAG so far, {summary['units']['latency']} per request")
    panels.flat[len(groups) - 1].legend(fontsize="x-small", loc="lower right")
    return figure


def tradeoffs(loop: Loop, summary: dict[str, Any]) -> Figure:
    """What each contender gains, for what latency, accuracy and reloading; over alpha where several were listed."""
    units = summary["units"]
    latency = f"latency, {units['latency']} per request"
    gain = f"NTAG, {units['latency']} per request"
    panels: list[tuple[str, str, Callable[[Figures], Any], Callable[[Figures], Any]]] = [
        ("accuracy", latency, lambda one: one["accuracy_per_request"], lambda one: one["latency_per_request"]),
        (
            f"model updates, {units['size']} per slot",
            gain,
            lambda one: one["model_updates"],
            lambda one: one["ntag"],
        ),
    ]
    if "alpha" in loop.experiment.instances.listed:
        panels.append(("alpha", gain, lambda one: one["alpha"], lambda one: one["ntag"]))
    figure = Figure(figsize=(5.5 * len(panels), 4.5), layout="constrained")
    for axes, (across, up, x, y) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        for index, one in enumerate([summary, *summary["comparison"]]):
            _trace(axes, one, x, y, index)
        axes.set_xlabel(across)
        axes.set_ylabel(up)
        axes.grid(alpha=0.3)
    # A panel has no points where no contender has a figure: model updates in a run of one slot.
    shown = {text: line for axes in figure.axes for line, text in zip(*axes.get_legend_handles_labels(), strict=True)}
    if shown:
        figure.axes[-1].legend(shown.values(), shown.keys(), fontsize="x-small", loc="best")
    return figure


def _trace(axes: Axes, one: Figures, x: Callable[[Figures], Any], y: Callable[[Figures], Any], index: int) -> None:
    """A point for each alpha and step size, means over the seeds, joined in their order."""
    groups: dict[tuple[Any, Any], list[Figures]] = {}
    for instance in one.get("instances", [one]):
        groups.setdefault((instance.get("c"), instance.get("alpha")), []).append(instance)
    points = [(_mean([x(i) for i in group]), _mean([y(i) for i in group])) for group in groups.values()]
    shown = [(a, b) for a, b in points if a is not None and b is not None]
    if shown:
        style: dict[str, Any] = {"marker": marker(index), "ls": "-", "lw": 1, "color": f"C{index % 10}"}
        axes.plot(*zip(*shown, strict=True), **style, label=one["name"])


def _mean(values: list[float | None]) -> float | None:
    numbers = [value for value in values if value is not None]
    return sum(numbers) / len(numbers) if numbers else None
