"""A whole run: from a configuration to a run directory. Hydra is not needed here."""

import logging
import time
from pathlib import Path
from typing import Any

import torch

from idn_torch.app.checkpoint import load_checkpoint, resumed_config, save_checkpoint
from idn_torch.app.config import Config
from idn_torch.app.experiment import Experiment, prepare
from idn_torch.app.files import write_bytes, write_json
from idn_torch.app.lifecycle import ended_in_order, progress
from idn_torch.app.loop import Loop, threads
from idn_torch.app.metrics import MetricsFiles, slot_rows
from idn_torch.app.summary import allocation, summarise
from idn_torch.app.table import render
from idn_torch.kernels import path_taken

__all__ = ["run_experiment"]

log = logging.getLogger(__name__)

_COLLECT_SECONDS = 0.5  # figures leave the device, and reach the files, about so often


def run_experiment(config: Config, directory: str | Path) -> dict[str, Any]:
    """Run a configuration and leave everything about it in a run directory.

    Written there: metrics.jsonl and metrics.csv as the run goes, summary.json, allocation.json, table.txt,
    checkpoints/ and plots/. Until the configuration has proved good, nothing is.

    Args:
        config: what to run; `Config()` is the default experiment.
        directory: made if need be; what an earlier run left there is replaced.

    Returns:
        The content of summary.json.

    Raises:
        IDNError: the configuration or the problem is wrong.
        KeyboardInterrupt: the run was stopped; summary.json says "interrupted", and `resume` goes on from there.

    Example:
        >>> summary = run_experiment(Config(slots=10), "runs/first")  # doctest: +SKIP
        >>> summary["ratio_to_upper_bound"]  # doctest: +SKIP
    """
    directory = Path(directory)
    saved = load_checkpoint(config.resume) if config.resume is not None else None
    if saved is not None:
        config = resumed_config(config, saved.config)
    experiment = prepare(config)
    loop, before = (Loop.start(experiment), 0.0) if saved is None else saved.restore(experiment)
    _describe(experiment, loop)
    directory.mkdir(parents=True, exist_ok=True)
    run = _Run(directory, loop, before)
    with threads(experiment.threads), torch.no_grad():
        return run.go()


class _Run:
    """One process's part of a run: drives the loop and keeps the directory up to date."""

    def __init__(self, directory: Path, loop: Loop, seconds_before: float) -> None:
        self.directory = directory
        self.loop = loop
        self.seconds_before = seconds_before
        self.first_slot = loop.slot
        self.started = time.perf_counter()

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self.started

    def go(self) -> dict[str, Any]:
        self._write_summary("running")
        save_checkpoint(self.directory, self.loop, self.seconds_before)
        with ended_in_order(self._leave):
            self._play()
            return self._finish()

    def _play(self) -> None:
        loop, config = self.loop, self.loop.experiment.config
        shown = progress(loop.experiment.slots, "slot", config.progress, loop.slot)
        with MetricsFiles(self.directory) as metrics, shown as bar:
            metrics.write(list(slot_rows(loop.experiment.instances, loop.history, 0)))
            collected = time.perf_counter()
            try:
                while loop.slot < loop.experiment.slots:
                    loop.step()
                    checkpoint = config.checkpoint_every > 0 and loop.slot % config.checkpoint_every == 0
                    if checkpoint or time.perf_counter() - collected > _COLLECT_SECONDS:
                        self._collect(metrics, bar)
                        collected = time.perf_counter()
                    if checkpoint:
                        save_checkpoint(self.directory, loop, self.seconds_before + self.seconds)
            finally:
                self._collect(metrics, bar)

    def _collect(self, metrics: MetricsFiles, bar: Any) -> None:
        first = self.loop.collect()
        metrics.write(list(slot_rows(self.loop.experiment.instances, self.loop.history, first)))
        bar.update(self.loop.slot - bar.n)

    def _finish(self) -> dict[str, Any]:
        self.loop.tighten()
        summary = self._summary("finished")
        table = render(summary)
        log.info("finished\n%s", table)
        write_bytes(self.directory / "table.txt", (table + "\n").encode())
        self._write_state()
        if self.loop.experiment.config.plots:
            from idn_torch.app.plots import draw_plots

            draw_plots(self.directory, self.loop, summary)
        write_json(self.directory / "summary.json", summary)
        return summary

    def _leave(self, status: str) -> None:
        """Stop half-way, in order."""
        log.info("%s after %d of %d slots", status, self.loop.slot, self.loop.experiment.slots)
        if (
            self.loop.collected == self.loop.slot
        ):  # else figures are missing: the checkpoint before is the last good one
            self._write_state()
        self._write_summary(status)

    def _write_state(self) -> None:
        save_checkpoint(self.directory, self.loop, self.seconds_before + self.seconds)
        write_json(self.directory / "allocation.json", allocation(self.loop))

    def _write_summary(self, status: str) -> None:
        write_json(self.directory / "summary.json", self._summary(status))

    def _summary(self, status: str) -> dict[str, Any]:
        here, slots = self.seconds, self.loop.slot - self.first_slot
        return summarise(self.loop, status, self.seconds_before + here, here, slots)


def _describe(experiment: Experiment, loop: Loop) -> None:
    problem, instances = experiment.problem, experiment.instances
    log.info(
        "%s: %d nodes, %d models, %d types, %d ranks; %d slots, %d instances; %s on %s, %d threads, %s kernels",
        problem.name,
        *problem.shape,
        len(problem.type_ids),
        problem.ranked.cost.shape[-1],
        experiment.slots,
        len(instances.all),
        experiment.config.dtype,
        problem.device,
        experiment.threads,
        path_taken(problem.sizes, experiment.elements),
    )
    for note in experiment.notes:
        log.info(note)
    if loop.slot:
        log.info("resumed after %d slots", loop.slot)
