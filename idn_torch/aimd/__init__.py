"""The AIMD closed-loop controller for batches of systems of computing units.

One batch queue feeds n units. Whenever it empties, every unit lowers its admission rate by a factor and raises it
linearly until the queue empties again; each unit serves at the fastest rate that never leaves it waiting.

    >>> from idn_torch import aimd
    >>> systems = aimd.random_systems(batch=1000, n=8)
    >>> run = aimd.simulate(*systems[:5], events=100, record="summary")
    >>> run.summary.mean_queueing_time.shape
    torch.Size([1000, 8])

Source: "AIMD scheduling and resource allocation in distributed computing systems"; saturating units, repeated decreases
and arrival rates that vary in time are additions.
"""

from idn_torch.aimd.analysis import (
    FixedPoint,
    alpha_for_shares,
    capacity_margin,
    convergence_rate,
    eigenvalues,
    fixed_point,
    is_schur,
    spectral_radius,
    transition_matrix,
)
from idn_torch.aimd.metrics import jain_index, settling_event
from idn_torch.aimd.qos import CycleState, QueueingTimes, queueing_times, within_cycle
from idn_torch.aimd.random_systems import RandomSystems, random_systems
from idn_torch.aimd.resources import (
    TwoCycle,
    cycles_to_invariant,
    gamma_hat,
    invariant_bound,
    invariant_entry,
    two_cycle,
)
from idn_torch.aimd.result import Simulation, Summary
from idn_torch.aimd.sampling import Sample, sample
from idn_torch.aimd.simulate import simulate
from idn_torch.aimd.status import Status
from idn_torch.aimd.workload import EventRate, PiecewiseRate, ramp_rate, step_rate

__all__ = [
    "CycleState",
    "EventRate",
    "FixedPoint",
    "PiecewiseRate",
    "QueueingTimes",
    "RandomSystems",
    "Sample",
    "Simulation",
    "Status",
    "Summary",
    "TwoCycle",
    "alpha_for_shares",
    "capacity_margin",
    "convergence_rate",
    "cycles_to_invariant",
    "eigenvalues",
    "fixed_point",
    "gamma_hat",
    "invariant_bound",
    "invariant_entry",
    "is_schur",
    "jain_index",
    "queueing_times",
    "ramp_rate",
    "random_systems",
    "sample",
    "settling_event",
    "simulate",
    "spectral_radius",
    "step_rate",
    "transition_matrix",
    "two_cycle",
    "within_cycle",
]
