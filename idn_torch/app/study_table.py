"""The table at the end of a study: a line per case, a column per policy, and each policy over all cases below."""

from typing import Any

from idn_torch.app.table import blocks

__all__ = ["render_study"]

_WIDEST = 40  # cases with longer labels get numbers, and a list of what they stand for


def render_study(summary: dict[str, Any]) -> str:
    """Ratios to the certified bound, the mean over the instances of a case, from the content of summary.json."""
    rows, contenders = summary["rows"], summary["contenders"]
    head = f"{summary['cases_done']} of {summary['cases']} cases; gain as a share of the certified bound"
    if not rows:
        return head
    last = ["mean", "95 % confidence, +-", "least", "best online or tied in", "ms per slot"]
    labels, legend = [row["case"] for row in rows], []
    if max(map(len, labels)) > _WIDEST:
        wide = len(str(len(labels)))
        legend = ["\n".join(f"{index:>{wide}}  {label}" for index, label in enumerate(labels, 1))]
        labels = [f"{index:>{wide}}" for index in range(1, len(labels) + 1)]
    names = ["", *labels, *last]
    columns = []
    for name in rows[0]["contenders"]:
        ratios = [row["contenders"][name]["ratio_to_upper_bound"] for row in rows]
        column = [name, *(_ratio(value) for value in ratios)]
        if name in contenders:
            one = contenders[name]
            column += [_ratio(one["mean"]), _ratio(one["half_width"]), _ratio(one["least"])]
            column += [f"{one['best_or_tied']} of {one['cases']}", f"{1e3 * one['seconds_per_slot']:,.1f}"]
        else:
            column += ["-"] * len(last)
        columns.append(column)
    return "\n\n".join([head, *legend, *blocks(names, columns)])


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"
