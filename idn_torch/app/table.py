"""The table at the end of a run: a row per figure, a column per policy and group of instances."""

import statistics
from collections.abc import Callable, Sequence
from typing import Any

from idn_torch.app.observe import TIERS

__all__ = ["blocks", "cell", "number", "render"]

Figures = dict[str, Any]

WIDTH = 100  # columns that do not fit go into a further block

_TITLES = {
    "infida": "INFIDA",
    "popularity": "popularity",
    "shared": "shared",
    "shared_mixed": "shared, mixed",
    "master": "master",
}


def render(summary: dict[str, Any]) -> str:
    """The table of a run, from the content of its summary.json.

    Instances that differ in the seed alone share a column: mean and standard deviation.
    """
    size, units = summary["size"], summary["units"]
    latency, memory = units["latency"], units["size"]
    head = (
        f"{summary['problem'] or 'unnamed problem'}: {size['nodes']} nodes, {size['models']} models of {size['tasks']} "
        f"tasks, {size['request_types']} request types; {summary['slots']} slots of {units['slot_seconds']:g} s; "
        f"{summary['dtype']} on {summary['device']}"
    )
    shared = ("ratio to the shared-capacity bound", _of("ratio_to_shared_upper_bound"), number(4))
    rows = [
        (f"NTAG: gain, {latency} per request", _of("ntag"), number(3)),
        ("ratio to the common bound", _of("ratio_to_common_upper_bound"), number(4)),
        ("ratio to the bound at its own capacities", _own_ratio, number(4)),
        *([shared] if summary["shared_upper_bound"] is not None else []),
        (f"cost, {latency} per request", _of("cost_per_request"), number(3)),
        (f"latency, {latency} per request", _of("latency_per_request"), number(3)),
        ("accuracy", _of("accuracy_per_request"), number(4)),
        *((f"served: {tier}", _share(tier), _percent) for tier in TIERS),
        (f"model updates, {memory} per slot", _of("model_updates"), number(1)),
    ]
    columns = []
    for title, members in _columns(summary):
        columns.append([title, *(cell(show, [value(one) for one in members]) for _, value, show in rows)])
    names = ["", *(name for name, _, _ in rows)]
    return "\n".join([head, *(f"\n{block}" for block in blocks(names, columns))])


def _columns(summary: dict[str, Any]) -> list[tuple[str, list[Figures]]]:
    """Title and instances of each column."""
    out = []
    for one in (summary, summary["comparison"]):
        if one is None:
            continue
        groups: dict[str, list[Figures]] = {}
        for instance in one.get("instances", [one]):
            name = (
                ", ".join(f"{key}={instance[key]:g}" for key in ("c", "alpha") if key in instance)
                if "instances" in one
                else ""
            )
            groups.setdefault(name, []).append(instance)
        out += [(f"{_TITLES[one['policy']]} {name}".strip(), members) for name, members in groups.items()]
    return out


def _of(key: str) -> Callable[[dict[str, Any]], float | None]:
    return lambda figures: figures[key]


def _own_ratio(figures: dict[str, Any]) -> float | None:
    """None for a policy whose own bound is the shared one, which has a row of its own."""
    own: float | None = figures["ratio_to_upper_bound"]
    return None if own == figures["ratio_to_shared_upper_bound"] else own


def _share(tier: str) -> Callable[[dict[str, Any]], float | None]:
    return lambda figures: figures["served"][tier]


def number(digits: int) -> Callable[[float], str]:
    """How to show a number: with so many digits."""
    return lambda value: f"{value:,.{digits}f}"


def _percent(value: float) -> str:
    return f"{100 * value:.1f} %"


def cell(show: Callable[[float], str], values: Sequence[float | None]) -> str:
    """Mean of an instance or more, with the standard deviation where there are several; a dash where one has none."""
    numbers = [value for value in values if value is not None]
    if len(numbers) < len(values):
        return "-"
    mean = show(statistics.fmean(numbers))
    return mean if len(numbers) == 1 else f"{mean} ± {show(statistics.stdev(numbers))}"


def blocks(names: list[str], columns: list[list[str]]) -> list[str]:
    """Columns side by side, as many as fit, right-aligned behind the names."""
    widths = [max(map(len, column)) for column in columns]
    left = max(map(len, names))
    parts: list[list[int]] = [[]]
    for index, width in enumerate(widths):
        used = left + sum(widths[i] + 2 for i in parts[-1])
        if parts[-1] and used + width + 2 > WIDTH:
            parts.append([])
        parts[-1].append(index)
    return [
        "\n".join(
            f"{name:<{left}}" + "".join(f"  {columns[i][line]:>{widths[i]}}" for i in block)
            for line, name in enumerate(names)
        )
        for block in parts
    ]
