"""Plots of the network: what the next unit of budget is worth where, and which models sit at which distance."""

from typing import Any

import networkx as nx
import numpy as np
import torch
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from idn_torch.app.config import BackboneConfig
from idn_torch.app.figures import panel_grid
from idn_torch.app.loop import Loop
from idn_torch.hops import hops_to_repository
from idn_torch.networks import positions
from idn_torch.problem import Problem

__all__ = ["prices_map", "tiers"]

_NAMED = 12  # nodes whose names a map has room for


def prices_map(loop: Loop, summary: dict[str, Any]) -> Figure:
    """Shadow prices on the network; the first alpha's where several were listed."""
    problem, units = loop.experiment.problem, summary["units"]
    nodes = summary["shadow_prices"][0]["nodes"]
    per_request = 1000 * loop.slot / summary["requests"] if summary["requests"] else 0.0
    price = np.array([nodes[name]["right"] for name in problem.node_ids]) * per_request
    place = _positions(loop)
    figure = Figure(figsize=(8, 7), layout="constrained")
    axes = figure.subplots()
    graph = _graph(problem)
    for a, b in graph.edges:
        axes.plot(*zip(place[a], place[b], strict=True), color="0.8", lw=0.8, zorder=1)
    top = max(float(price.max()), np.finfo(float).tiny)
    x, y = np.array([place[name] for name in problem.node_ids]).T
    dots = axes.scatter(x, y, c=price, s=30 + 250 * price / top, cmap="viridis_r", edgecolor="k", lw=0.4, zorder=2)
    for v in np.argsort(-price, kind="stable")[:_NAMED]:
        axes.annotate(problem.node_ids[v], (x[v], y[v]), xytext=(4, 4), textcoords="offset points", fontsize="x-small")
    holds = problem.repository.any(-1).cpu().numpy()
    axes.scatter(x[holds], y[holds], marker="s", s=90, facecolor="none", edgecolor="C3", zorder=3, label="repository")
    axes.legend(fontsize="small", loc="best")
    axes.set_xticks([])
    axes.set_yticks([])
    axes.set_title(f"{summary['problem']}: what more budget would gain")
    figure.colorbar(dots, ax=axes, label=f"{units['latency']} per request, for the next 1000 {units['size']}")
    return figure


def _positions(loop: Loop) -> dict[str, tuple[float, float]]:
    """Where nodes are; for a network without coordinates, where springs along its links would put them."""
    config, problem = loop.experiment.config.problem, loop.experiment.problem
    known = positions(config.topology) if isinstance(config, BackboneConfig) else {}
    if known.keys() >= set(problem.node_ids):
        return known
    layout = nx.spring_layout(_graph(problem), seed=0)
    return {name: (float(x), float(y)) for name, (x, y) in layout.items()}


def _graph(problem: Problem) -> nx.Graph:
    """Links by node id; those that the paths use where the problem came without."""
    pairs = [(a, b) for a, b, _ in problem.links]
    if not pairs:
        paths = problem.paths.cpu()
        ahead, behind = paths[:, :-1].flatten(), paths[:, 1:].flatten()
        pairs = torch.stack([ahead, behind], -1)[behind >= 0].unique(dim=0).tolist()
    graph = nx.Graph()
    graph.add_nodes_from(problem.node_ids)
    graph.add_edges_from((problem.node_ids[a], problem.node_ids[b]) for a, b in pairs)
    return graph


def tiers(loop: Loop) -> Figure:
    """Models deployed in the last slot by the node's distance from a repository and the model's rank in accuracy."""
    problem, contenders = loop.experiment.problem, loop.experiment.contenders
    assert problem.accuracy is not None
    hops = hops_to_repository(problem).cpu()
    rank = _accuracy_rank(problem)
    figure, panels = panel_grid(len(contenders), 3.2, 2.6, margins=(1, 0.6))
    tables = []
    for one in contenders:
        x = loop.states[one.name].previous.reshape(-1, *problem.shape).double().mean(0).cpu()
        x = torch.where(problem.repository.cpu(), 0.0, x)
        table = torch.zeros(int(hops.max()) + 1, int(rank.max()) + 1, dtype=torch.float64)
        table.index_put_((hops[:, None].expand(x.shape), rank.expand(x.shape)), x, accumulate=True)
        tables.append(table / torch.bincount(hops, minlength=len(table))[:, None].clamp(min=1))
    top = max(float(table.max()) for table in tables)
    for axes, one, table in zip(panels.flat, contenders, tables, strict=False):
        image = axes.imshow(table.numpy(), aspect="auto", origin="lower", vmin=0, vmax=max(top, 1e-9), cmap="magma_r")
        axes.set_title(one.name, fontsize="small")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    for axes in panels[-1]:
        axes.set_xlabel("model of its task, by accuracy", fontsize="small")
    for axes in panels[:, 0]:
        axes.set_ylabel("hops to a repository", fontsize="small")
    figure.colorbar(image, ax=panels, label="models per node, repository models apart")
    return figure


def _accuracy_rank(problem: Problem) -> Tensor:
    """Place of each model among those of its task, the least accurate first, `(M,)`."""
    assert problem.accuracy is not None
    accuracy, task = problem.accuracy.cpu(), problem.model_task.cpu()
    order = accuracy.argsort(stable=True)
    order = order[task[order].argsort(stable=True)]  # by task, and by accuracy within it
    start = torch.bincount(task).cumsum(0) - torch.bincount(task)
    rank = torch.empty_like(order)
    rank[order] = torch.arange(len(order)) - start[task[order]]
    return rank
