"""A whole study: from a configuration to a directory with a row for every case. Hydra is not needed here."""

import contextlib
import logging
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from idn_torch.app.experiment import prepare
from idn_torch.app.files import dump_json, write_bytes, write_json
from idn_torch.app.lifecycle import ended_in_order, progress
from idn_torch.app.loop import Loop, threads
from idn_torch.app.study import Case, StudyConfig, cases
from idn_torch.app.study_summary import case_row, summarise_study
from idn_torch.app.study_table import render_study
from idn_torch.errors import IDNError, InputError

__all__ = ["run_study"]

log = logging.getLogger(__name__)


def run_study(config: StudyConfig, directory: str | Path) -> dict[str, Any]:
    """Run every case of a study and leave the figures in a directory.

    Written there: cases.jsonl with a row for every case as it ends, summary.json, table.txt and plots/. Until every
    case has proved good, nothing is.

    Args:
        config: what to run.
        directory: made if need be; what an earlier study left there is replaced.

    Returns:
        The content of summary.json.

    Raises:
        IDNError: a case is wrong (it is named).
        KeyboardInterrupt: the study was stopped; summary.json says "interrupted" and holds the cases done.

    Example:
        >>> study = StudyConfig(vary={"alpha": [25.0, 75.0]}, compare=["popularity", "olag"])
        >>> run_study(study, "runs/study")["contenders"]["infida"]["mean"]  # doctest: +SKIP
    """
    todo = cases(config)
    names = []
    for case in todo:
        with _named(case):
            names.append({one.name for one in prepare(case.config).contenders})
    for case, here in zip(todo, names, strict=True):
        missing = set().union(*names) - here
        if missing:
            raise InputError(
                f"case {case.label}: {min(missing)} does not take part in it, but in others; put it in compare"
            )
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    return _Study(directory, config, todo).go()


@contextlib.contextmanager
def _named(case: Case) -> Iterator[None]:
    """Put the case in front of what is wrong with it."""
    try:
        yield
    except IDNError as error:
        raise type(error)(f"case {case.label}: {error}") from None


class _Study:
    """Runs one case after the other and keeps the directory up to date."""

    def __init__(self, directory: Path, config: StudyConfig, todo: list[Case]) -> None:
        self.directory = directory
        self.config = config
        self.todo = todo
        self.rows: list[dict[str, Any]] = []
        self.started = time.perf_counter()

    def go(self) -> dict[str, Any]:
        self._write_summary("running")
        with ended_in_order(self._write_summary):
            self._play()
            return self._finish()

    def _play(self) -> None:
        shown = progress(len(self.todo), "case", self.config.progress)
        with (self.directory / "cases.jsonl").open("w", encoding="utf-8") as file, shown as bar:
            for case in self.todo:
                self.rows.append(_play(case))
                file.write(dump_json(self.rows[-1]) + "\n")
                file.flush()
                bar.update()

    def _finish(self) -> dict[str, Any]:
        summary = self._summary("finished")
        table = render_study(summary)
        log.info("finished\n%s", table)
        write_bytes(self.directory / "table.txt", (table + "\n").encode())
        if self.config.plots:
            from idn_torch.app.study_plots import draw_study

            draw_study(self.directory, summary)
        write_json(self.directory / "summary.json", summary)
        return summary

    def _write_summary(self, status: str) -> None:
        write_json(self.directory / "summary.json", self._summary(status))

    def _summary(self, status: str) -> dict[str, Any]:
        return summarise_study(self.config, self.rows, len(self.todo), status, time.perf_counter() - self.started)


def _play(case: Case) -> dict[str, Any]:
    """The run of one case."""
    log.info("case %s", case.label)
    with _named(case):
        experiment = prepare(case.config)
        with threads(experiment.threads), torch.no_grad():
            loop = Loop.start(experiment)
            while loop.slot < experiment.slots:
                loop.step()
            loop.collect()
            loop.tighten()
            return case_row(case, loop)
