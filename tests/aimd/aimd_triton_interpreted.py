"""The Triton kernel of AIMD events on CPU tensors, against torch; run by `tests/test_triton.py` in its own process."""

import pytest
import torch
from aimd_tools import DTYPES, close, systems

from idn_torch import aimd, kernels
from idn_torch.aimd import engine

# The interpreter computes both sides of a `where` with numpy.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning:triton.*")


@pytest.fixture(autouse=True)
def _interpreted(monkeypatch):
    """Runs of any length on a CPU go to Triton, unless the engine is named."""
    monkeypatch.setattr(kernels, "TRITON_DEVICES", frozenset({"cpu"}))
    monkeypatch.setattr(engine, "_WORTH_LAUNCHING", 1)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rates", ["constant", "per event"])
def test_events_agree_with_torch(dtype, rates):
    """Systems of several sizes, more than a program takes; idle from the start, and frozen by decreases."""
    s = systems(70, 9, dtype, seed=31, min_units=1, backlog=9.0)
    rate = s.arrival_rate.clone()
    rate[3] = 0.0
    s.beta[40, 0], s.u0[40, 0] = 0.999, 1e4 * rate[40]
    if rates == "per event":
        rate[3] = 1.0
        change = torch.rand(70, 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        rate = rate[:, None] * (0.8 + 0.4 * change).to(dtype)
    args = (s.alpha, s.beta, rate, s.u0, s.w0, 7, None, s.mask)
    plain = aimd.simulate(*args, record="summary", engine="torch", max_drops=600)
    fast = aimd.simulate(*args, record="summary", max_drops=600)
    # Float32 may settle a tie of the decrease differently.
    same = plain.summary.max_drops == fast.summary.max_drops
    assert same.float().mean() > 0.95
    assert torch.equal(plain.status, fast.status)
    assert plain.status[40] == aimd.Status.DECREASE_LIMIT
    if rates == "constant":
        assert plain.status[3] == aimd.Status.IDLE
    assert torch.equal(plain.summary.cycles, fast.summary.cycles)
    assert torch.equal(plain.summary.entered[same], fast.summary.entered[same])
    close("engine", fast.final_time[same], plain.final_time[same], plain.final_time[same].double() + 1e-30)
    close("engine", fast.final_admission[same], plain.final_admission[same])
    for name in ("admitted", "max_backlog", "request_seconds"):
        found, expected = getattr(fast.summary, name)[same], getattr(plain.summary, name)[same]
        close("engine", found, expected, expected.double().amax(-1, keepdim=True))


def test_events_between_recorded_ones_agree_with_torch():
    s = systems(5, 3, seed=1)
    args = (s.alpha, s.beta, s.arrival_rate, s.u0, s.w0, 9)
    fast, plain = (aimd.simulate(*args, record=4, engine=name) for name in ("auto", "torch"))
    close("engine", fast.period, plain.period)
    close("engine", fast.backlog, plain.backlog)
    close("engine", fast.final_backlog, plain.final_backlog)


def test_what_the_kernel_does_not_cover_stays_with_torch(monkeypatch):
    monkeypatch.setattr(engine, "run_ahead", None)
    s = systems(5, 3, seed=1, headroom=(1.05, 2.0))
    args = (s.alpha, s.beta, s.arrival_rate, s.u0, s.w0, 9)
    aimd.simulate(*args, s.u_max, record="last")
    aimd.simulate(*args, record="last", service_factor=1.1)
    piecewise = aimd.PiecewiseRate(torch.tensor([0.0], dtype=torch.float64), s.arrival_rate[:, None])
    aimd.simulate(s.alpha, s.beta, piecewise, s.u0, s.w0, 9, record="last")
