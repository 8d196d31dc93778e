"""The table at the end of a study: a line per case, a column per policy, and each policy over all cases below."""

from collections.abc import Sequence
from typing import Any

from idn_torch.app.table import blocks

__all__ = ["case_names", "render_study"]

_WIDEST = 40  # cases with longer labels get numbers, and a list of what they stand for


def render_study(summary: dict[str, Any]) -> str:
    """Ratios to the certified bound, the mean over the instances of a case, from the content of summary.json."""
    rows, contenders = summary["rows"], summary["contenders"]
    head = f"{summary['cases_done']} of {summary['cases']} cases; gain as a share of the certified bound"
    if not rows:
        return head
    last = ["mean", "95 % confidence, +-", "least", "best online or tied in", "ms per slot"]
    labels, legend = case_names(rows)
    names = ["", *labels, *last]
    columns = []
    for name in rows[0]["contenders"]:
        ratios = [row["contenders"][name]["ratio_to_upper_bound"] for row in rows]
        column = [name, *(_ratio(value) for value in ratios)]
        if name in contenders:
            one = contenders[name]
            column += [_ratio(one["mean"]), _ratio(one["half_width"]), _ratio(one["least"])]
            best = one["best_or_tied"]
            column += ["-" if best is None else f"{best} of {one['cases']}", f"{1e3 * one['seconds_per_slot']:,.1f}"]
        else:
            column += ["-"] * len(last)
        columns.append(column)
    return "\n\n".join([head, *legend, *blocks(names, columns)])


def case_names(rows: Sequence[dict[str, Any]]) -> tuple[list[str], list[str]]:
    """Labels of all cases, numbers where one is too long; and the list of what those stand for, if any."""
    labels = [row["case"] for row in rows]
    if max(map(len, labels)) <= _WIDEST:
        return labels, []
    wide = len(str(len(labels)))
    numbers = [f"{index:>{wide}}" for index in range(1, len(labels) + 1)]
    return numbers, ["\n".join(f"{index}  {label}" for index, label in zip(numbers, labels, strict=True))]


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"
