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
from idn_torch.baselines import OfflineState
from idn_torch.errors import InputError
from idn_torch.offline import OfflineResult, OfflineStatus
from idn_torch.shadow_prices import shadow_prices
from idn_torch.simulation import Result, RunState
from idn_torch.theory import PSI, theory

__all__ = ["allocation", "contender_figures", "mean_figures", "summarise", "versions"]

# Policies whose cuts are of the shared-capacity gain: they have no bound of their own.
_SHARED = ("shared", "shared_mixed", "master")

# What `offline` certifies: gains and bound in its own terms, `l = min(L, r)`.
_PLANNED = ("gain", "gain_fractional", "upper_bound", "gap")

Figures = dict[str, Any]


def summarise(loop: Loop, status: str, seconds: float, seconds_here: float, slots_here: int) -> dict[str, Any]:
    """The content of summary.json.

    Args:
        loop: a run whose figures have been collected.
        status: "running", "finished", "interrupted" or "failed".
        seconds: the run has taken, in all its parts.
        seconds_here, slots_here: of the part that this process ran.

    Returns:
        Figures of the policy at the top, of those beside it in the list `comparison`. Those of a batch are means over
        its instances, which are listed under `instances`.
    """
    experiment = loop.experiment
    config, problem = experiment.config, experiment.problem
    main, *others = contender_figures(loop)
    return {
        "status": status,
        "problem": problem.name,
        "slots": loop.slot,
        **main,
        "comparison": others,
        "seed": config.seed,
        "c": getattr(config.policy, "c", None),
        "alpha": config.alpha,
        "order": config.order,
        "wall_seconds": seconds,
        "slots_per_second": slots_here / seconds_here if seconds_here > 0 else None,
        "seconds": loop.seconds(),
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
        "shadow_prices": _shadow_prices(loop),
        "theory": _theory(loop, [main, *others]),
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


def contender_figures(loop: Loop) -> list[Figures]:
    """Of each contender, its name, its figures and, if it has several instances, theirs."""
    experiment = loop.experiment
    labels = experiment.instances.labels()
    common = _common_bound(loop)
    shared = _shared_bound(loop)
    out = []
    for one in experiment.contenders:
        state, history = loop.states[one.name], loop.history[one.name]
        own = state.cuts.slots > 0 and one.choice not in _SHARED
        observed = state.cuts.bound(experiment.problem) if own else None
        columns = _figures(state, history, shared, observed, common)
        rows = [_pick(columns, index) for index in range(history.shape[-1])]
        figures: Figures = {"policy": one.choice, "name": one.name, **mean_figures(rows)}
        if isinstance(state.policy, OfflineState):
            figures["planned"] = _planned(state.policy.found)
        if len(rows) > 1:
            figures["instances"] = [{**label, **row} for label, row in zip(labels, rows, strict=True)]
        out.append(figures)
    return out


def _planned(found: OfflineResult) -> list[Figures]:
    """What the offline optimum is certified to be, for each table of costs."""
    columns = {key: getattr(found, key).cpu().reshape(-1) for key in _PLANNED}
    return [
        {**_pick(columns, index), "iterations": int(iterations), "status": OfflineStatus(int(status)).name}
        for index, (iterations, status) in enumerate(
            zip(found.iterations.flatten(), found.status.flatten(), strict=True)
        )
    ]


def _common_bound(loop: Loop) -> Tensor | None:
    """The bound that no policy has a part in, `(B,)`: of all instances of one problem the tightest holds for each."""
    experiment = loop.experiment
    alpha = experiment.instances.column("alpha")
    all_cuts = [loop.states[one.name].common for one in experiment.contenders]
    found = [cuts.bound(experiment.problem).cpu().reshape(-1).expand(len(alpha)) for cuts in all_cuts if cuts.slots]
    if not found:
        return None
    each = torch.stack(found).amin(0)
    same = [[other == mine for other in alpha] for mine in alpha]
    return torch.where(torch.tensor(same), each, torch.inf).amin(-1)


def _shared_bound(loop: Loop) -> Tensor | None:
    """The bound with every model's capacity counted once, `(B,)`: nothing that a policy does has a part in it."""
    if loop.slot == 0:
        return None
    bound = loop.bound.bound(loop.experiment.problem)
    if loop.tighter is not None:
        bound = torch.minimum(bound, loop.tighter.bound(loop.experiment.problem))
    return bound.cpu().reshape(-1).expand(len(loop.experiment.instances.all))


def _figures(
    state: RunState, history: Tensor, shared: Tensor | None, observed: Tensor | None, common: Tensor | None
) -> dict[str, Any]:
    """Each figure of a contender as `(B,)`, NaN where it does not exist."""
    slots = history.shape[0]
    one = dict(zip(FIGURES, history.permute(1, 2, 0), strict=True))  # (B, T)
    result = Result(state, *(one[key] for key in ("requests", "gain", "gain_fractional", "cost", "model_updates")))
    nothing = history.new_full((history.shape[-1],), torch.nan)
    requests = one["requests"].sum(-1)
    asked = torch.where(requests > 0, requests, torch.nan)
    gain = one["gain"].mean(-1) if slots else nothing
    bounds = {}
    for name, given in {"upper_bound": shared, "own_upper_bound": observed, "common_upper_bound": common}.items():
        bound = nothing if given is None else given.cpu().reshape(-1)[: history.shape[-1]]
        bounds[name] = bound
        bounds[f"ratio_to_{name}"] = gain / torch.where(bound > 0, bound, torch.nan)
    return {
        "ntag": torch.where(requests > 0, result.ntag(), torch.nan),
        "time_averaged_gain": gain,
        "time_averaged_gain_fractional": one["gain_fractional"].mean(-1) if slots else nothing,
        "model_updates": result.mean_updates() if slots > 1 else nothing,
        **bounds,
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


def _shadow_prices(loop: Loop) -> list[dict[str, Any]] | None:
    """What one more unit of budget would gain at each node, by the cuts of the bound; one entry for each alpha."""
    cuts, problem = (loop.tighter or loop.bound).cuts, loop.experiment.problem
    if loop.slot == 0:
        return None
    left, right = (side.reshape(-1, len(problem.node_ids)).tolist() for side in shadow_prices(problem, cuts))
    by_alpha: dict[float | None, dict[str, Any]] = {}
    for instance, low, high in zip(loop.experiment.instances.all, right, left, strict=False):
        nodes = {v: {"left": b, "right": a} for v, a, b in zip(problem.node_ids, low, high, strict=True)}
        by_alpha.setdefault(instance.alpha, {"alpha": instance.alpha, "nodes": nodes})
    return list(by_alpha.values())


def _theory(loop: Loop, contenders: Sequence[Figures]) -> dict[str, Any] | None:
    """Constants of INFIDA's guarantee, for one table of costs, beside its regret in the run if it took part."""
    experiment = loop.experiment
    if experiment.varies or experiment.problem.ranked.cost.ndim > 2 or loop.slot == 0:
        return None
    try:
        constants = theory(experiment.problem, experiment.requests[: loop.slot])
    except InputError:
        return None
    measured = None
    infida = next((one for one in contenders if one["policy"] == "infida"), None)
    if infida is not None and infida["own_upper_bound"] is not None:
        measured = loop.slot * (PSI * infida["own_upper_bound"] - infida["time_averaged_gain"])
    return {
        "psi": PSI,
        **constants._asdict(),
        "measured_regret": measured,
        "source": "derived for this package, not the paper's; for coupling and residual drawn, floor 0, and "
        "capacities that do not depend on the draw; measured_regret is psi * T * own_upper_bound less INFIDA's gain "
        "in the run, at least its regret",
    }


def versions() -> dict[str, str]:
    """Of this package, of Python, and of what the figures depend on."""
    packages = ("numpy", "hydra-core", "topohub")
    return {
        "idn_torch": idn_torch.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,  # with the build, which the package's metadata may leave out
        **{name: metadata.version(name) for name in packages},
    }
