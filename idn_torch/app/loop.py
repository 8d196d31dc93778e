"""The slots of a run: all contenders side by side on the same requests, and what each slot showed."""

import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor

from idn_torch.app.experiment import Experiment
from idn_torch.app.observe import OBSERVED, observe, weigh
from idn_torch.errors import InputError
from idn_torch.problem import Problem
from idn_torch.shared import SharedBound
from idn_torch.simulation import RunState, advance, begin

__all__ = ["FIGURES", "Loop", "threads"]

FIGURES = (
    "requests",
    "gain",
    "gain_fractional",
    "cost",
    "model_updates",
    *OBSERVED,
)
"""What is kept of every slot: sums over its requests, in this order."""

_FINITE = [FIGURES.index(name) for name in ("requests", "gain", "cost")]


@dataclass
class Loop:
    """A run under way.

    Attributes:
        experiment: what runs.
        states: of each contender, before the next slot.
        bound: of the slots so far, on what any static allocation gains; one for each table of costs.
        tighter: the same from a second time through the slots, at the end of a run.
        slot: number of slots done.
        history: of each contender, the figures of all slots but the pending ones, `(T, F, B)` float64 on the host; B
            is 1 for a contender without a batch. NaN where a figure does not exist.
        setup_seconds: that each contender took before its first slot.
        slot_seconds: of each contender, for the slots that this process ran.
    """

    experiment: Experiment
    states: dict[str, RunState]
    bound: SharedBound
    tighter: SharedBound | None = None
    slot: int = 0
    history: dict[str, Tensor] = field(default_factory=dict)
    setup_seconds: dict[str, float] = field(default_factory=dict)
    slot_seconds: dict[str, list[float]] = field(default_factory=dict)
    _pending: list[dict[str, Tensor]] = field(default_factory=list)
    _weights: Tensor | None = None

    @classmethod
    def start(cls, experiment: Experiment) -> "Loop":
        """Before the first slot."""
        problem = experiment.problem_at(0)
        states, setup = {}, {}
        for one in experiment.contenders:
            started = time.perf_counter()
            states[one.name] = begin(problem, one.policy, one.seed, one.batch)
            setup[one.name] = time.perf_counter() - started
        empty = {
            one.name: torch.empty(0, len(FIGURES), *(one.batch or (1,)), dtype=torch.float64)
            for one in experiment.contenders
        }
        bound = SharedBound.none(problem, tuple(problem.ranked.cost.shape[:-2]))
        spent: dict[str, list[float]] = {one.name: [] for one in experiment.contenders}
        return cls(experiment, states, bound, history=empty, setup_seconds=setup, slot_seconds=spent)

    def step(self) -> None:
        """Run one slot. Waits for the device where serving looks whether it has ended, and to tell times apart."""
        experiment, slot = self.experiment, self.slot
        problem, order, requests = experiment.problem_at(slot), experiment.order_at(slot), experiment.requests_at(slot)
        weights = self._weigh(problem)
        states, rows = {}, {}
        for one in experiment.contenders:
            before, started = self.states[one.name], time.perf_counter()
            states[one.name], row, served = advance(problem, one.policy, before, requests, order)
            row |= observe(weights, served.served)
            if states[one.name].cuts.slots == 0:
                row["gain_fractional"] = torch.full_like(row["gain"], torch.nan)
            batch = one.batch or (1,)
            rows[one.name] = torch.stack([row[key].double().expand(batch) for key in FIGURES])
            if experiment.timed and problem.device.type == "cuda":
                torch.cuda.synchronize(problem.device)
            self.slot_seconds[one.name].append(time.perf_counter() - started)
        bound = self.bound.add(problem, requests)
        # An interrupt may fall between any two statements. A row too many is cut off; a row too few would be lost.
        self._pending.append(rows)
        self.states, self.bound, self.slot = states, bound, slot + 1

    def tighten(self) -> None:
        """Cut the bound's gain in all slots once more, from where the first time ended: nearer the optimum."""
        experiment = self.experiment
        second = self.bound.again(experiment.problem)
        for slot in range(self.slot):
            second = second.add(experiment.problem_at(slot), experiment.requests_at(slot))
        self.tighter = second

    @property
    def collected(self) -> int:
        """Number of slots in `history`."""
        return next(iter(self.history.values())).shape[0]

    def seconds(self) -> dict[str, dict[str, float | None]]:
        """Before the first slot and, the median, in a slot, of each contender. A time of the host unless `timed`."""
        return {
            name: {"setup": self.setup_seconds[name], "slot": statistics.median(spent) if spent else None}
            for name, spent in self.slot_seconds.items()
        }

    def collect(self) -> int:
        """Move the pending figures to `history`: the one transfer from the device. Returns the first slot moved.

        Raises:
            InputError: a figure overflowed.
        """
        first = self.collected
        rows, self._pending = self._pending[: self.slot - first], []
        if rows:
            for name, before in self.history.items():
                new = torch.stack([row[name] for row in rows]).cpu()
                wrong = ~new[:, _FINITE].isfinite().flatten(1).all(1)
                if wrong.any():
                    raise InputError(
                        f"slot {first + int(wrong.nonzero()[0])}: the figures of {name} overflow "
                        f"{self.experiment.config.dtype}; use dtype=float64, or costs and counts of a smaller scale"
                    )
                self.history[name] = torch.cat([before, new])
        return first

    def _weigh(self, problem: Problem) -> Tensor:
        if self._weights is None or self.experiment.varies:
            self._weights = weigh(problem)
        return self._weights


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Run with so many CPU threads, and put the former number back."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
