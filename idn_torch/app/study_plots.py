"""plots/*.png of a study: every policy in every case, and where the policy leads over a grid."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from idn_torch.app.choices import HINDSIGHT
from idn_torch.app.figures import marker, names_as_they_are, save
from idn_torch.app.study_summary import rivals
from idn_torch.app.study_table import case_names

__all__ = ["draw_study"]


_WIDEST = 100  # inches; beyond that matplotlib may refuse


@names_as_they_are
def draw_study(directory: Path, summary: dict[str, Any]) -> None:
    """Write all plots that the study has values for."""
    save(directory / "plots" / "cases.png", _cases(summary))
    if 2 <= len(summary["vary"]) <= 3 and len(summary["rows"]) == _size(summary["vary"]):
        contenders = summary["rows"][0]["contenders"]
        for name, file in _file_names(contenders).items():
            lead = _lead(summary, name) if contenders[name]["policy"] not in HINDSIGHT else None
            if lead is not None and np.isfinite(lead).any():
                save(directory / "plots" / f"lead_{file}.png", _lead_map(summary, name, lead))


def _size(vary: dict[str, list[Any]]) -> int:
    return int(np.prod([len(values) for values in vary.values()]))


def _file_names(names: Iterable[str]) -> dict[str, str]:
    """A part of a file's name for each, unlike any other's."""
    out: dict[str, str] = {}
    for name in names:
        file = "".join(c if c.isalnum() else "_" for c in name)
        while file in out.values():
            file += "_"
        out[name] = file
    return out


def _ratios(summary: dict[str, Any], name: str) -> np.ndarray:
    values = [row["contenders"][name]["ratio_to_upper_bound"] for row in summary["rows"]]
    return np.array([np.nan if value is None else value for value in values], dtype=float)


def _cases(summary: dict[str, Any]) -> Figure:
    """Share of the bound, a column of dots for each case."""
    rows = summary["rows"]
    figure = Figure(figsize=(min(5 + 0.35 * len(rows), _WIDEST), 6), layout="constrained")
    axes = figure.subplots()
    for index, name in enumerate(rows[0]["contenders"]):
        axes.plot(
            range(len(rows)),
            _ratios(summary, name),
            marker(index),
            color=f"C{index % 10}",
            ms=5,
            label=name,
        )
    labels, legend = case_names(rows)
    axes.set_xticks(range(len(rows)), labels, rotation=90, fontsize="xx-small")
    axes.set_xlabel("case, as numbered in table.txt" if legend else "", fontsize="small")
    axes.set_ylabel("gain, share of the certified bound")
    axes.grid(alpha=0.3)
    figure.legend(fontsize="x-small", loc="outside right upper")
    return figure


def _lead(summary: dict[str, Any], name: str) -> np.ndarray | None:
    """Ratio less the best of the other online policies' in every case; None without any."""
    others = [_ratios(summary, rival) for rival in rivals(summary["rows"][0]["contenders"], name)]
    return _ratios(summary, name) - np.max(others, axis=0) if others else None


def _lead_map(summary: dict[str, Any], name: str, lead: np.ndarray) -> Figure:
    """The lead over the varied options, a panel for each third value."""
    vary = summary["vary"]
    keys, values = list(vary), [list(v) for v in vary.values()]
    grid = lead.reshape([len(v) for v in values])
    if len(keys) == 2:
        grid, keys, values = grid[..., None], [*keys, ""], [*values, [""]]
    panels = len(values[2])
    figure = Figure(figsize=(1.5 + 3.2 * panels, 3.6), layout="constrained")
    top = max(float(np.nanmax(np.abs(grid))), 1e-6)
    for index, axes in enumerate(figure.subplots(1, panels, squeeze=False)[0]):
        table = grid[:, :, index]
        image = axes.imshow(table, cmap="RdBu", vmin=-top, vmax=top, aspect="auto", origin="lower")
        for (i, j), value in np.ndenumerate(table):
            ink = "w" if abs(value) > 0.6 * top else "k"
            axes.text(j, i, f"{value:+.3f}", ha="center", va="center", fontsize="x-small", color=ink)
        axes.set_xticks(range(len(values[1])), [str(v) for v in values[1]], fontsize="x-small")
        axes.set_yticks(range(len(values[0])), [str(v) for v in values[0]], fontsize="x-small")
        axes.set_xlabel(keys[1], fontsize="small")
        axes.set_ylabel(keys[0], fontsize="small")
        axes.set_title(f"{keys[2]}={values[2][index]}" if keys[2] else "", fontsize="small")
    figure.suptitle(f"{name}: share of the bound less the best of the other online policies'", fontsize="small")
    figure.colorbar(image, ax=figure.axes)
    return figure
