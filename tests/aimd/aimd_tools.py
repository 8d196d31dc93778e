"""Tolerances and comparisons shared by the AIMD tests."""

import math

import torch

from idn_torch.aimd import Simulation, random_systems
from idn_torch.aimd.reference import ReferenceCycle, reference_cycle

DTYPES = (torch.float32, torch.float64)

# Relative to the largest reference value of the same unit (or system) over the run, except where noted.
# One step starts from the tested state itself, so only that step's rounding counts. Over a run the backlog adds up the
# errors of all periods, and the reference, which keeps w, has only half its digits left after a backlog near zero (the
# code keeps sqrt(w)).
TOLERANCE = {
    "step period": {torch.float32: 5e-6, torch.float64: 2e-14},
    "step admission": {torch.float32: 5e-6, torch.float64: 1e-14},
    "step backlog": {torch.float32: 2e-5, torch.float64: 1e-13},
    "step service_rate": {torch.float32: 1e-6, torch.float64: 2e-15},
    "step queueing_time": {torch.float32: 2e-5, torch.float64: 1e-13},
    "run period": {torch.float32: 1e-5, torch.float64: 1e-13},
    "run admission": {torch.float32: 5e-6, torch.float64: 1e-13},
    "run backlog": {torch.float32: 1e-4, torch.float64: 1e-8},
    "two cycle": {torch.float64: 1e-12},  # q0 less many times T, relative to the bound
    "fixed point": {torch.float32: 1e-5, torch.float64: 1e-13},
    "conservation": {torch.float32: 5e-6, torch.float64: 1e-14},
    "eigenvalue": {torch.float32: 1e-6, torch.float64: 1e-13},
    "quadrature": {torch.float64: 1e-6},  # Simpson's rule over the kinks of the trajectories
    "sample": {torch.float64: 1e-7},  # taken 1e-9 of a cycle beside the event
    "engine": {torch.float32: 1e-4, torch.float64: 1e-11},
}


def close(name: str, found, expected, scale=None) -> None:
    """Assert `|found - expected| <= TOLERANCE[name] * scale`, scale = the largest |expected| if not given."""
    assert found.isfinite().all(), f"{name}: not finite"
    expected = torch.as_tensor(expected, dtype=torch.float64)
    if scale is None:
        scale = expected.abs().max() if expected.numel() else 0.0
    error = (found.double() - expected).abs()
    limit = TOLERANCE[name][found.dtype] * torch.as_tensor(scale, dtype=torch.float64)
    assert found.shape == expected.shape, f"{name}: {tuple(found.shape)} is not {tuple(expected.shape)}"
    excess = (error - limit).max() if error.numel() else torch.tensor(-1.0)
    assert excess <= 0, f"{name}: off by {error.max():.3e}, allowed {limit.max():.3e}"


def lists(value: torch.Tensor) -> list:
    return value.double().tolist()


def clear_margin(dtype: torch.dtype) -> float:
    """Below this relative distance from the limit rounding may change the number of drops."""
    return 1e-5 if dtype == torch.float32 else 1e-12


def check_steps(run: Simulation, rates, factor: float = 1.0) -> tuple[int, int]:
    """Compare every recorded event of a run (`record="all"`, batch (B,)) with the reference started from its state.

    `rates(b, k)` gives the pieces that hold from event k of system b on. Returns the numbers of events compared and of
    events left out because the number of drops is within rounding of another one.
    """
    system, dtype = run.system, run.period.dtype
    compared = skipped = 0
    for b in range(len(run.status)):
        units = system.mask[b].nonzero()[:, 0]
        alpha, beta = lists(system.alpha[b, units]), lists(system.beta[b, units])
        caps = [math.inf] * len(units) if system.u_max is None else lists(system.u_max[b, units])
        events = run.period.shape[1]
        for k in range(events):
            if run.drops[b, k] == 0:
                continue
            u, w = run.admission[b, k, units], run.backlog[b, k, units]
            expected = reference_cycle(alpha, beta, rates(b, k), lists(u), lists(w), caps, factor)
            assert isinstance(expected, ReferenceCycle)
            if expected.margin < clear_margin(dtype):
                skipped += 1
                continue
            compared += 1
            after_u = run.final_admission[b] if k + 1 == events else run.admission[b, k + 1]
            after_w = run.final_backlog[b] if k + 1 == events else run.backlog[b, k + 1]
            wait = 0.0 if math.isinf(expected.wait) else expected.wait
            assert run.drops[b, k] == expected.drops
            # A period is the difference (lambda - sum a) over sum alpha / 2: exact to the rounding of lambda.
            current = [rate for start, rate in rates(b, k) if start <= 0][-1]
            lost = max(1.0, 2 * current / sum(alpha) / expected.active)
            close("step period", run.period[b, k], expected.active + wait, expected.active * lost)
            close("step admission", after_u[units], expected.admission, max(expected.admission))
            reach = [max(w, alpha[i] / 2 * expected.active**2) for i, w in enumerate(lists(w))]
            close("step backlog", after_w[units], expected.backlog, torch.tensor(reach, dtype=torch.float64))
            close("step service_rate", run.service_rate[b, k, units], expected.service_rate)
            close(
                "step queueing_time",
                run.queueing_time[b, k, units],
                expected.queueing_time,
                lost * max(expected.queueing_time),
            )
    return compared, skipped


def systems(batch: int, n: int, dtype: torch.dtype = torch.float64, **options):
    return random_systems(batch, n, dtype=dtype, **options)
