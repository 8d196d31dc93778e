"""The table at the end of an AIMD run: a row per figure, a column per statistic over the systems."""

from typing import Any

from idn_torch.app.aimd_summary import STATISTICS
from idn_torch.app.table import blocks, cell, number

__all__ = ["render_aimd"]


def render_aimd(summary: dict[str, Any]) -> str:
    """The table of a run, from the content of its summary.json. Several seeds: mean and standard deviation."""
    a = summary["aimd"]
    units = f"{a['units']}" if a["min_units"] is None else f"{a['min_units']} to {a['units']}"
    per_system = summary["events_per_system"]
    head = (
        f"AIMD: {summary['systems']} systems of {units} units, {per_system} events; "
        f"{summary['dtype']} on {summary['device']}"
    )
    statuses = ", ".join(f"{count} {name}" for name, count in summary["by_status"].items() if count)
    counts = [
        f"status: {statuses}",
        f"converged to within {a['rtol']:g} of the equilibrium period: {summary['converged']} systems",
        f"backlog got into its invariant set: {summary['units_in_invariant_set']} of {summary['units']} units",
    ]
    rows = [
        ("equilibrium period, s", "equilibrium_period", number(3)),
        ("events until converged", "settling_events", number(1)),
        ("events until all backlogs are in the set", "cycles_to_invariant", number(1)),
        ("backlog over its bound at the last event", "final_backlog_over_bound", number(3)),
        ("largest backlog of the run, requests", "max_backlog", number(1)),
        ("queueing time, s per request", "queueing_time", number(3)),
        ("Jain index of admission rates", "jain_index", number(4)),
        ("Jain index over the shares intended", "jain_index_of_shares", number(4)),
    ]
    each = summary.get("instances", [summary])
    columns = [
        [title, *(cell(show, [one[key][name] for one in each]) for _, key, show in rows)]
        for name, title in zip(STATISTICS, ("mean", "median", "95 %", "largest"), strict=True)
    ]
    names = ["over the systems that are OK", *(name for name, _, _ in rows)]
    return "\n".join([head, *counts, *(f"\n{block}" for block in blocks(names, columns))])
