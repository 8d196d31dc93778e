"""plots/*.png: all plots of a placement run."""

from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor

from idn_torch.app.comparison_plots import running_gain, tradeoffs
from idn_torch.app.figures import names_as_they_are, new_figure, panel_grid, save
from idn_torch.app.loop import FIGURES, Loop
from idn_torch.app.network_plots import prices_map, tiers
from idn_torch.app.observe import TIERS

__all__ = ["draw_plots"]

_TIER_COLOURS = ("#1b7837", "#a6dba0", "#9970ab", "#bdbdbd")
_LARGEST_MAP = 150  # nodes or tasks that a map still shows
_FEW = 3  # contenders whose every slot can be told apart in one plot


@names_as_they_are
def draw_plots(directory: Path, loop: Loop, summary: dict[str, Any]) -> None:
    """Write all plots. Of matplotlib's settings one is changed for that time, and none kept."""
    experiment = loop.experiment
    problem, many = experiment.problem, len(experiment.contenders) > _FEW
    plots = {"gain": running_gain(loop, summary) if many else _gain(loop, summary), "served": _served(loop)}
    if many or "alpha" in experiment.instances.listed:
        plots["tradeoffs"] = tradeoffs(loop, summary)
    if max(len(problem.node_ids), len(problem.task_ids)) <= _LARGEST_MAP:
        plots["allocation"] = _allocation(loop)
        plots["shadow_prices"] = prices_map(loop, summary)
    if problem.accuracy is not None:
        plots["tiers"] = tiers(loop)
    for name, figure in plots.items():
        save(directory / "plots" / f"{name}.png", figure)


def _column(history: Tensor, name: str) -> Tensor:
    """A figure of every slot, `(T, B)`."""
    return history[:, FIGURES.index(name)]


def _per_request(history: Tensor, name: str) -> Tensor:
    requests = _column(history, "requests")
    return _column(history, name) / torch.where(requests > 0, requests, torch.nan)


def _gain(loop: Loop, summary: dict[str, Any]) -> Figure:
    """Gain per request of every slot, a line for each group of instances, and the bound on its mean."""
    figure, axes = new_figure(8, 4.5)
    groups = loop.experiment.instances.groups()
    for style, one in zip(("-", "--"), loop.experiment.contenders, strict=False):
        gain = _per_request(loop.history[one.name], "gain")
        batch = gain.shape[1] > 1
        slots = range(gain.shape[0])
        marker = "." if len(slots) < 20 else None
        for index, (label, members) in enumerate(groups.items() if batch else [("", [0])]):
            colour = f"C{index}" if batch or style == "-" else "0.5"
            lines = gain[:, members]
            name = f"{one.name} {label}".strip()
            axes.plot(slots, lines.mean(-1).numpy(), color=colour, linestyle=style, marker=marker, label=name)
            low, high = lines.amin(-1).numpy(), lines.amax(-1).numpy()
            axes.fill_between(slots, low, high, color=colour, alpha=0.2, linewidth=0)
    for index, level in _bounds(loop, summary).items():
        colour = f"C{index}" if "alpha" in loop.experiment.instances.listed else "k"
        title = "bound on the mean of any static placement" if index == 0 else None
        axes.axhline(level, color=colour, linestyle=":", label=title)
    axes.set_xlabel("slot")
    axes.set_ylabel(f"gain, {summary['units']['latency']} per request")
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend(loc="best", fontsize="small")
    axes.set_title(summary["problem"])
    return figure


def _bounds(loop: Loop, summary: dict[str, Any]) -> dict[int, float]:
    """The bound per request, one for each alpha, by the first group of instances that has it."""
    instances = summary.get("instances", [summary])
    levels: dict[int, float] = {}
    alphas = []
    for index, members in enumerate(loop.experiment.instances.groups().values()):
        one = instances[members[0]]
        alpha = one.get("alpha")
        if one["upper_bound"] is not None and one["requests"] and alpha not in alphas:
            alphas.append(alpha)
            levels[index] = one["upper_bound"] * loop.slot / one["requests"]
    return levels


def _served(loop: Loop) -> Figure:
    """Share of the requests that each tier served in every slot, one panel per contender."""
    contenders = loop.experiment.contenders
    figure, grid = panel_grid(len(contenders), 5.5, 4, sharey=True)
    panels = grid.flat[: len(contenders)]
    for axes, one in zip(panels, contenders, strict=True):
        history = loop.history[one.name]
        shares = torch.stack([_per_request(history, f"served_{tier}").mean(-1) for tier in TIERS])
        shares = torch.cat([shares, shares[:, -1:]], -1).nan_to_num(0.0)  # a last point ends the last slot's step
        axes.stackplot(range(shares.shape[1]), shares.numpy(), labels=TIERS, colors=_TIER_COLOURS, step="post")
        axes.set_title(one.name)
        axes.set_xlabel("slot")
        axes.set_ylim(0, 1)
        axes.margins(x=0)
    for axes in grid[:, 0]:
        axes.set_ylabel("share of requests served at")
    panels[-1].legend(loc="lower right", fontsize="small")
    return figure


def _allocation(loop: Loop) -> Figure:
    """Number of models deployed in the last slot, by node and task; a batch's mean."""
    problem = loop.experiment.problem
    state = loop.states[loop.experiment.contenders[0].name]
    x = state.previous.reshape(-1, *problem.shape).double().mean(0).cpu()
    table = x.new_zeros(len(problem.node_ids), len(problem.task_ids))
    table.index_add_(1, problem.model_task.cpu(), x)
    order = problem.budgets.cpu().argsort(descending=True, stable=True)
    names = [problem.node_ids[v] for v in order.tolist()]
    figure, axes = new_figure(2.5 + 0.28 * len(problem.task_ids), 1.5 + 0.16 * len(names))
    image = axes.imshow(table[order].numpy(), aspect="auto", cmap="viridis", interpolation="nearest", vmin=0)
    axes.set_yticks(range(len(names)), names, fontsize="x-small")
    axes.set_xticks(range(len(problem.task_ids)), problem.task_ids, fontsize="x-small", rotation=90)
    axes.set_title(f"models deployed in slot {loop.slot - 1}; nodes by budget", fontsize="small")
    figure.colorbar(image, ax=axes, label="models")
    return figure
