"""Devices: nothing in an event waits for the host, and a GPU, where there is one, gives the CPU's results."""

import dataclasses

import pytest
import torch
from aimd_tools import DTYPES, close, systems
from test_aimd_workload import random_pieces
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

from idn_torch import aimd
from idn_torch.aimd.step import measure, start, step
from idn_torch.aimd.summary import add_cycle, start_totals
from idn_torch.aimd.system import make_system
from idn_torch.aimd.workload import as_workload


def converted(value, change):
    """Apply `change` to every tensor inside named tuples and dataclasses."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if dataclasses.is_dataclass(value):
        made = object.__new__(type(value))
        for field in dataclasses.fields(value):
            object.__setattr__(made, field.name, converted(getattr(value, field.name), change))
        return made
    if isinstance(value, tuple):
        parts = [converted(v, change) for v in value]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    return value


@pytest.mark.parametrize("kind", ["constant", "per event", "in time"])
@pytest.mark.parametrize("factor", [None, 1.2])
@pytest.mark.parametrize("headroom", [None, (1.5, 3.0)])
def test_an_event_never_looks_at_a_value(kind, factor, headroom):
    """Fake tensors have no values: any `.item()` or `if tensor` in the step would raise."""
    s = systems(4, 3, headroom=headroom, beta=(0.6, 0.9))
    rate = {
        "constant": s.arrival_rate,
        "per event": s.arrival_rate[:, None].expand(4, 6),
        "in time": random_pieces(s, 5, 0),
    }[kind]
    system = make_system(s.alpha, s.beta, s.u_max, None, factor).flattened(torch.Size([4]))
    workload = as_workload(rate, s.alpha, 6).flattened(torch.Size([4]))
    model, state = start(system, workload, s.u0, s.w0, 100)
    totals = start_totals(state)
    with FakeTensorMode() as mode:
        model, state, totals = (converted(v, mode.from_tensor) for v in (model, state, totals))
        for event in range(3):
            after, cycle = step(model, state, event)
            measures = measure(model, state, cycle, after)
            totals = add_cycle(totals, event, state, cycle, measures, after)
            state = after
        assert state.u.shape == (4, 3)
        with pytest.raises(DataDependentOutputException):
            state.u[0, 0].item()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("headroom", [None, (1.1, 2.0)])
def test_a_gpu_gives_the_same(dtype, headroom):
    s = systems(40, 6, dtype, headroom=headroom, min_units=1)
    args = (s.alpha, s.beta, s.arrival_rate, s.u0, s.w0, 6, s.u_max, s.mask)
    cpu = aimd.simulate(*args, record="summary")
    gpu = aimd.simulate(*(v.cuda() if isinstance(v, torch.Tensor) else v for v in args), record="summary")
    assert gpu.final_admission.is_cuda
    same = cpu.summary.max_drops == gpu.summary.max_drops.cpu()
    assert same.double().mean() > 0.95
    close("engine", gpu.final_admission.cpu()[same], cpu.final_admission[same])
    close("engine", gpu.period.cpu()[same], cpu.period[same])
    found = aimd.fixed_point(s.alpha.cuda(), s.beta.cuda(), s.arrival_rate.cuda(), mask=s.mask.cuda())
    close("fixed point", found.period.cpu(), aimd.fixed_point(s.alpha, s.beta, s.arrival_rate, mask=s.mask).period)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_gives_the_same_for_rates_that_vary_in_time():
    s = systems(20, 4, seed=1)
    rate = random_pieces(s, 5, 1)
    cpu = aimd.simulate(s.alpha, s.beta, rate, s.u0, s.w0, 8)
    moved = aimd.PiecewiseRate(rate.times.cuda(), rate.values.cuda())
    gpu = aimd.simulate(s.alpha.cuda(), s.beta.cuda(), moved, s.u0.cuda(), s.w0.cuda(), 8)
    close("run period", gpu.period.cpu(), cpu.period, cpu.period.max())
    sampled = aimd.sample(gpu, torch.linspace(0, 1, 5, dtype=torch.float64, device="cuda"))
    close("run backlog", sampled.backlog.cpu(), aimd.sample(cpu, torch.linspace(0, 1, 5, dtype=torch.float64)).backlog)
