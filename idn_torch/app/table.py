"""The table at the end of a run: a row per figure and a column per policy, or the other way round for many of them."""

import statistics
from collections.abc import Callable, Sequence
from typing import Any

from idn_torch.app.observe import TIERS
from idn_torch.app.spread import half_width

__all__ = ["blocks", "cell", "number", "render"]

Figures = dict[str, Any]
Row = tuple[str, Callable[[Figures], float | None], Callable[[float], str]]

WIDTH = 100  # columns that do not fit go into a further block

_RANKED = 3  # more contenders than that are ranked, one a line
_PLACES = 3  # nodes named for their shadow prices
_NOTHING = 1e-9  # a price below is an error of rounding
_TITLES = {
    "infida": "INFIDA",
    "oga": "OGA",
    "olag": "OLAG",
    "static_greedy": "static greedy",
    "random_feasible": "random",
    "repository_only": "repository only",
    "shared_mixed": "shared, mixed",
}


def render(summary: dict[str, Any]) -> str:
    """The table of a run, from the content of its summary.json.

    Instances that differ in the seed alone share a column: mean and standard deviation, or in a ranking the mean and
    half the width of its 95 % confidence interval.
    """
    size, units = summary["size"], summary["units"]
    head = (
        f"{summary['problem'] or 'unnamed problem'}: {size['nodes']} nodes, {size['models']} models of {size['tasks']} "
        f"tasks, {size['request_types']} request types; {summary['slots']} slots of {units['slot_seconds']:g} s; "
        f"{summary['dtype']} on {summary['device']}"
    )
    contenders = [summary, *summary["comparison"]]
    table = _ranking(summary, contenders) if len(contenders) > _RANKED else _side_by_side(summary, contenders)
    return "\n".join([head, *(f"\n{block}" for block in table), *_remarks(summary)])


def _side_by_side(summary: dict[str, Any], contenders: Sequence[Figures]) -> list[str]:
    latency, memory = summary["units"]["latency"], summary["units"]["size"]
    rows: list[Row] = [
        (f"NTAG: gain, {latency} per request", _of("ntag"), number(3)),
        ("ratio to the upper bound", _of("ratio_to_upper_bound"), number(4)),
        ("ratio to the bound at its own capacities", _of("ratio_to_own_upper_bound"), number(4)),
        ("ratio to the common bound", _of("ratio_to_common_upper_bound"), number(4)),
        (f"cost, {latency} per request", _of("cost_per_request"), number(3)),
        (f"latency, {latency} per request", _of("latency_per_request"), number(3)),
        ("accuracy", _of("accuracy_per_request"), number(4)),
        *((f"served: {tier}", _share(tier), _percent) for tier in TIERS),
        (f"model updates, {memory} per slot", _of("model_updates"), number(1)),
    ]
    columns = []
    for one in contenders:
        for group, members in _groups(one).items():
            shown = [cell(show, [value(member) for member in members]) for _, value, show in rows]
            columns.append([f"{_title(one)} {group}".strip(), *shown])
    return blocks(["", *(name for name, _, _ in rows)], columns)


def _ranking(summary: dict[str, Any], contenders: Sequence[Figures]) -> list[str]:
    """A line for each contender, the best first; a block for each group of instances."""
    latency, memory = summary["units"]["latency"], summary["units"]["size"]
    columns: list[Row] = [
        (f"NTAG, {latency}", _of("ntag"), number(3)),
        ("of bound", _of("ratio_to_upper_bound"), number(4)),
        ("of common bound", _of("ratio_to_common_upper_bound"), number(4)),
        (f"updates, {memory}", _of("model_updates"), number(0)),
        (f"latency, {latency}", _of("latency_per_request"), number(2)),
        ("accuracy", _of("accuracy_per_request"), number(4)),
    ]
    out = []
    for group in _groups(summary):
        lines = []
        for one in contenders:
            groups = _groups(one)
            members = groups.get(group, groups.get("", []))  # without instances of its own one stands for all
            first = [value for value in (member["ntag"] for member in members) if value is not None]
            spent = summary["seconds"][one["name"]]["slot"]
            shown = [_interval(show, [value(member) for member in members]) for _, value, show in columns]
            line = [_title(one), *shown, "-" if spent is None else f"{1e3 * spent:,.1f}"]
            lines.append((statistics.fmean(first) if first else 0.0, line))
        lines.sort(key=lambda line: -line[0])
        table = [[group, *(name for name, _, _ in columns), "ms/slot"], *(line for _, line in lines)]
        widths = [max(len(line[i]) for line in table) for i in range(len(table[0]))]
        out.append(
            "\n".join(
                f"{line[0]:<{widths[0]}}"
                + "".join(f"  {text:>{width}}" for text, width in zip(line[1:], widths[1:], strict=True))
                for line in table
            )
        )
    return out


def _remarks(summary: dict[str, Any]) -> list[str]:
    """Where more budget would pay, and what the theorem says."""
    units, prices = summary["units"], summary["shadow_prices"]
    out = []
    if prices is not None and summary["requests"]:
        per_request = 1000 * summary["slots"] / summary["requests"]
        for one in prices:
            each = {node: per_request * price["right"] for node, price in one["nodes"].items()}
            paying = sorted((item for item in each.items() if item[1] > _NOTHING), key=lambda item: -item[1])
            places = ", ".join(f"{node} {price:.3g}" for node, price in paying[:_PLACES])
            at = "" if len(prices) == 1 else f" at alpha={one['alpha']:g}"
            out.append(
                f"the next 1000 {units['size']} pay most{at} at: {places} {units['latency']} per request"
                if paying
                else f"more budget would pay at no node{at}"
            )
    theory = summary["theory"]
    if theory is not None and theory["measured_regret"] is not None:
        out += [
            f"INFIDA's regret against (1 - 1/e) of its own bound: at most {theory['measured_regret']:.3g};",
            f"the theorem allows {theory['regret']:.3g} "
            f"(eta = {theory['eta']:.3g}, D = {theory['diameter']:.3g}, norm = {theory['norm']:.3g})",
        ]
    return ["", *out] if out else []


def _title(figures: Figures) -> str:
    """A policy by its usual name, unless it was given another."""
    name, policy = str(figures["name"]), str(figures["policy"])
    made_up = name == policy or name.startswith(f"{policy} ")
    return name.replace(policy, _TITLES.get(policy, policy), 1) if made_up else name


def _groups(figures: Figures) -> dict[str, list[Figures]]:
    """Instances that differ in the seed alone, by what the others have."""
    if "instances" not in figures:
        return {"": [figures]}
    out: dict[str, list[Figures]] = {}
    for instance in figures["instances"]:
        name = ", ".join(f"{key}={instance[key]:g}" for key in ("c", "alpha") if key in instance)
        out.setdefault(name, []).append(instance)
    return out


def _of(key: str) -> Callable[[dict[str, Any]], float | None]:
    return lambda figures: figures[key]


def _share(tier: str) -> Callable[[dict[str, Any]], float | None]:
    return lambda figures: figures["served"][tier]


def number(digits: int) -> Callable[[float], str]:
    """How to show a number: with so many digits."""
    return lambda value: f"{value:,.{digits}f}"


def _percent(value: float) -> str:
    return f"{100 * value:.1f} %"


def cell(show: Callable[[float], str], values: Sequence[float | None]) -> str:
    """Mean of an instance or more, with the standard deviation where there are several; a dash where one has none."""
    return _spread(show, values, statistics.stdev)


def _interval(show: Callable[[float], str], values: Sequence[float | None]) -> str:
    """Likewise, with half the width of the mean's 95 % confidence interval."""
    return _spread(show, values, half_width)


def _spread(
    show: Callable[[float], str], values: Sequence[float | None], spread: Callable[[Sequence[float]], float]
) -> str:
    numbers = [value for value in values if value is not None]
    if len(numbers) < len(values) or not numbers:
        return "-"
    mean = show(statistics.fmean(numbers))
    return mean if len(numbers) == 1 else f"{mean} ± {show(spread(numbers))}"


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
