"""What a study came to: a row for each case, and each policy over all of them."""

import math
import statistics
from collections.abc import Sequence
from typing import Any

from idn_torch.app.choices import HINDSIGHT
from idn_torch.app.loop import Loop
from idn_torch.app.spread import half_width
from idn_torch.app.study import Case, StudyConfig
from idn_torch.app.summary import contender_figures, versions

__all__ = ["case_row", "rivals", "summarise_study"]

Row = dict[str, Any]

_FIGURES = ("ntag", "ratio_to_upper_bound", "model_updates", "latency_per_request", "accuracy_per_request")
# Ratios that differ by less than this are a tie.
_TIE = 1e-3


def case_row(case: Case, loop: Loop) -> Row:
    """What a case came to, the mean over its instances, from its run."""
    seconds = loop.seconds()
    figures = contender_figures(loop)
    return {
        "case": case.label,
        "changes": case.changes,
        "nodes": loop.experiment.problem.shape[0],
        "request_types": loop.experiment.requests.shape[-1],
        "upper_bound": figures[0]["upper_bound"],
        "contenders": {
            one["name"]: {
                "policy": one["policy"],
                **{key: one[key] for key in _FIGURES},
                "ratios": [each["ratio_to_upper_bound"] for each in one.get("instances", [one])],
                "seconds_per_slot": seconds[one["name"]]["slot"],
            }
            for one in figures
        },
    }


def summarise_study(
    config: StudyConfig, rows: Sequence[Row], count: int, status: str, seconds: float
) -> dict[str, Any]:
    """The content of summary.json.

    Args:
        config: of the study.
        rows: of the cases done.
        count: of all cases.
        status: "running", "finished", "interrupted" or "failed".
        seconds: the study has taken.
    """
    return {
        "status": status,
        "cases": count,
        "cases_done": len(rows),
        "vary": config.vary or {},
        "contenders": _over_all(rows),
        "rows": list(rows),
        "seed": config.seed,
        "wall_seconds": seconds,
        "device": config.device,
        "dtype": config.dtype,
        "versions": versions(),
    }


def rivals(contenders: dict[str, Any], name: str) -> list[str]:
    """Those to beat: other policies, not the same one with other options, that do not know the future."""
    own = contenders[name]["policy"]
    return [other for other, one in contenders.items() if one["policy"] not in (own, *HINDSIGHT)]


def _over_all(rows: Sequence[Row]) -> dict[str, Any]:
    """Of each contender: mean ratio to the bound, and how it compares, case by case, with the best online rival."""
    good = [row for row in rows if all(one["ratio_to_upper_bound"] is not None for one in row["contenders"].values())]
    if not good:
        return {}
    out = {}
    for name in good[0]["contenders"]:
        own = [row["contenders"][name]["ratio_to_upper_bound"] for row in good]
        others = rivals(good[0]["contenders"], name)
        leads = [
            mine - max(row["contenders"][rival]["ratio_to_upper_bound"] for rival in others)
            for mine, row in zip(own, good, strict=True)
            if others
        ]
        out[name] = {
            "mean": statistics.fmean(own),
            "half_width": half_width(own) if len(own) > 1 else None,
            "least": min(own),
            "best": sum(lead >= 0 for lead in leads) if others else None,
            "best_or_tied": sum(lead >= -_TIE for lead in leads) if others else None,
            "least_lead": min(leads, default=None),
            "cases": len(own),
            "seconds_per_slot": math.fsum(row["contenders"][name]["seconds_per_slot"] for row in good) / len(good),
        }
    return out
