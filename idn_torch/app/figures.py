"""What all plots share: figures, panels, markers, and writing them."""

import io
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from idn_torch.app.files import write_bytes

__all__ = ["marker", "names_as_they_are", "new_figure", "panel_grid", "save"]

# Those of nodes, tasks and policies are the user's: two $ in one are no formula.
names_as_they_are = mpl.rc_context({"text.parse_math": False})

_COLUMNS = 4  # panels side by side
_MARKERS = "osD^vP*X<>h"


def save(path: Path, figure: Figure) -> None:
    """Write a plot."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=120)
    write_bytes(path, buffer.getvalue())


def new_figure(width: float, height: float) -> tuple[Figure, Axes]:
    """A figure with one panel."""
    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.add_subplot()


def panel_grid(
    count: int, width: float, height: float, margins: tuple[float, float] = (0, 0), sharey: bool = False
) -> tuple[Figure, Any]:
    """A figure with so many panels of that size, four side by side, and their grid `(rows, columns)`."""
    columns = min(count, _COLUMNS)
    rows = -(-count // columns)
    figure = Figure(figsize=(width * columns + margins[0], height * rows + margins[1]), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False, sharey=sharey)
    for axes in grid.flat[count:]:
        axes.set_visible(False)
    return figure, grid


def marker(index: int) -> str:
    """Of the contender with this index."""
    return _MARKERS[index % len(_MARKERS)]
