"""An AIMD run made ready: systems drawn and workloads built, before anything is written."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from idn_torch import aimd
from idn_torch.app.aimd_config import AimdConfig, PhaseConfig, SystemsConfig
from idn_torch.app.batch import seeds
from idn_torch.app.options import at_least, device_named, dtype_named, thread_count
from idn_torch.errors import InputError

__all__ = ["AimdExperiment", "Draw", "prepare_aimd"]

KINDS = ("step", "ramp", "zero")
ENGINES = ("auto", "torch", "numba")

_RAMP_PIECES = 32


@dataclass(frozen=True, eq=False)
class Draw:
    """The systems of one seed, `(B, n)`, or some of them.

    Attributes:
        seed: that they were drawn with.
        systems: their parameters and first states; lambda is each one's own arrival rate.
        workload: what arrives.
        changed: seconds after which the arrival rate stays as it is, `(B,)`.
        nominal: equilibrium at lambda.
        final: equilibrium at the rate that stays.
    """

    seed: int
    systems: aimd.RandomSystems
    workload: Tensor | aimd.PiecewiseRate
    changed: Tensor
    nominal: aimd.FixedPoint
    final: aimd.FixedPoint

    def rows(self, which: slice | int) -> "Draw":
        """Some of the systems, or one without the batch dim."""
        workload = self.workload
        return Draw(
            self.seed,
            aimd.RandomSystems._make(None if value is None else value[which] for value in self.systems),
            aimd.PiecewiseRate(workload.times[which], workload.values[which])
            if isinstance(workload, aimd.PiecewiseRate)
            else workload[which],
            self.changed[which],
            aimd.FixedPoint._make(value[which] for value in self.nominal),
            aimd.FixedPoint._make(value[which] for value in self.final),
        )

    def simulate(self, config: SystemsConfig, record: str | int) -> aimd.Simulation:
        """Run them."""
        s = self.systems
        factor = None if config.service_factor == 1 else config.service_factor
        return aimd.simulate(
            *(s.alpha, s.beta, self.workload, s.u0, s.w0, config.events, s.u_max, s.mask),
            service_factor=factor,
            record=record,
            engine=config.engine,
        )


@dataclass(frozen=True, eq=False)
class AimdExperiment:
    """What a run needs: the configuration it was built from, and the systems of each seed."""

    config: AimdConfig
    draws: tuple[Draw, ...]

    @cached_property
    def threads(self) -> int:
        """CPU threads to run with."""
        return thread_count(self.config.threads, self.draws[0].systems.alpha.numel())


def prepare_aimd(config: AimdConfig) -> AimdExperiment:
    """Check the configuration and draw the systems.

    Raises:
        InputError: naming the key that is wrong.
    """
    device, dtype = device_named(config.device), dtype_named(config.dtype)
    at_least("threads", config.threads, 1)
    _check(config.aimd)
    return AimdExperiment(config, tuple(_draw(config.aimd, seed, dtype, device) for seed in seeds(config.seed)))


def _check(c: SystemsConfig) -> None:
    for key in ("systems", "units", "min_units", "events", "record_every"):
        at_least(f"aimd.{key}", getattr(c, key), 1)
    if c.min_units is not None and c.min_units > c.units:
        raise InputError(f"aimd.min_units is {c.min_units}; it must be at most aimd.units, {c.units}")
    if c.engine not in ENGINES:
        raise InputError(f"aimd.engine is {c.engine!r}; use one of {', '.join(ENGINES)}")
    for key, value in {"start": c.start, "backlog": c.backlog}.items():
        if not 0 <= value < math.inf:
            raise InputError(f"aimd.{key} is {value:g}; it must be >= 0 and finite")
    _check_positive("aimd.service_factor", c.service_factor)
    _check_positive("aimd.rtol", c.rtol)
    for index, phase in enumerate(c.workload):
        key = f"aimd.workload[{index}]"
        if phase.kind not in KINDS:
            raise InputError(f"{key}.kind is {phase.kind!r}; use one of {', '.join(KINDS)}")
        _check_positive(f"{key}.cycles", phase.cycles)
        if phase.kind != "zero":
            _check_positive(f"{key}.factor", phase.factor)


def _check_positive(key: str, value: float) -> None:
    if not 0 < value < math.inf:
        raise InputError(f"{key} is {value:g}; it must be > 0 and finite")


def _draw(c: SystemsConfig, seed: int, dtype: torch.dtype, device: torch.device) -> Draw:
    try:
        systems = aimd.random_systems(
            c.systems,
            c.units,
            seed=seed,
            alpha=_range("alpha", c.alpha),
            beta=_range("beta", c.beta),
            arrival_rate=_range("arrival_rate", c.arrival_rate),
            start=c.start,
            backlog=c.backlog,
            headroom=None if c.headroom is None else _range("headroom", c.headroom),
            min_units=c.min_units,
            dtype=dtype,
            device=device,
        )
        nominal, factors, changed = _equilibrium(systems, 1.0), [1.0], torch.zeros_like(systems.arrival_rate)
        workload: Tensor | aimd.PiecewiseRate = systems.arrival_rate
        if c.workload:
            edges, factors = _profile(c.workload)
            # Times in float64: in float32 the last of many pieces would be off by more than rates are.
            times = nominal.period.double()[:, None] * torch.tensor(edges, dtype=torch.float64, device=device)
            values = systems.arrival_rate[:, None] * systems.arrival_rate.new_tensor(factors)
            workload, changed = aimd.PiecewiseRate(times, values), times[:, -1]
    except InputError as error:
        raise InputError(f"aimd.{error}") from None  # the library's arguments have the names of the options
    return Draw(seed, systems, workload, changed, nominal, _equilibrium(systems, factors[-1]))


def _range(key: str, value: Sequence[float]) -> tuple[float, float]:
    if len(value) != 2 or not all(math.isfinite(one) for one in value):
        raise InputError(f"{key} is {list(value)}; give two numbers, [least, most]")
    return value[0], value[1]


def _equilibrium(systems: aimd.RandomSystems, factor: float) -> aimd.FixedPoint:
    s = systems
    return aimd.fixed_point(s.alpha, s.beta, s.arrival_rate * factor, s.u_max, s.mask)


def _profile(phases: Sequence[PhaseConfig]) -> tuple[list[float], list[float]]:
    """Edges, in equilibrium periods, and the factor on lambda from each on; a ramp is many steps."""
    edges, factors, level, start = [], [], 1.0, 0.0
    for phase in phases:
        goal = 0.0 if phase.kind == "zero" else phase.factor
        pieces = _RAMP_PIECES if phase.kind == "ramp" else 1
        for j in range(pieces):
            edges.append(start + phase.cycles * j / pieces)
            factors.append(level + (goal - level) * (j + 0.5) / pieces if phase.kind == "ramp" else goal)
        start, level = start + phase.cycles, goal
    if phases[-1].kind == "ramp":  # what comes after it
        edges.append(start)
        factors.append(level)
    return edges, factors
