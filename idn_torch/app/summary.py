"""What a run came to: the figures of summary.json and of the table, and who ended up where."""

import math
import platform
from collections.abc import Sequence
from importlib import metadata
from typing import Any

import torch
from torch import Tensor

import idn_torch
from idn_torch.app.loop import FIGURES, Loop
from idn_torch.app.observe import TIERS
from idn_torch.errors import InputError
from idn_torch.simulation import Result, RunState
from idn_torch.theory import theory

__all__ = ["allocation", "mean_figures", "summarise", "versions"]

# Policies whose cuts bound the gain under shared capacity, which nothing that they deploy has a part in.
_SHARED = ("shared", "shared_mixed", "master")

Figures = dict[str, Any]


def summarise(loop: Loop, status: str, seconds: float, seconds_here: float, slots_here: int) -> dict[str, Any]:
    """The content of summary.json.

    Args:
        loop: a run whose figures have been collected.
        status: "running", "finished", "interrupted" or "failed".
        seconds: the run has taken, in all its parts.
        seconds_here, slots_here: of the part that this process ran.

    Returns:
        Figures of the policy at the top, of the one beside it under `comparison`. Those of a batch are means over its
        instances, which are listed under `instances`.
    """
    experiment = loop.experiment
    config, problem = experiment.config, experiment.problem
    main, *others = _contenders(loop)
    return {
        "status": status,
        "problem": problem.name,
        "slots": loop.slot,
        **main,
        "comparison": others[0] if others else None,
        "seed": config.seed,
        "c": getattr(config.policy, "c", None),
        "alpha": config.alpha,
        "order": config.order,
        "wall_seconds": seconds,
        "slots_per_second": slots_here / seconds_here if seconds_here > 0 else None,
        "device": str(problem.device),
        "dtype": config.dtype,
        "threads": experiment.threads,
        "size": {
            "nodes": len(problem.node_ids),
            "models": len(problem.model_ids),
            "tasks": len(problem.task_ids),
            "request_types": len(problem.type_ids),
            "ranks": problem.ranked.cost.shape[-1],
        },
        "units": {"latency": problem.latency_unit, "size": problem.size_unit, "slot_seconds": problem.slot_seconds},
        "theory": _theory(loop),
        "versions": versions(),
    }


def mean_figures(rows: Sequence[Figures]) -> Figures:
    """The mean of each figure over instances; None where one of them has none."""
    out: Figures = {}
    for key, value in rows[0].items():
        column = [row[key] for row in rows]
        if isinstance(value, dict):
            out[key] = mean_figures(column)
        else:
            out[key] = None if None in column else math.fsum(column) / len(column)
    return out


def allocation(loop: Loop) -> Any:
    """Per node the models deployed in the last slot, `{node: [models]}`; for a batch a list of those, labelled."""
    experiment = loop.experiment
    problem = experiment.problem
    state: RunState = loop.states[experiment.contenders[0].name]
    x = state.previous.reshape(-1, *problem.shape).cpu() > 0.5
    tables = []
    for one in x:
        models: list[list[str]] = [[] for _ in problem.node_ids]
        for v, m in one.nonzero().tolist():
            models[v].append(problem.model_ids[m])
        tables.append(dict(zip(problem.node_ids, models, strict=True)))
    labels = experiment.instances.labels()
    if len(labels) == 1:
        return tables[0]
    return [{**label, "nodes": table} for label, table in zip(labels, tables, strict=True)]


def _contenders(loop: Loop) -> list[Figures]:
    """Of each contender, its name, its figures and, if it has several instances, theirs."""
    experiment = loop.experiment
    labels = experiment.instances.labels()
    common, shared = _common_bound(loop), _shared_bound(loop)
    out = []
    for one in experiment.contenders:
        state, history = loop.states[one.name], loop.history[one.name]
        observed = state.cuts.bound(experiment.problem) if state.cuts.slots > 0 else None
        columns = _figures(state, history, observed, common, shared)
        rows = [_pick(columns, index) for index in range(history.shape[-1])]
        figures = {"policy": one.name, **mean_figures(rows)}
        if len(rows) > 1:
            figures["instances"] = [{**label, **row} for label, row in zip(labels, rows, strict=True)]
        out.append(figures)
    return out


def _common_bound(loop: Loop) -> Tensor | None:
    """The bound that no policy has a part in, `(B,)`: of all instances of one problem the tightest holds for each."""
    experiment = loop.experiment
    alpha = experiment.instances.column("alpha")
    for one in experiment.contenders:
        cuts = loop.states[one.name].common
        if cuts.slots > 0:
            each = cuts.bound(experiment.problem).cpu().reshape(-1).expand(len(alpha))
            same = [[other == mine for other in alpha] for mine in alpha]
            return torch.where(torch.tensor(same), each, torch.inf).amin(-1)
    return None


def _shared_bound(loop: Loop) -> Tensor | None:
    """The bound with every model's capacity counted once, `(B,)`: that of a policy that ascends the shared gain."""
    for one in loop.experiment.contenders:
        cuts = loop.states[one.name].cuts
        if one.name in _SHARED and cuts.slots > 0:
            return cuts.bound(loop.experiment.problem).cpu().reshape(-1)
    return None


def _figures(
    state: RunState, history: Tensor, observed: Tensor | None, common: Tensor | None, shared: Tensor | None
) -> dict[str, Any]:
    """Each figure of a contender as `(B,)`, NaN where it does not exist."""
    slots = history.shape[0]
    one = dict(zip(FIGURES, history.permute(1, 2, 0), strict=True))  # (B, T)
    result = Result(state, *(one[key] for key in ("requests", "gain", "gain_fractional", "cost", "model_updates")))
    nothing = history.new_full((history.shape[-1],), torch.nan)
    requests = one["requests"].sum(-1)
    asked = torch.where(requests > 0, requests, torch.nan)
    gain = one["gain"].mean(-1) if slots else nothing
    own = nothing if observed is None else observed.cpu().reshape(-1)
    best = nothing if common is None else common[: history.shape[-1]]
    once = nothing if shared is None else shared[: history.shape[-1]]
    return {
        "ntag": torch.where(requests > 0, result.ntag(), torch.nan),
        "time_averaged_gain": gain,
        "time_averaged_gain_fractional": one["gain_fractional"].mean(-1) if slots else nothing,
        "model_updates": result.mean_updates() if slots > 1 else nothing,
        "upper_bound": own,
        "ratio_to_upper_bound": gain / torch.where(own > 0, own, torch.nan),
        "common_upper_bound": best,
        "ratio_to_common_upper_bound": gain / torch.where(best > 0, best, torch.nan),
        "shared_upper_bound": once,
        "ratio_to_shared_upper_bound": gain / torch.where(once > 0, once, torch.nan),
        "cost_per_request": one["cost"].sum(-1) / asked,
        "latency_per_request": one["latency"].sum(-1) / asked,
        "accuracy_per_request": one["accuracy"].sum(-1) / asked,
        "requests": requests,
        "served": {tier: one[f"served_{tier}"].sum(-1) / asked for tier in TIERS},
    }


def _pick(columns: dict[str, Any], index: int) -> Figures:
    """The figures of one instance as numbers, None for NaN."""
    out: Figures = {}
    for key, column in columns.items():
        if isinstance(column, dict):
            out[key] = _pick(column, index)
        else:
            value = float(column[index])
            out[key] = value if math.isfinite(value) else None
    return out


def _theory(loop: Loop) -> dict[str, Any] | None:
    """Constants of the regret guarantee, where there are any: one table of costs for the whole run."""
    experiment = loop.experiment
    if experiment.varies or experiment.problem.ranked.cost.ndim > 2 or loop.slot == 0:
        return None
    try:
        constants = theory(experiment.problem, experiment.requests[: loop.slot])
    except InputError:
        return None
    return {
        **constants._asdict(),
        "source": "derived for this package, not printed in the paper; for coupling and residual drawn, floor 0, and "
        "capacities that do not depend on the draw",
    }


def versions() -> dict[str, str]:
    """Of this package, of Python, and of what the figures depend on."""
    packages = ("torch", "numpy", "hydra-core", "topohub")
    return {
        "idn_torch": idn_torch.__version__,
        "python": platform.python_version(),
        **{name: metadata.version(name) for name in packages},
    }
