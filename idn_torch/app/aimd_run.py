"""A whole AIMD run: from a configuration to a run directory. Hydra is not needed here."""

import logging
import time
from pathlib import Path
from typing import Any

from idn_torch.app.aimd_config import AimdConfig
from idn_torch.app.aimd_experiment import AimdExperiment, prepare_aimd
from idn_torch.app.aimd_observe import Observed, chunks, join, observe_systems
from idn_torch.app.aimd_summary import event_rows, summarise_aimd
from idn_torch.app.aimd_table import render_aimd
from idn_torch.app.files import write_bytes, write_json
from idn_torch.app.lifecycle import ended_in_order, progress
from idn_torch.app.loop import threads
from idn_torch.app.metrics import MetricsFiles

__all__ = ["run_aimd"]

log = logging.getLogger(__name__)


def run_aimd(config: AimdConfig, directory: str | Path) -> dict[str, Any]:
    """Run a configuration and leave everything about it in a run directory.

    Written there: metrics.jsonl and metrics.csv, summary.json, table.txt and plots/. Until the configuration has proved
    good, nothing is.

    Args:
        config: what to run; `AimdConfig()` is `experiment=aimd`.
        directory: made if need be; what an earlier run left there is replaced.

    Returns:
        The content of summary.json.

    Raises:
        IDNError: the configuration is wrong.
        KeyboardInterrupt: the run was stopped; summary.json says "interrupted".

    Example:
        >>> summary = run_aimd(AimdConfig(SystemsConfig(events=50)), "runs/aimd")  # doctest: +SKIP
        >>> summary["queueing_time"]["median"]  # doctest: +SKIP
    """
    experiment = prepare_aimd(config)
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    with threads(experiment.threads):
        return _Run(directory, experiment).go()


class _Run:
    """Runs one seed after the other and keeps the directory up to date."""

    def __init__(self, directory: Path, experiment: AimdExperiment) -> None:
        self.directory = directory
        self.experiment = experiment
        self.observed: list[Observed] = []
        self.started = time.perf_counter()
        self.simulated = 0.0

    def go(self) -> dict[str, Any]:
        log.info("%s; %d threads", self.experiment.config, self.experiment.threads)
        self._write_summary("running")
        with ended_in_order(self._write_summary):
            self._simulate()
            return self._finish()

    def _simulate(self) -> None:
        config = self.experiment.config
        total = config.aimd.systems * len(self.experiment.draws)
        began = time.perf_counter()
        with progress(total, "system", config.progress) as bar:
            for draw in self.experiment.draws:
                parts = []
                for part in chunks(draw, config.aimd):
                    parts.append(observe_systems(part, config.aimd))
                    bar.update(len(parts[-1].status))
                self.observed.append(join(parts))
                self.simulated = time.perf_counter() - began

    def _finish(self) -> dict[str, Any]:
        with MetricsFiles(self.directory) as metrics:
            metrics.write(list(event_rows(self.experiment, self.observed)))
        if self.experiment.config.plots:
            from idn_torch.app.aimd_plots import draw_aimd_plots

            draw_aimd_plots(self.directory, self.experiment, self.observed)
        summary = self._summary("finished")
        table = render_aimd(summary)
        log.info("finished\n%s", table)
        write_bytes(self.directory / "table.txt", (table + "\n").encode())
        write_json(self.directory / "summary.json", summary)
        return summary

    def _write_summary(self, status: str) -> None:
        write_json(self.directory / "summary.json", self._summary(status))

    def _summary(self, status: str) -> dict[str, Any]:
        seconds = time.perf_counter() - self.started
        return summarise_aimd(self.experiment, self.observed, status, seconds, self.simulated)
