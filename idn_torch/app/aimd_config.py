"""What an AIMD run can be told: the schema of `run=aimd`, beside that of placement runs in `config.py`."""

from dataclasses import dataclass, field
from typing import Any

__all__ = ["AimdConfig", "PhaseConfig", "SystemsConfig"]


@dataclass
class PhaseConfig:
    """One phase of a workload that varies in time.

    Attributes:
        kind: "step" holds `factor` times the system's arrival rate; "ramp" moves there in a straight line from the
            phase before (from 1 in the first); "zero" lets nothing arrive.
        factor: > 0; of no account for "zero".
        cycles: how long, in equilibrium periods of the system at its own arrival rate; > 0.
    """

    kind: str = "step"
    factor: float = 1.0
    cycles: float = 20.0


@dataclass
class SystemsConfig:
    """Which systems are drawn, and what happens to them.

    Attributes:
        systems: how many, for every seed.
        units: computing units of each.
        min_units: each system has between this many and `units` of them; None: all have `units`.
        events: AIMD events of each system.
        alpha: range of the additive increase, log-uniform, requests / s^2.
        beta: range of the multiplicative decrease, uniform.
        arrival_rate: range of lambda, log-uniform, requests / s.
        start: rates at first are uniform in [0, 2 start lambda / units].
        backlog: backlogs at first are uniform up to so many times the bound of their invariant set.
        headroom: range of the units' total capacity over lambda, uniform; None: rates without a bound.
        service_factor: on the service rate gamma_hat; > 1 over-provisions, < 1 under-provisions.
        workload: phases, one after the other, the last rate for ever; empty: each system's rate is constant.
        record_every: events between two rows of metrics.
        rtol: a system has converged once its period stays within this of the equilibrium's.
        engine: "auto", "torch" or "numba", as for `idn_torch.aimd.simulate`.
    """

    systems: int = 1000
    units: int = 8
    min_units: int | None = None
    events: int = 200
    alpha: list[float] = field(default_factory=lambda: [0.1, 10.0])
    beta: list[float] = field(default_factory=lambda: [0.1, 0.9])
    arrival_rate: list[float] = field(default_factory=lambda: [10.0, 1000.0])
    start: float = 1.0
    backlog: float = 100.0
    headroom: list[float] | None = None
    service_factor: float = 1.0
    workload: list[PhaseConfig] = field(default_factory=list)
    record_every: int = 1
    rtol: float = 1e-3
    engine: str = "auto"


@dataclass
class AimdConfig:
    """A whole AIMD run.

    Attributes:
        aimd: the systems and their workload.
        seed: of the draw; a list draws so many times as many systems, and the table shows how far the draws differ.
        device: such as cpu, cuda or cuda:1.
        dtype: float64 or float32.
        threads: CPU threads; None takes one for few systems and torch's own number for many.
        progress: a progress bar; None shows one where standard error is a terminal.
        plots: draw plots/*.png at the end.
    """

    aimd: SystemsConfig = field(default_factory=SystemsConfig)
    seed: Any = 0
    device: str = "cpu"
    dtype: str = "float64"
    threads: int | None = None
    progress: bool | None = None
    plots: bool = True
