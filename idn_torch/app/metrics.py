"""metrics.jsonl and metrics.csv: a row per slot, and per instance of a batch, written as the run goes."""

import csv
import io
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

from idn_torch.app.batch import Instances
from idn_torch.app.files import dump_json, plain
from idn_torch.app.loop import FIGURES
from idn_torch.app.observe import TIERS

__all__ = ["MetricsFiles", "slot_rows"]

_PER_REQUEST = {"ntag": "gain", "latency": "latency", "accuracy": "accuracy"}
_KEPT = ("gain", "gain_fractional", "cost", "model_updates", *(f"served_{tier}" for tier in TIERS))


def slot_rows(instances: Instances, history: dict[str, Any], first: int) -> Iterator[dict[str, Any]]:
    """A row for every slot from `first` on, and for every instance where there are several.

    Figures of the policy that runs have no prefix, those of the one beside it its name: `popularity_gain`.
    """
    labels = instances.labels()
    tables = {name: table[first:].tolist() for name, table in history.items()}  # slots x figures x instances
    names = list(tables)
    for slot, slots in enumerate(zip(*tables.values(), strict=True), start=first):
        for index, label in enumerate(labels):
            row: dict[str, Any] = {"slot": slot}
            if len(labels) > 1:
                row |= {"instance": index, **label}
            for name, figures in zip(names, slots, strict=True):
                one = {key: values[index % len(values)] for key, values in zip(FIGURES, figures, strict=True)}
                requests = one["requests"]
                prefix = "" if name == names[0] else f"{name}_"
                if not prefix:
                    row["requests"] = requests
                row |= {prefix + key: one[key] for key in _KEPT}
                row |= {prefix + key: one[of] / requests if requests else None for key, of in _PER_REQUEST.items()}
            yield row


class MetricsFiles:
    """Both files, open for as long as the run lasts. Whole lines are written, nothing is held back."""

    def __init__(self, directory: Path) -> None:
        self._jsonl = (directory / "metrics.jsonl").open("w", encoding="utf-8")
        self._csv = (directory / "metrics.csv").open("w", encoding="utf-8", newline="")
        self._header = False

    def write(self, rows: list[dict[str, Any]]) -> None:
        """Append rows, all with the same keys."""
        if not rows:
            return
        self._jsonl.write("".join(dump_json(row) + "\n" for row in rows))
        self._jsonl.flush()
        text = io.StringIO()
        table = csv.DictWriter(text, rows[0], lineterminator="\n")
        if not self._header:
            table.writeheader()
            self._header = True
        table.writerows(plain(row) for row in rows)
        self._csv.write(text.getvalue())
        self._csv.flush()

    def __enter__(self) -> "MetricsFiles":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._jsonl.close()
        self._csv.close()
