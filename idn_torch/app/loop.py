"""The slots of a run: all contenders side by side on the same requests, and what each slot showed."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor

from idn_torch.app.experiment import Experiment
from idn_torch.app.observe import OBSERVED, observe, weigh
from idn_torch.errors import InputError
from idn_torch.problem import Problem
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
        slot: number of slots done.
        history: of each contender, the figures of all slots but the pending ones, `(T, F, B)` float64 on the host; B
            is 1 for a contender without a batch. NaN where a figure does not exist.
    """

    experiment: Experiment
    states: dict[str, RunState]
    slot: int = 0
    history: dict[str, Tensor] = field(default_factory=dict)
    _pending: list[dict[str, Tensor]] = field(default_factory=list)
    _weights: Tensor | None = None

    @classmethod
    def start(cls, experiment: Experiment) -> "Loop":
        """Before the first slot."""
        problem = experiment.problem_at(0)
        states = {one.name: begin(problem, one.policy, one.seed, one.batch) for one in experiment.contenders}
        empty = {
            one.name: torch.empty(0, len(FIGURES), *(one.batch or (1,)), dtype=torch.float64)
            for one in experiment.contenders
        }
        return cls(experiment, states, history=empty)

    def step(self) -> None:
        """Run one slot. Waits for the device at most where serving looks whether it has ended."""
        experiment, slot = self.experiment, self.slot
        problem, order = experiment.problem_at(slot), experiment.order_at(slot)
        weights = self._weigh(problem)
        states, rows = {}, {}
        for one in experiment.contenders:
            before, requests = self.states[one.name], experiment.requests_at(slot)
            states[one.name], row, served = advance(problem, one.policy, before, requests, order)
            row |= observe(weights, served.served)
            if states[one.name].cuts.slots == 0:
                row["gain_fractional"] = torch.full_like(row["gain"], torch.nan)
            batch = one.batch or (1,)
            rows[one.name] = torch.stack([row[key].double().expand(batch) for key in FIGURES])
        # An interrupt may fall between any two statements. A row too many is cut off; a row too few would be lost.
        self._pending.append(rows)
        self.states, self.slot = states, slot + 1

    @property
    def collected(self) -> int:
        """Number of slots in `history`."""
        return next(iter(self.history.values())).shape[0]

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
